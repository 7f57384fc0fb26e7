package e2e_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/shardwell/shardwell/e2e/cage"
	"github.com/shardwell/shardwell/e2e/cluster"
	"github.com/shardwell/shardwell/e2e/dataset"
	"github.com/shardwell/shardwell/e2e/origin"
)

// photographs puts a WebDataset under a prefix and returns its manifest and bytes.
func photographs(t *testing.T, c *cluster.Cluster, prefix string, samples, shards int) (manifest string, unique int64) {
	t.Helper()
	dir := t.TempDir()
	sizes, err := dataset.WebDataset(c.Tools.Python, c.Tools.Scripts, c.Tools.Pictures, dir, seed, samples, shards)
	must(t, err)
	manifest = filepath.Join(t.TempDir(), "manifest.json")
	must(t, os.Rename(filepath.Join(dir, "manifest.json"), manifest))
	must(t, c.Origin.PutTree(t.Context(), bucket, prefix, dir))
	for _, s := range sizes {
		unique += s
	}
	return manifest, unique
}

// The origin's connections are reset a hundred times, at random places of shards that webdataset
// reads with workers on two nodes: no sample is lost, none comes twice, none is wrong.
func TestConnectionsResetAHundredTimes(t *testing.T) {
	const samples, shards, resets = 600, 6, 100
	c := start(t, cluster.Options{Nodes: 2})
	manifest, unique := photographs(t, c, "wds/", samples, shards)
	dirs := mount(t, c, "s3://"+bucket+"/wds")
	var cut atomic.Int64
	rng := rand.New(rand.NewPCG(seed, 100))
	places := make(chan int64, resets)
	for range resets {
		places <- 1 + rng.Int64N(300<<10)
	}
	c.Origin.Reset()
	c.Origin.SetFault(func(r origin.Request) *origin.Fault {
		if r.Op != origin.OpGet || r.Length <= 1 {
			return nil
		}
		select {
		case place := <-places:
			cut.Add(1)
			return &origin.Fault{CutAfter: min(place, r.Length-1), Reset: true}
		default:
			return nil
		}
	})
	webdataset(t, c, dirs, manifest, samples*3)
	if got := cut.Load(); got != resets {
		t.Errorf("%d connections were reset, want %d", got, resets)
	}
	// What was under way in a connection that is reset is lost: at most a block, and what its
	// buffers hold.
	wantOriginAtMost(t, c.Origin, unique+resets*(512<<10), "with resets")
	c.Origin.SetFault(nil)
	c.Origin.Reset()
	webdataset(t, c, dirs, manifest, samples*3)
	wantOrigin(t, c.Origin, 0, "the epoch after the resets")
}

// DataLoader workers hand over what webdataset is about to read, after shuffling and splitting: the
// shard that each opens next is here before.
func TestPlansOfDataLoaderWorkers(t *testing.T) {
	const samples, shards, workers = 120, 12, 3
	c := start(t, cluster.Options{Nodes: 1})
	_, unique := photographs(t, c, "wds/", samples, shards)
	dir := mountOn(t, c.Nodes[0], "s3://"+bucket+"/wds")
	c.Origin.Reset()
	t.Setenv("PYTHONPATH", filepath.Join(c.Tools.Root, "python"))
	t.Setenv("RANK", "1")
	out, err := command(t, pythonWait, c.Tools.Python, filepath.Join(c.Tools.Scripts, "plan.py"), dir, fmt.Sprint(workers))
	must(t, err)
	var got struct {
		Workers []struct {
			Worker, Samples int
			Next            float64
			Plans           string
		}
	}
	if err := json.Unmarshal([]byte(out[max(0, strings.LastIndex(strings.TrimSpace(out), "\n")):]), &got); err != nil {
		t.Fatalf("%v: %s", err, tail(out, 2000))
	}
	all := 0
	for _, w := range got.Workers {
		all += w.Samples
		if w.Next != 1 {
			t.Errorf("worker %d: %.2f of its next shard was here", w.Worker, w.Next)
		}
		if want := fmt.Sprintf("1.%d: ", w.Worker); !strings.Contains(w.Plans, want) {
			t.Errorf("worker %d: no plan %q in %q", w.Worker, want, w.Plans)
		}
	}
	if len(got.Workers) != workers || all != samples {
		t.Errorf("%d workers got %d samples: %s", len(got.Workers), all, tail(out, 2000))
	}
	wantOrigin(t, c.Origin, unique, "an epoch with plans")
}

// The module does nothing where nothing is mounted, with the system's own Python.
func TestPythonModule(t *testing.T) {
	c := start(t, cluster.Options{})
	t.Chdir(filepath.Join(c.Tools.Root, "python"))
	_, err := command(t, pythonWait, "/usr/bin/python3", "-B", "-m", "unittest", "discover", "-s", "tests")
	must(t, err)
}

