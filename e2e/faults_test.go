package e2e_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/shardwell/shardwell/e2e/cluster"
	"github.com/shardwell/shardwell/e2e/dataset"
	"github.com/shardwell/shardwell/e2e/origin"
)

// A third of all requests fail, with and without Retry-After: every byte is right on
// every node, no name is ever absent, and what is sent at all is sent once.
func TestOriginThrottlesAThirdOfRequests(t *testing.T) {
	c := start(t, cluster.Options{Nodes: 3})
	objects := put(t, c, "d/", 24, 9<<20)
	status := func(code, retryAfter int) func(*rand.Rand) *origin.Fault {
		return func(*rand.Rand) *origin.Fault { return &origin.Fault{Status: code, RetryAfter: retryAfter} }
	}
	c.Origin.SetFault(origin.Sometimes(seed, 0.33, nil,
		status(http.StatusServiceUnavailable, 0), status(http.StatusServiceUnavailable, 1), status(http.StatusTooManyRequests, 0),
		status(http.StatusTooManyRequests, 1), status(http.StatusInternalServerError, 0)))
	dirs := mount(t, c, "s3://"+bucket+"/d")
	for n, dir := range dirs {
		if entries, err := os.ReadDir(dir); err != nil || len(entries) != len(objects) {
			t.Errorf("node %s lists %d names, %v; want %d", n.Name, len(entries), err, len(objects))
		}
	}
	if err := readAll(dirs, "d/", objects); err != nil {
		t.Error(err)
	}
	wantOrigin(t, c.Origin, sizeOf(objects), "a third of requests refused")
	c.Origin.SetFault(nil)
	begin := time.Now()
	more := put(t, c, "e/", 4, 9<<20)
	must(t, readAll(mount(t, c, "s3://"+bucket+"/e"), "e/", more))
	if d := time.Since(begin); d > 30*time.Second {
		t.Errorf("after the faults ended, 36 MiB took %v: the rate has not recovered", d)
	}
}

// Bodies that are cut, reset or stall at random places cost little more than what was lost.
func TestOriginBodiesBreakOff(t *testing.T) {
	c := start(t, cluster.Options{Nodes: 3})
	objects := put(t, c, "d/", 16, 9<<20)
	var mu sync.Mutex
	broken := 0
	note := func(f *origin.Fault) *origin.Fault {
		mu.Lock()
		defer mu.Unlock()
		broken++
		return f
	}
	place := func(r *rand.Rand) int64 { return 1 + r.Int64N(8<<20) }
	c.Origin.SetFault(origin.Sometimes(seed, 0.33, []origin.Op{origin.OpGet},
		func(r *rand.Rand) *origin.Fault { return note(&origin.Fault{CutAfter: place(r)}) },
		func(r *rand.Rand) *origin.Fault { return note(&origin.Fault{CutAfter: place(r), Reset: true}) }))
	if err := readAll(mount(t, c, "s3://"+bucket+"/d"), "d/", objects); err != nil {
		t.Error(err)
	}
	mu.Lock()
	defer mu.Unlock()
	// What a broken body loses: the block that was under way, and what was in buffers.
	wantOriginAtMost(t, c.Origin, sizeOf(objects)+int64(broken)*(1<<20), fmt.Sprintf("%d bodies broken off", broken))
}

// A body that stalls is cut and asked for again, within the time that an origin gets.
func TestOriginBodyStalls(t *testing.T) {
	c := start(t, cluster.Options{Nodes: 2, Flags: []string{"--origin-timeout", "60s"}})
	objects := put(t, c, "d/", 1, 9<<20)
	release := make(chan struct{})
	defer close(release)
	var once sync.Once
	c.Origin.SetFault(func(r origin.Request) (f *origin.Fault) {
		if r.Op == origin.OpGet {
			once.Do(func() { f = &origin.Fault{StallAfter: 100_000, Release: release} })
		}
		return f
	})
	begin := time.Now()
	if err := readAll(mount(t, c, "s3://"+bucket+"/d"), "d/", objects); err != nil {
		t.Error(err)
	}
	t.Logf("a stalled body was overcome after %v", time.Since(begin))
	wantOriginAtMost(t, c.Origin, sizeOf(objects)+2<<20, "one stalled body")
}

// Answers that are not what was asked for are found, asked for again, and never cached.
// SEMANTICS B6: An answer of the origin that is too short, too long, of another range or of another version is never cached and never shown.
func TestOriginLies(t *testing.T) {
	for _, lie := range []origin.Lie{origin.LieShort, origin.LieLong, origin.LieRange, origin.LieWhole, origin.LieBadRange} {
		t.Run(string(lie), func(t *testing.T) {
			m := origin.NewMemory()
			objects := make(map[string]dataset.Random)
			for i := range 4 {
				r := dataset.Random{Seed: seed + uint64(i), Size: 9<<20 + int64(i)}
				m.PutReader(fmt.Sprintf("d/%04d", i), r, r.Size, fmt.Sprintf("%032x", i))
				objects[fmt.Sprintf("d/%04d", i)] = r
			}
			c := start(t, cluster.Options{Nodes: 2, Origin: origin.Options{Store: m}})
			c.Origin.SetFault(origin.Sometimes(seed, 0.33, []origin.Op{origin.OpGet},
				func(*rand.Rand) *origin.Fault { return &origin.Fault{Lie: lie} }))
			dirs := mount(t, c, "s3://"+bucket+"/d")
			for _, round := range []string{"cold", "warm"} {
				if err := readAll(dirs, "d/", objects); err != nil {
					t.Errorf("%s: %v", round, err)
				}
			}
		})
	}
}

