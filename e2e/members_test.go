package e2e_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/shardwell/shardwell/e2e/cluster"
	"github.com/shardwell/shardwell/e2e/dataset"
)

// All nodes read everything at once: each byte leaves the origin once, and no node sends
// much more than its share to the others.
func TestEveryByteLeavesTheOriginOnce(t *testing.T) {
	const size = 48 << 20
	c := start(t, cluster.Options{Nodes: 3, Flags: []string{"--place-whole", "16Mi"}})
	objects := put(t, c, "d/", 6, size) // larger than place-whole: chunk by chunk
	for k, v := range put(t, c, "d/small-", 40, 300_001) {
		objects[k] = v
	}
	c.Origin.Reset()
	dirs := mount(t, c, "s3://"+bucket+"/d")
	must(t, readAll(dirs, "d/", objects))
	wantOrigin(t, c.Origin, sizeOf(objects), "three nodes that read everything at once")
	var sent []int64
	for _, n := range c.Nodes {
		s, err := n.Status()
		must(t, err)
		sent = append(sent, s.Bytes.SentToPeers)
	}
	sum := sent[0] + sent[1] + sent[2]
	if unique := sizeOf(objects); sum < unique*3/2 || sum > unique*5/2 {
		t.Errorf("nodes sent %v to each other, want about twice the data (%d) in all", sent, 2*unique)
	}
	for i, s := range sent {
		if s*3 > sum*2 {
			t.Errorf("node n%d sent %d of %d bytes: a hotspot", i+1, s, sum)
		}
	}
	checkBytes(t, c)
	c.Origin.Reset()
	must(t, readAll(dirs, "d/", objects))
	wantOrigin(t, c.Origin, 0, "second epoch")
}

// checkBytes compares the origin bytes that the nodes count with what the origin counted.
func checkBytes(t *testing.T, c *cluster.Cluster) {
	t.Helper()
	sum, err := c.Bytes()
	must(t, err)
	if got := c.Origin.Requests().Bytes(); sum.FetchedFromOrigin != got {
		t.Errorf("nodes say they took %d bytes from the origin, the origin counted %d", sum.FetchedFromOrigin, got)
	}
}

// A peer that is killed in the middle costs a retry, never an error.
func TestPeerKilledInTheMiddle(t *testing.T) {
	c := start(t, cluster.Options{Nodes: 3})
	objects := put(t, c, "d/", 30, 9<<20)
	c.Origin.Reset()
	dirs := mount(t, c, "s3://"+bucket+"/d")
	victim := c.Nodes[1]
	delete(dirs, victim)
	unique := sizeOf(objects)
	killed := make(chan error, 1)
	go func() {
		deadline := time.Now().Add(time.Minute)
		for c.Origin.Requests().Bytes() < unique/2 && time.Now().Before(deadline) {
			time.Sleep(5 * time.Millisecond)
		}
		killed <- victim.Kill()
	}()
	if err := readAll(dirs, "d/", objects); err != nil {
		t.Errorf("readers on the other nodes: %v", err)
	}
	must(t, <-killed)
	// At most what the victim held or was to fetch is taken a second time.
	wantOriginAtMost(t, c.Origin, unique+unique/2, "a peer was killed half-way")
	c.Origin.Reset()
	if err := readAll(dirs, "d/", objects); err != nil {
		t.Errorf("second epoch without the killed peer: %v", err)
	}
	wantOrigin(t, c.Origin, 0, "second epoch of those that read everything")
}

// A node that is killed at random moments of its work has, after each restart, whole and
// valid blocks or none.
func TestKilledWhileItCommits(t *testing.T) {
	c := start(t, cluster.Options{Nodes: 1})
	objects := put(t, c, "d/", 12, 9<<20)
	n := c.Nodes[0]
	for i := range 5 {
		dir := mountOn(t, n, "s3://"+bucket+"/d")
		var wg sync.WaitGroup
		wg.Go(func() { _ = readAll(map[int]string{0: dir}, "d/", objects) }) // ends with errors when the node dies
		time.Sleep(time.Duration(20+i*60) * time.Millisecond)
		must(t, n.Kill())
		wg.Wait()
		must(t, n.Start())
	}
	if err := readAll(map[int]string{0: mountOn(t, n, "s3://"+bucket+"/d")}, "d/", objects); err != nil {
		t.Errorf("after 5 kills: %v", err)
	}
	must(t, n.Stop())
	if r, err := n.Verify(); err != nil {
		t.Errorf("verify after 5 kills: %v, %s%s", err, r.Stdout, r.Stderr)
	}
}