// `shardwell plan` hands over a list, by path, URI and file, and tells how far its reader is.
func TestPlanCommand(t *testing.T) {
	const shards = 6
	c := start(t, cluster.Options{Nodes: 1})
	objects := put(t, c, "p/train-", shards, 3<<20)
	n := c.Nodes[0]
	dir := mountOn(t, n, "s3://"+bucket+"/p", "--prefetch-shards", "1")
	list := filepath.Join(t.TempDir(), "list")
	must(t, os.WriteFile(list, []byte("# the rest\n"+dir+"/train-0001\ntrain-0005\n"), 0o644))
	_, err := n.Command("plan", dir, "--rank", "7", "s3://"+bucket+"/p/train-000{3..3}", "-f", list)
	must(t, err)
	arrived := func(name string) {
		t.Helper()
		eventually(t, pythonWait, name+" is fetched before it is opened", func() (bool, string) {
			return cachedShare(t, filepath.Join(dir, name)) == "1.0000", cachedShare(t, filepath.Join(dir, name))
		})
	}
	arrived("train-0003")
	if got := cachedShare(t, filepath.Join(dir, "train-0001")); got != "0.0000" {
		t.Errorf("more than one shard ahead: %s of the second", got)
	}
	must(t, dataset.CompareFile(filepath.Join(dir, "train-0003"), objects["p/train-0003"]))
	arrived("train-0001")
	r, err := n.Command("plan", dir)
	must(t, err)
	if want := "7: 1 of 3 opened, next train-0001\n"; r.Stdout != want {
		t.Errorf("plan: %q, want %q", r.Stdout, want)
	}
	_, err = n.Command("plan", dir, "--rank", "7", "--end")
	must(t, err)
	for what, args := range map[string][]string{
		"is in no mount of Shardwell":       {"plan", t.TempDir(), "x"},
		"is not under s3://" + bucket:       {"plan", dir, "s3://other/x"},
		"DIR is missing":                    {"plan"},
		"--end takes no shards":             {"plan", dir, "--end", "x"},
		"no such file or directory":         {"plan", dir, "-f", "/nowhere"},
		"is not under " + dir:               {"plan", dir, "/etc/passwd"},
		"a character that cannot be, or is": {"plan", dir, "--rank", "a\nb", "x"},
	} {
		if r, err := n.Command(args...); err == nil || !strings.Contains(r.Stderr, what) || strings.Count(r.Stderr, "\n") != 1 {
			t.Errorf("%q: %d, %q, want one line with %q", args, r.Code, r.Stderr, what)
		}
	}
}

// A program that reads all of a row of numbered files, twice, has the origin asked for no more than one that is not there.
func TestGuessesEndWhereNumbersEnd(t *testing.T) {
	const shards = 10
	c := start(t, cluster.Options{Nodes: 1})
	objects := put(t, c, "g/s-", shards, 300<<10)
	dir := mountOn(t, c.Nodes[0], "s3://"+bucket+"/g")
	files := []string{}
	for i := range 2 * shards {
		files = append(files, filepath.Join(dir, fmt.Sprintf("s-%04d", i%shards)))
	}
	c.Origin.Reset()
	_, err := command(t, pythonWait, "cat", files...)
	must(t, err)
	metric := func(name string) float64 {
		m, err := c.Nodes[0].Metrics()
		must(t, err)
		return m[name]
	}
	eventually(t, pythonWait, "files are fetched before they are opened", func() (bool, string) {
		n := metric("shardwell_prefetched_shards_total")
		return n > 0, fmt.Sprint(n)
	})
	_, err = command(t, pythonWait, "cat", files...)
	must(t, err)
	absent := c.Origin.Requests().Where(func(r origin.Request) bool {
		return r.Op == origin.OpHead && r.Status == 404 && strings.HasPrefix(r.Key, "g/s-")
	})
	if len(absent) > 1 {
		t.Errorf("the origin was asked for what is not there: %v, %q", absent, head(absent.Twice(), 5))
	}
	wantOrigin(t, c.Origin, sizeOf(objects), "numbered files")
}

// A dataset that one node mounts is fetched by its owners while nobody reads: each byte once. A reader
// of another node has all of it from them.
func TestBackgroundFill(t *testing.T) {
	c := start(t, cluster.Options{Nodes: 3})
	objects := put(t, c, "fill/train-", 24, 5<<20)
	c.Origin.Reset()
	mountOn(t, c.Nodes[0], "s3://"+bucket+"/fill", "--background-fill", "on")
	eventually(t, pythonWait, "the owners fetch the dataset", func() (bool, string) {
		got := c.Origin.Requests().Bytes()
		return got >= sizeOf(objects), fmt.Sprintf("%d of %d bytes", got, sizeOf(objects))
	})
	dir := mountOn(t, c.Nodes[1], "s3://"+bucket+"/fill")
	must(t, readAll(map[string]string{"": dir}, "fill/", objects))
	wantOrigin(t, c.Origin, sizeOf(objects), "a filled dataset, and its first reader")
}

