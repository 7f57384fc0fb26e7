package e2e_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shardwell/shardwell/e2e/cage"
	"github.com/shardwell/shardwell/e2e/cluster"
	"github.com/shardwell/shardwell/e2e/dataset"
	"github.com/shardwell/shardwell/e2e/faulty"
	"github.com/shardwell/shardwell/e2e/origin"
)

// faultyCache has a stopped node keep its cache on a disk that fails when it is told to.
func faultyCache(t *testing.T, c *cluster.Cluster, n *cluster.Node) *faulty.Disk {
	t.Helper()
	root := n.CacheDir + "-real"
	must(t, os.MkdirAll(root, 0o700))
	disk, err := faulty.Start(n.Host, root, n.CacheDir, filepath.Join(c.Cage.Dir, n.Name+"-faults"))
	must(t, err)
	t.Cleanup(func() {
		_ = disk.Set(faulty.None, 0)
		_ = n.Kill()
		_ = cage.Detach(n.CacheDir)
	})
	return disk
}

// A cache disk that answers nothing any more holds nobody: cached files are read from the origin, other datasets are
// mounted, names that nobody has seen are found, mounts go away, and the node is started again beside it. When it answers
// again it is used again.
func TestDiskThatHangs(t *testing.T) {
	const limit = 40 * time.Second // for what takes milliseconds on a disk that is well
	m := origin.NewMemory()
	objects := make(map[string]dataset.Random)
	for i := range 8 {
		for _, dir := range []string{"d/", "d/deep/er/", "e/"} {
			r := dataset.Random{Seed: seed + uint64(len(objects)), Size: 2 << 20}
			key := fmt.Sprintf("%s%04d", dir, i)
			m.PutReader(key, r, r.Size, fmt.Sprintf("%032x", len(objects)))
			objects[key] = r
		}
	}
	c := start(t, cluster.Options{Nodes: 1, Origin: origin.Options{Store: m}, Flags: []string{"--disk-timeout", "1s", "--verify-reads", "always"}})
	n := c.Nodes[0]
	must(t, n.Stop())
	disk := faultyCache(t, c, n)
	must(t, n.Start())
	dir := mountOn(t, n, "s3://"+bucket+"/d")
	read := func(dir, prefix, below string) {
		t.Helper()
		began := time.Now()
		some := make(map[string]dataset.Random)
		for key, r := range objects {
			if rest, ok := strings.CutPrefix(key, prefix+below); ok && !strings.Contains(rest, "/") {
				some[key] = r
			}
		}
		if err := readAll(map[int]string{0: dir}, prefix, some); err != nil {
			t.Error(err)
		}
		if took := time.Since(began); took > limit {
			t.Errorf("%d objects of %s took %v", len(some), prefix+below, took)
		}
	}
	read(dir, "d/", "")
	must(t, disk.Set(faulty.Hang, 1))
	read(dir, "d/", "")
	read(dir, "d/", "deep/er/") // names that the listings do not have yet
	other := mountOn(t, n, "s3://"+bucket+"/e")
	read(other, "e/", "")
	must(t, n.Umount(other))
	eventually(t, limit, "the disk is found to be down", func() (bool, string) {
		s, err := n.Status()
		return err == nil && s.Disks[0].State == "down", fmt.Sprint(s.Disks, err)
	})
	if _, hung := disk.Counts(); hung == 0 {
		t.Error("no call of the disk has hung")
	}
	must(t, disk.Set(faulty.None, 0))
	eventually(t, limit, "the disk is used again", func() (bool, string) {
		s, err := n.Status()
		return err == nil && s.Disks[0].State != "down", fmt.Sprint(s.Disks, err)
	})
	read(dir, "d/", "")
	must(t, n.Stop())

	must(t, disk.Set(faulty.Hang, 1))
	must(t, n.Start())
	read(mountOn(t, n, "s3://"+bucket+"/d"), "d/", "")
	s, err := n.Status()
	must(t, err)
	if len(s.Disks) != 1 || s.Disks[0].State != "down" {
		t.Errorf("started beside a disk that hangs: %+v", s.Disks)
	}
	endsBeside(t, n)
	must(t, disk.Set(faulty.None, 0))
	must(t, n.Stop())

	must(t, n.Start())
	read(mountOn(t, n, "s3://"+bucket+"/d"), "d/", "")
	must(t, disk.Set(faulty.Hang, 1))
	endsBeside(t, n) // with files open on it
	must(t, n.Start())
	read(mountOn(t, n, "s3://"+bucket+"/d"), "d/", "")
	must(t, disk.Set(faulty.None, 0))
}