// Nodes join and leave while others read (3, 5, 3): no error, and the origin is asked
// again only for what left with its holders.
func TestMembersJoinAndLeaveDuringEpochs(t *testing.T) {
	c := start(t, cluster.Options{Nodes: 3})
	objects := put(t, c, "d/", 30, 4<<20)
	c.Origin.Reset()
	dirs := mount(t, c, "s3://"+bucket+"/d")
	stop := make(chan struct{})
	ended := make(chan error, 1)
	epochs := 0
	go func() {
		defer close(ended)
		for {
			select {
			case <-stop:
				return
			default:
			}
			if err := readAll(dirs, "d/", objects); err != nil {
				ended <- fmt.Errorf("epoch %d: %w", epochs, err)
				return
			}
			epochs++
		}
	}()
	var added []*cluster.Node
	for range 2 {
		n, err := c.AddNode()
		must(t, err)
		added = append(added, n)
	}
	must(t, c.WaitMembers(5))
	for _, n := range added {
		if err := readAll(map[int]string{0: mountOn(t, n, "s3://"+bucket+"/d")}, "d/", objects); err != nil {
			t.Errorf("joined node %s: %v", n.Name, err)
		}
	}
	// Nodes that join at one moment may ask each other instead of the owner before them: one
	// object each may come again.
	most := sizeOf(objects) + int64(len(added))*(sizeOf(objects)/int64(len(objects)))
	wantOriginAtMost(t, c.Origin, most, "3 nodes became 5")
	for _, n := range added {
		must(t, n.Stop())
	}
	must(t, readAll(dirs, "d/", objects))
	close(stop)
	if err := <-ended; err != nil {
		t.Error(err)
	}
	t.Logf("%d epochs beside the changes", epochs)
	wantOriginAtMost(t, c.Origin, most, "and 3 again: nothing was only on those that left")
}

// A rolling restart of all nodes costs no origin byte in the next epoch.
func TestRollingRestartCostsNothing(t *testing.T) {
	c := start(t, cluster.Options{Nodes: 3})
	objects := put(t, c, "d/", 20, 9<<20)
	must(t, readAll(mount(t, c, "s3://"+bucket+"/d"), "d/", objects))
	for _, n := range c.Nodes {
		must(t, n.Stop())
		must(t, n.Start())
		must(t, c.WaitMembers(3))
	}
	c.Origin.Reset()
	must(t, readAll(mount(t, c, "s3://"+bucket+"/d"), "d/", objects))
	wantOrigin(t, c.Origin, 0, "epoch after a rolling restart")
}

// A reader that owns nothing reads from the others and takes no share of the ring.
func TestReaderThatOwnsNothing(t *testing.T) {
	c := start(t, cluster.Options{Nodes: 2})
	objects := put(t, c, "d/", 12, 9<<20)
	must(t, readAll(mount(t, c, "s3://"+bucket+"/d"), "d/", objects))
	n, err := c.AddNode("--no-owner")
	must(t, err)
	must(t, c.WaitMembers(3))
	c.Origin.Reset()
	must(t, readAll(map[int]string{0: mountOn(t, n, "s3://"+bucket+"/d")}, "d/", objects))
	wantOrigin(t, c.Origin, 0, "a reader that owns nothing, of data that two others hold")
	s, err := n.Status()
	must(t, err)
	for _, m := range s.Members {
		if (m.Name == n.Name) != (m.OwnedShare == 0) {
			t.Errorf("member %s owns %.3f of the ring", m.Name, m.OwnedShare)
		}
	}
	if s.Bytes.FetchedFromPeers != sizeOf(objects) {
		t.Errorf("the reader took %d bytes from peers, want %d", s.Bytes.FetchedFromPeers, sizeOf(objects))
	}
}