// While the origin is gone, what is cached reads on; what is not waits, then fails
// with EIO; it recovers by itself.
func TestOriginGoneAndBack(t *testing.T) {
	c := start(t, cluster.Options{Nodes: 3, Flags: []string{"--origin-timeout", "5s"}})
	objects := put(t, c, "d/", 8, 9<<20)
	cold := map[string]dataset.Random{"d/0007": objects["d/0007"]}
	delete(objects, "d/0007")
	dirs := mount(t, c, "s3://"+bucket+"/d", "--consistency", "immutable", "--prefetch-shards", "0") // the next file stays away
	for _, dir := range dirs {
		_, err := os.ReadDir(dir)
		must(t, err)
	}
	must(t, readAll(dirs, "d/", objects))

	must(t, c.Origin.Vanish())
	if err := readAll(dirs, "d/", objects); err != nil {
		t.Errorf("cached files while the origin is gone: %v", err)
	}
	begin := time.Now()
	_, err := os.ReadFile(filepath.Join(dirs[c.Nodes[0]], "0007"))
	waited := time.Since(begin)
	t.Logf("a file that is not cached, while the origin is gone: %v after %v", err, waited)
	if !errors.Is(err, syscall.EIO) || waited < 2*time.Second || waited > 8*time.Second {
		t.Errorf("a file that is not cached, while the origin is gone: %v after %v; want EIO after some 5 s", err, waited)
	}
	must(t, c.Origin.Resume())
	eventually(t, 30*time.Second, "the cold file can be read after the origin came back", func() (bool, string) {
		err := readAll(dirs, "d/", cold)
		return err == nil, errText(err)
	})
}

// 256 reads that wait for an origin that does not answer leave a stat and a read of local
// data under 10 ms.
func TestStuckReadsDisturbNobody(t *testing.T) {
	const stuck = 256
	const limit = 10 * time.Millisecond
	c := start(t, cluster.Options{Nodes: 1, Flags: []string{"--origin-timeout", "5m"}})
	objects := put(t, c, "d/stuck-", stuck, 300<<10)
	local := put(t, c, "d/local-", 20, 1<<20)
	dir := mountOn(t, c.Nodes[0], "s3://"+bucket+"/d")
	_, err := os.ReadDir(dir)
	must(t, err)
	must(t, readAll(map[int]string{0: dir}, "d/", local))

	release := make(chan struct{})
	c.Origin.SetFault(func(r origin.Request) *origin.Fault {
		if r.Op == origin.OpGet && strings.HasPrefix(r.Key, "d/stuck-") {
			return &origin.Fault{Hang: release}
		}
		return nil
	})
	results := make(chan error, stuck)
	for key, want := range objects {
		go func() { results <- dataset.CompareFile(filepath.Join(dir, strings.TrimPrefix(key, "d/")), want) }()
	}
	// Not all need to reach the origin: a node bounds its requests there.
	eventually(t, 30*time.Second, "reads are stuck at the origin", func() (bool, string) {
		n := c.Origin.Open()
		return n >= 16, fmt.Sprintf("%d requests are open", n)
	})
	var stats, reads []time.Duration
	for range 5 {
		for key, want := range local {
			path := filepath.Join(dir, strings.TrimPrefix(key, "d/"))
			begin := time.Now()
			_, err := os.Stat(path)
			must(t, err)
			stats = append(stats, time.Since(begin))
			var b [4096]byte
			begin = time.Now()
			f, err := os.Open(path)
			must(t, err)
			_, err = f.ReadAt(b[:], want.Size/2)
			must(t, f.Close())
			must(t, err)
			reads = append(reads, time.Since(begin))
		}
	}
	select {
	case err := <-results:
		t.Errorf("a stuck read ended early: %v", err)
		results <- err
	default:
	}
	close(release)
	for name, d := range map[string][]time.Duration{"stat": stats, "open and local read": reads} {
		slices.Sort(d)
		p90, most := d[len(d)*9/10], d[len(d)-1]
		t.Logf("%s beside %d stuck reads: median %v, p90 %v, most %v", name, stuck, d[len(d)/2], p90, most)
		if p90 > limit {
			t.Errorf("%s beside %d stuck reads: p90 %v, want at most %v", name, stuck, p90, limit)
		}
	}
	for range stuck {
		if err := <-results; err != nil {
			t.Errorf("after the origin answered: %v", err)
		}
	}
}
