package e2e_test

import (
	"context"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/shardwell/shardwell/e2e/cluster"
	"github.com/shardwell/shardwell/e2e/dataset"
	"github.com/shardwell/shardwell/e2e/faulty"
	"github.com/shardwell/shardwell/e2e/load"
	"github.com/shardwell/shardwell/e2e/origin"
)

// bucket is the bucket of every test.
const bucket = "data"

// seed makes the data of all tests; E2E_SEED changes it.
var seed = uint64(20260101)

func TestMain(m *testing.M) {
	load.Main() // when this process is to be a reader
	faulty.Main()
	if s := os.Getenv("E2E_SEED"); s != "" {
		if _, err := fmt.Sscan(s, &seed); err != nil {
			fmt.Fprintln(os.Stderr, "E2E_SEED:", err)
			os.Exit(2)
		}
	}
	fmt.Fprintf(os.Stderr, "E2E_SEED=%d\n", seed)
	if _, err := cluster.Prepare(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// start makes a cluster that lives as long as the test, with the bucket if it runs a real
// store. When the test fails, the ends of all logs are printed.
func start(t *testing.T, opts cluster.Options) *cluster.Cluster {
	t.Helper()
	c, err := cluster.Start(opts)
	if c != nil {
		t.Cleanup(func() {
			if t.Failed() {
				t.Log("logs:\n" + c.Logs(25))
			}
			if err := c.Close(); err != nil {
				t.Errorf("clean-up: %v", err)
			}
		})
	}
	if err != nil {
		t.Fatal(err)
	}
	if opts.Origin.Store == nil {
		must(t, c.Origin.MakeBucket(t.Context(), bucket))
	}
	return c
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// put writes n random objects of size bytes as PREFIX0000, PREFIX0001, … and
// returns them by key.
func put(t *testing.T, c *cluster.Cluster, prefix string, n int, size int64) map[string]dataset.Random {
	t.Helper()
	objects := make(map[string]dataset.Random)
	for i := range n {
		key := fmt.Sprintf("%s%04d", prefix, i)
		r := dataset.Random{Seed: seed ^ uint64(len(objects)*7919) ^ hash(prefix), Size: size}
		_, err := c.Origin.Put(t.Context(), bucket, key, r.Reader(), size)
		must(t, err)
		objects[key] = r
	}
	return objects
}

func hash(s string) uint64 {
	h := uint64(14695981039346656037)
	for i := range len(s) {
		h = (h ^ uint64(s[i])) * 1099511628211
	}
	return h
}

// mount mounts uri in every running node.
func mount(t *testing.T, c *cluster.Cluster, uri string, flags ...string) map[*cluster.Node]string {
	t.Helper()
	dirs := make(map[*cluster.Node]string)
	for _, n := range c.Nodes {
		if n.Running() {
			dirs[n] = mountOn(t, n, uri, flags...)
		}
	}
	return dirs
}

func mountOn(t *testing.T, n *cluster.Node, uri string, flags ...string) string {
	t.Helper()
	dir, err := n.Mount(uri, flags...)
	must(t, err)
	return dir
}

// readAll reads all objects in all directories at once, a reader per directory
// and each starting at another object, and compares every byte. Keys lose prefix.
func readAll[K comparable](dirs map[K]string, prefix string, objects map[string]dataset.Random) error {
	keys := slices.Sorted(maps.Keys(objects))
	var mu sync.Mutex
	var problems []string
	var wg sync.WaitGroup
	first := 0
	for _, dir := range slices.Sorted(maps.Values(dirs)) {
		at := first
		first += len(keys)/max(1, len(dirs)) + 1
		wg.Go(func() {
			for i := range keys {
				key := keys[(at+i)%len(keys)]
				if err := dataset.CompareFile(filepath.Join(dir, strings.TrimPrefix(key, prefix)), objects[key]); err != nil {
					mu.Lock()
					problems = append(problems, err.Error())
					mu.Unlock()
				}
			}
		})
	}
	wg.Wait()
	if len(problems) > 0 {
		return fmt.Errorf("%d of %d reads went wrong: %s", len(problems), len(keys)*len(dirs),
			strings.Join(problems[:min(5, len(problems))], "; "))
	}
	return nil
}

func sizeOf(objects map[string]dataset.Random) (sum int64) {
	for _, o := range objects {
		sum += o.Size
	}
	return sum
}

// wantOrigin fails the test unless the origin sent exactly want body bytes since the last Reset.
func wantOrigin(t *testing.T, o *origin.Origin, want int64, when string) {
	t.Helper()
	rs := o.Requests()
	if got := rs.Bytes(); got != want {
		t.Errorf("%s: the origin sent %d bytes, want %d (%.3f copies); %v; sent again: %q",
			when, got, want, float64(got)/float64(max(want, 1)), rs, head(rs.Twice(), 5))
	}
}

// wantOriginAtMost is wantOrigin for faults that may cost bytes.
func wantOriginAtMost(t *testing.T, o *origin.Origin, most int64, when string) {
	t.Helper()
	rs := o.Requests()
	got := rs.Bytes()
	t.Logf("%s: the origin sent %d bytes, at most %d allowed; %v", when, got, most, rs)
	if got > most {
		t.Errorf("%s: the origin sent %d bytes, want at most %d; sent again: %q", when, got, most, head(rs.Twice(), 5))
	}
}

func head(s []string, n int) []string { return s[:min(n, len(s))] }

// command runs a program to its end and returns its output.
func command(t *testing.T, wait time.Duration, name string, args ...string) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), wait)
	defer cancel()
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Env = append(os.Environ(), "LC_ALL=C.UTF-8", "PYTHONWARNINGS=ignore", "OMP_NUM_THREADS=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = 5 * time.Second
	out, err := cmd.CombinedOutput()
	if err != nil {
		return string(out), fmt.Errorf("%s %s: %w\n%s", name, strings.Join(args, " "), err, tail(string(out), 4000))
	}
	return string(out), nil
}

func tail(s string, n int) string { return s[max(0, len(s)-n):] }

// dropCaches makes the kernel forget clean pages, names and inodes.
func dropCaches(t *testing.T) {
	t.Helper()
	syscall.Sync()
	must(t, os.WriteFile("/proc/sys/vm/drop_caches", []byte("3"), 0))
}

// eventually polls until ok or the time is over; said is the last word on why not.
func eventually(t *testing.T, wait time.Duration, what string, ok func() (bool, string)) {
	t.Helper()
	deadline := time.Now().Add(wait)
	for {
		done, said := ok()
		if done {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s: not within %v: %s", what, wait, said)
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// cacheFile finds the data file of the only object of that size in a node's cache.
func cacheFile(t *testing.T, n *cluster.Node, size int64) string {
	t.Helper()
	path, err := n.CacheFile(size)
	must(t, err)
	return path
}

// flip inverts one byte of a file in place.
func flip(t *testing.T, path string, off int64) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	must(t, err)
	defer f.Close()
	var b [1]byte
	_, err = f.ReadAt(b[:], off)
	must(t, err)
	b[0] ^= 0xff
	_, err = f.WriteAt(b[:], off)
	must(t, err)
}

// readByte reads one byte at an offset, to set a fetch going.
func readByte(path string, off int64) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	var b [1]byte
	_, err = f.ReadAt(b[:], off)
	if err == io.EOF {
		return nil
	}
	return err
}