// Members that cut objects otherwise, and strangers without the secret, are refused
// with a line on both sides; the cluster works on.
func TestMisfitsAreRefused(t *testing.T) {
	c := start(t, cluster.Options{Nodes: 2})
	objects := put(t, c, "d/", 2, 9<<20)
	stranger := filepath.Join(t.TempDir(), "secret")
	must(t, os.WriteFile(stranger, []byte(strings.Repeat("0123456789abcdef", 4)+"\n"), 0o600))
	for _, misfit := range []struct {
		name  string
		flags []string
		word  string // that the log of the misfit must have
	}{
		{"other chunk size", []string{"--chunk-size", "4Mi"}, "chunk"},
		{"other block size", []string{"--block-size", "512Ki"}, "block"},
		{"other secret", []string{"--secret-file", stranger}, ""},
	} {
		n, err := c.AddNode(misfit.flags...)
		if err != nil && n == nil {
			t.Fatal(err)
		}
		log := n.Proc.Output // the process may have ended by itself with the reason
		if misfit.word != "" {
			eventually(t, 20*time.Second, misfit.name+": the misfit says why", func() (bool, string) {
				return strings.Contains(strings.ToLower(log()), misfit.word), tail(log(), 500)
			})
			eventually(t, 20*time.Second, misfit.name+": the others say why", func() (bool, string) {
				said := strings.ToLower(c.Nodes[0].Proc.Output() + c.Nodes[1].Proc.Output())
				return strings.Contains(said, misfit.word+" size") || strings.Contains(said, misfit.word+"size"), tail(said, 500)
			})
		}
		for _, old := range c.Nodes[:2] {
			s, err := old.Status()
			must(t, err)
			if s.Alive() != 2 {
				t.Errorf("%s: node %s sees %d members alive, want 2: %+v", misfit.name, old.Name, s.Alive(), s.Members)
			}
		}
		must(t, n.Kill())
	}
	for _, n := range c.Nodes[:2] {
		if err := readAll(map[int]string{0: mountOn(t, n, "s3://"+bucket+"/d")}, "d/", objects); err != nil {
			t.Error(err)
		}
	}
	wantOrigin(t, c.Origin, sizeOf(objects), "two nodes beside misfits")
}

// Readers of parts: random small reads across objects on all nodes see right bytes, and blocks
// that several want are fetched once.
func TestRandomReads(t *testing.T) {
	const size = 40 << 20
	c := start(t, cluster.Options{Nodes: 3})
	objects := put(t, c, "d/", 3, size)
	c.Origin.Reset()
	var wg sync.WaitGroup
	for n, dir := range mount(t, c, "s3://"+bucket+"/d") {
		for key, want := range objects {
			wg.Go(func() {
				if err := randomReads(filepath.Join(dir, strings.TrimPrefix(key, "d/")), want, hash(n.Name+key)^seed); err != nil {
					t.Errorf("node %s: %v", n.Name, err)
				}
			})
		}
	}
	wg.Wait()
	wantOriginAtMost(t, c.Origin, sizeOf(objects), "random reads on three nodes")
	if twice := c.Origin.Requests().Twice(); len(twice) > 0 {
		t.Errorf("ranges were sent again: %q", head(twice, 5))
	}
}

func randomReads(path string, want dataset.Random, seed uint64) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	got, wanted := make([]byte, 20_000), make([]byte, 20_000)
	for i := range 60 {
		off := int64((seed*0x9e3779b97f4a7c15 + uint64(i)*0xbf58476d1ce4e5b9) % uint64(want.Size-20_000))
		if _, err := f.ReadAt(got, off); err != nil {
			return fmt.Errorf("%s at %d: %w", path, off, err)
		}
		_, _ = want.ReadAt(wanted, off)
		if string(got) != string(wanted) {
			return fmt.Errorf("%s at %d (seed %d): wrong bytes", path, off, seed)
		}
	}
	return nil
}