// Programs that wait for the origin end at Ctrl-C, whether they handle it or not, and what was fetched for a file ends
// when the last who had it open has closed it.
func TestReadersThatLeave(t *testing.T) {
	const size, read = int64(1) << 30, int64(16) << 20
	m := origin.NewMemory()
	tile := dataset.Random{Seed: seed, Size: 1 << 20}.Bytes()
	for i, name := range []string{"closed", "cat", "python"} {
		m.PutReader("l/"+name+".tar", dataset.Tiled{Tile: tile, Size: size}, size, fmt.Sprintf("%032x", i))
	}
	c := start(t, cluster.Options{Nodes: 1, OriginLink: cage.Link{RateMbit: 400}, Origin: origin.Options{Store: m}})
	dir := mountOn(t, c.Nodes[0], "s3://"+bucket+"/l")
	underWay := func(what string, any bool) {
		t.Helper()
		begin := time.Now()
		defer func() { t.Logf("%s: after %v", what, time.Since(begin).Round(time.Millisecond)) }()
		eventually(t, pythonWait, what, func() (bool, string) {
			n := c.Origin.Open()
			return n > 0 == any, fmt.Sprintf("%d requests are open", n)
		})
	}
	c.Origin.Reset()
	f, err := os.Open(filepath.Join(dir, "closed.tar"))
	must(t, err)
	_, err = io.CopyN(io.Discard, f, read)
	must(t, err)
	underWay("the rest is fetched ahead", true)
	must(t, f.Close())
	underWay("nothing is fetched any more", false)
	if sent := c.Origin.Requests().Bytes(); sent < read || sent > size/4 {
		t.Errorf("%d bytes came from the origin for one who read %d of %d", sent, read, size)
	}

	hang := make(chan struct{})
	c.Origin.SetFault(func(r origin.Request) *origin.Fault {
		if r.Op == origin.OpGet {
			return &origin.Fault{Hang: hang}
		}
		return nil
	})
	for name, program := range map[string][]string{
		"cat":    {"cat", filepath.Join(dir, "cat.tar")},
		"python": {c.Tools.Python, "-c", "import sys; open(sys.argv[1], 'rb').read()", filepath.Join(dir, "python.tar")},
	} {
		var said bytes.Buffer
		cmd := exec.Command(program[0], program[1:]...)
		cmd.Stdout, cmd.Stderr, cmd.WaitDelay = io.Discard, &said, time.Second
		must(t, cmd.Start())
		underWay(name+" waits for the origin", true)
		must(t, cmd.Process.Signal(os.Interrupt))
		begin := time.Now()
		done := make(chan error, 1)
		go func() { done <- cmd.Wait() }()
		select {
		case err := <-done:
			t.Logf("%s ends after %v", name, time.Since(begin).Round(time.Millisecond))
			if state := cmd.ProcessState.Sys().(syscall.WaitStatus); !state.Signaled() && !strings.Contains(said.String(), "KeyboardInterrupt") {
				t.Errorf("%s: %v, %s", name, err, said.String())
			}
		case <-time.After(pythonWait):
			_ = cmd.Process.Kill()
			t.Errorf("%s does not end", name)
			close(hang)
			<-done
			return
		}
		underWay("nothing is fetched for "+name, false)
	}
	close(hang)
}

func cachedShare(t *testing.T, path string) string {
	t.Helper()
	out, err := command(t, pythonWait, "getfattr", "--absolute-names", "--only-values", "-n", "user.shardwell.cached", path)
	must(t, err)
	return out
}

// SEMANTICS O7: Small reads at random places cost the origin the blocks that they lie in, and at most a tenth
// more.
func TestRandomReadsCostTheirBlocks(t *testing.T) {
	const size, block, reads = int64(4) << 30, 256 << 10, 400
	m := origin.NewMemory()
	m.PutReader("r/large.bin", dataset.Tiled{Tile: dataset.Random{Seed: seed, Size: 1 << 20}.Bytes(), Size: size}, size, fmt.Sprintf("%032x", 1))
	c := start(t, cluster.Options{Nodes: 1, Origin: origin.Options{Store: m}})
	dir := mountOn(t, c.Nodes[0], "s3://"+bucket+"/r")
	f, err := os.Open(filepath.Join(dir, "large.bin"))
	must(t, err)
	defer f.Close()
	c.Origin.Reset()
	rng := rand.New(rand.NewPCG(seed, 6))
	touched := map[int64]bool{}
	want := dataset.Tiled{Tile: dataset.Random{Seed: seed, Size: 1 << 20}.Bytes(), Size: size}
	for range reads {
		off := rng.Int64N(size/4096) * 4096
		touched[off/block] = true
		var got, right [4096]byte
		if _, err := f.ReadAt(got[:], off); err != nil {
			t.Fatal(err)
		}
		if _, err := want.ReadAt(right[:], off); err != nil || got != right {
			t.Fatalf("wrong bytes at %d, %v", off, err)
		}
	}
	wantOriginAtMost(t, c.Origin, int64(len(touched))*block*11/10, "random reads")
}