// endsBeside stops a node whose disk hangs. It comes to its end and gives up its ports and mounts, so that another can take its place; the
// kernel keeps the process until its last call of the disk has returned.
func endsBeside(t *testing.T, n *cluster.Node) {
	t.Helper()
	stopped := func() int {
		text, err := os.ReadFile(n.Proc.Log)
		must(t, err)
		return strings.Count(string(text), "node stopped")
	}
	before := stopped()
	must(t, n.Proc.Signal(syscall.SIGTERM))
	eventually(t, 40*time.Second, "the node stops", func() (bool, string) { return stopped() > before, "it does not say so" })
}

// smallDisk mounts an ext4 of some MiB on a directory.
func smallDisk(t *testing.T, dir string, mib int64) {
	t.Helper()
	image := filepath.Join(t.TempDir(), "image")
	must(t, os.WriteFile(image, nil, 0o600))
	must(t, os.Truncate(image, mib<<20))
	for _, args := range [][]string{{"mkfs.ext4", "-q", "-F", "-m", "0", image}, {"mount", "-o", "loop", image, dir}} {
		if out, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%v: %v: %s", args, err, out)
		}
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
}

// Others fill the file system of a cache to the last byte, while it is read and while the node is down: reads go on, the
// node starts, and what was cached is there.
func TestDiskThatOthersFill(t *testing.T) {
	c := start(t, cluster.Options{Nodes: 1, Flags: []string{"--memory", "64Mi", "--min-free", "1Mi"}})
	objects := put(t, c, "d/", 8, 4<<20)
	n := c.Nodes[0]
	must(t, n.Stop())
	smallDisk(t, n.CacheDir, 96)
	must(t, n.Start())
	t.Cleanup(func() { _ = n.Kill() }) // before the disk goes
	must(t, readAll(map[int]string{0: mountOn(t, n, "s3://"+bucket+"/d")}, "d/", objects))
	must(t, n.Stop())
	others, err := os.Create(filepath.Join(n.CacheDir, "of-others"))
	must(t, err)
	defer others.Close()
	for size := 1 << 20; size >= 512; {
		if _, err := others.Write(make([]byte, size)); errors.Is(err, syscall.ENOSPC) {
			size /= 2
		} else {
			must(t, err)
		}
	}
	must(t, n.Start())
	dir := mountOn(t, n, "s3://"+bucket+"/d")
	c.Origin.Reset()
	must(t, readAll(map[int]string{0: dir}, "d/", objects))
	wantOriginAtMost(t, c.Origin, sizeOf(objects)/2, "an epoch on a disk that others have filled")
	more := put(t, c, "e/", 8, 4<<20)
	must(t, readAll(map[int]string{0: mountOn(t, n, "s3://"+bucket+"/e")}, "e/", more))
}

// 64 readers with all that is fetched ahead of them in a control group of 256 MiB, which the node finds out about by itself:
// nobody is killed and every byte is right.
func TestReadersInLittleMemory(t *testing.T) {
	const readers, size = 64, 24 << 20
	group, err := cage.NewMemoryGroup("little", 256<<20)
	if err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatal(err)
		}
		t.Skip(err)
	}
	t.Cleanup(func() { _ = group.Close() }) // after the cluster's
	m := origin.NewMemory()
	objects := make(map[string]dataset.Random)
	for i := range readers {
		key := fmt.Sprintf("d/%04d.tar", i)
		objects[key] = dataset.Random{Seed: seed + uint64(i), Size: size}
		m.PutReader(key, objects[key], size, fmt.Sprintf("%032x", i))
	}
	c := start(t, cluster.Options{Nodes: 1, Origin: origin.Options{Store: m}, CacheSize: "600Mi", Cgroup: group.Dir})
	n := c.Nodes[0]
	dir := mountOn(t, n, "s3://"+bucket+"/d")
	for epoch := range 2 {
		var wg sync.WaitGroup
		for key, want := range objects {
			wg.Go(func() {
				if err := dataset.CompareFile(filepath.Join(dir, strings.TrimPrefix(key, "d/")), want); err != nil {
					t.Errorf("epoch %d: %v", epoch, err)
				}
			})
		}
		wg.Wait()
	}
	_, peak, err := n.Proc.Memory()
	must(t, err)
	t.Logf("most resident memory %d MiB; the origin sent %.2f copies in two epochs", peak>>20, float64(c.Origin.Requests().Bytes())/float64(sizeOf(objects)))
	if kills := group.Kills(); kills > 0 || !n.Running() {
		t.Errorf("%d processes were killed, the node runs: %t", kills, n.Running())
	}
}
