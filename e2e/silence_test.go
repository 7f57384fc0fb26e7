package e2e_test

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/shardwell/shardwell/e2e/cluster"
	"github.com/shardwell/shardwell/e2e/dataset"
)

// An origin that hangs or refuses for much longer than the ttl and the budget: what is
// cached is found, listed, opened and read by name on every node; a new name fails within
// the budget; when the origin answers again, new names are seen.
func TestOriginSilentForLongerThanTheTTL(t *testing.T) {
	for name, way := range map[string]struct {
		stop, start func(*cluster.Cluster) error
	}{
		"hangs": {
			func(c *cluster.Cluster) error { return c.Origin.Gateway().Signal(syscall.SIGSTOP) },
			func(c *cluster.Cluster) error { return c.Origin.Gateway().Signal(syscall.SIGCONT) },
		},
		"refuses": {
			func(c *cluster.Cluster) error { return c.Origin.Vanish() },
			func(c *cluster.Cluster) error { return c.Origin.Resume() },
		},
	} {
		t.Run(name, func(t *testing.T) {
			const budget, ttl = 8 * time.Second, 2 * time.Second
			c := start(t, cluster.Options{Nodes: 3, Flags: []string{"--origin-timeout", budget.String()}})
			objects := put(t, c, "d/", 6, 3<<20)
			dirs := mount(t, c, "s3://"+bucket+"/", "--consistency", "ttl="+ttl.String())
			for _, dir := range dirs {
				_, err := os.ReadDir(filepath.Join(dir, "d"))
				must(t, err)
			}
			must(t, readAll(dirs, "", objects))
			time.Sleep(ttl + time.Second)
			must(t, way.stop(c))

			limit := time.Duration(len(dirs))*2*time.Second + 2*time.Second // the first on each node waits for 2 s
			for end := time.Now().Add(3 * budget); time.Now().Before(end); time.Sleep(ttl / 2) {
				began := time.Now()
				readNames(t, dirs, objects)
				if took := time.Since(began); took > limit {
					t.Errorf("names and bytes that are here took %v", took)
				}
				limit = 2 * time.Second // the machine may be busy
			}
			dir := filepath.Join(dirs[c.Nodes[0]], "never-seen")
			began := time.Now()
			_, err := os.Stat(dir)
			if took := time.Since(began); !errors.Is(err, syscall.EIO) || took > budget+2*time.Second {
				t.Errorf("a name that is not known: %v after %v, want EIO after %v", err, took, budget)
			}

			must(t, way.start(c))
			more := put(t, c, "e/", 1, 1<<20)
			eventually(t, 20*time.Second, "new names are seen", func() (bool, string) {
				err := readAll(dirs, "", more)
				return err == nil, errText(err)
			})
		})
	}
}

// readNames lists the directory of the objects and reads each by its name on all nodes
// at once.
func readNames(t *testing.T, dirs map[*cluster.Node]string, objects map[string]dataset.Random) {
	t.Helper()
	for n, dir := range dirs {
		entries, err := os.ReadDir(filepath.Join(dir, "d"))
		if err != nil || len(entries) != len(objects) {
			t.Errorf("node %s lists %d names, %v; want %d", n.Name, len(entries), err, len(objects))
		}
		if _, err := os.Stat(filepath.Join(dir, "d", "0000.idx")); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("node %s: a name that is not there: %v", n.Name, err)
		}
	}
	if err := readAll(dirs, "", objects); err != nil {
		t.Error(err)
	}
}
