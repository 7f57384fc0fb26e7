package e2e_test

import (
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/shardwell/shardwell/e2e/cluster"
	"github.com/shardwell/shardwell/e2e/dataset"
)

// pythonWait bounds a Python reader.
const pythonWait = 3 * time.Minute

// webdataset reads the mounts with webdataset and DataLoader workers, all at once.
func webdataset(t *testing.T, c *cluster.Cluster, dirs map[*cluster.Node]string, manifest string, members int) {
	t.Helper()
	var wg sync.WaitGroup
	for n, dir := range dirs {
		wg.Go(func() {
			out, err := command(t, pythonWait, c.Tools.Python, filepath.Join(c.Tools.Scripts, "epoch.py"), dir, manifest, "2", "1")
			if err != nil {
				t.Errorf("node %s: %v", n.Name, err)
				return
			}
			r, err := dataset.ParseReport(out)
			if err != nil || len(r.Wrong) > 0 || r.Members != members {
				t.Errorf("node %s: %+v, %v; want %d members, none wrong", n.Name, r, err, members)
			}
		})
	}
	wg.Wait()
}

// Real photographs, Python's webdataset and torch's DataLoader with workers, on three
// nodes: every sample is compared; the first epoch takes each byte from the origin
// once, the second none.
func TestWebDatasetTwoEpochsOnThreeNodes(t *testing.T) {
	const samples, shards = 300, 12
	c := start(t, cluster.Options{Nodes: 3})
	dir := t.TempDir()
	sizes, err := dataset.WebDataset(c.Tools.Python, c.Tools.Scripts, c.Tools.Pictures, dir, seed, samples, shards)
	must(t, err)
	if len(sizes) != shards {
		t.Fatalf("made %d shards, want %d", len(sizes), shards)
	}
	manifest := filepath.Join(t.TempDir(), "manifest.json")
	must(t, os.Rename(filepath.Join(dir, "manifest.json"), manifest))
	must(t, c.Origin.PutTree(t.Context(), bucket, "wds/", dir))
	var unique int64
	for _, s := range sizes {
		unique += s
	}

	c.Origin.Reset()
	dirs := mount(t, c, "s3://"+bucket+"/wds")
	webdataset(t, c, dirs, manifest, samples*3)
	wantOrigin(t, c.Origin, unique, "first epoch of three nodes")
	c.Origin.Reset()
	webdataset(t, c, dirs, manifest, samples*3)
	wantOrigin(t, c.Origin, 0, "second epoch of three nodes")
	if rs := c.Origin.Requests(); len(rs) > 0 {
		t.Logf("second epoch: other requests at the origin: %v", rs)
	}
}

// A real model file, mapped by safetensors and by torch, through the mount.
func TestModelsAreReadByMmap(t *testing.T) {
	c := start(t, cluster.Options{Nodes: 2})
	copied := t.TempDir()
	must(t, dataset.Model(c.Tools.Python, c.Tools.Scripts, c.Tools.Model, copied))
	must(t, c.Origin.PutTree(t.Context(), bucket, "models/minilm/", copied))
	c.Origin.Reset()
	dirs := mount(t, c, "s3://"+bucket+"/models")
	for _, epoch := range []string{"cold", "warm"} {
		var wg sync.WaitGroup
		for n, dir := range dirs {
			wg.Go(func() {
				out, err := command(t, pythonWait, c.Tools.Python, filepath.Join(c.Tools.Scripts, "model.py"),
					filepath.Join(dir, "minilm"), copied)
				if err != nil {
					t.Errorf("%s, node %s: %v", epoch, n.Name, err)
					return
				}
				if r, err := dataset.ParseReport(out); err != nil || len(r.Wrong) > 0 || r.Tensors < 100 {
					t.Errorf("%s, node %s: %+v, %v; want all of some 100 tensors equal", epoch, n.Name, r, err)
				}
			})
		}
		wg.Wait()
	}
	var unique int64
	for _, name := range []string{"model.safetensors", "model.pt", "model.raw"} {
		info, err := os.Stat(filepath.Join(copied, name))
		must(t, err)
		unique += info.Size()
	}
	wantOrigin(t, c.Origin, unique, "two nodes that map three files twice")
}

// fioFile writes a file with fio's checksums in it and puts it at the origin.
func fioFile(t *testing.T, c *cluster.Cluster, key string, mib int) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "fio")
	_, err := command(t, pythonWait, "fio", "--name=write", "--rw=write", "--bs=128k", fmt.Sprintf("--size=%dm", mib),
		"--verify=crc32c", "--do_verify=0", "--verify_state_save=0", fmt.Sprintf("--randseed=%d", seed), "--filename="+path)
	must(t, err)
	f, err := os.Open(path)
	must(t, err)
	defer f.Close()
	_, err = c.Origin.Put(t.Context(), bucket, key, f, int64(mib)<<20)
	must(t, err)
}

// fioVerify reads a file with fio, which checks each block.
func fioVerify(t *testing.T, path string, mib int) error {
	t.Helper()
	_, err := command(t, pythonWait, "fio", "--name=read", "--rw=read", "--bs=128k", fmt.Sprintf("--size=%dm", mib),
		"--verify=crc32c", "--verify_state_save=0", "--verify_fatal=1", "--readonly", "--filename="+path)
	return err
}

func TestFioVerifies(t *testing.T) {
	const mib = 96
	c := start(t, cluster.Options{Nodes: 2})
	fioFile(t, c, "fio/file", mib)
	for n, dir := range mount(t, c, "s3://"+bucket+"/fio") {
		for _, round := range []string{"cold", "warm"} {
			if err := fioVerify(t, filepath.Join(dir, "file"), mib); err != nil {
				t.Errorf("node %s, %s: %v", n.Name, round, err)
			}
		}
	}
}
