package e2e_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/shardwell/shardwell/e2e/cluster"
	"github.com/shardwell/shardwell/e2e/origin"
)

// The field names of `status --json` and the names of metrics are promises.
func TestStatusAndMetricsKeepTheirNames(t *testing.T) {
	m := origin.NewMemory()
	m.Put("d/a", make([]byte, 1<<20))
	m.Put("d/x//b", nil)
	c := start(t, cluster.Options{Nodes: 2, Origin: origin.Options{Store: m}, Flags: []string{"--zone", "z1", "--rack", "r1"}})
	n := c.Nodes[0]
	dir := mountOn(t, n, "s3://"+bucket+"/d")
	walk(t, dir)
	walk(t, dir)
	r, err := n.Run("status", "--json")
	must(t, err)
	var doc map[string]any
	must(t, json.Unmarshal([]byte(r.Stdout), &doc))
	for path, fields := range map[string]string{
		"":              "node members datasets broadcasts bytes disks skippedKeys",
		"members.0":     "id name address zone rack state ownedShare",
		"datasets.0":    "uri objects bytes cachedBytes localBytes pinnedUntil",
		"bytes":         "origin peer disk memory passthroughOpens sentToPeers",
		"disks.0":       "path state usedBytes budgetBytes",
		"skippedKeys.0": "key reason",
	} {
		at, err := descend(doc, path)
		if err != nil {
			t.Errorf("status --json: %v in %s", err, r.Stdout)
			continue
		}
		for _, field := range strings.Fields(fields) {
			if _, ok := at[field]; !ok {
				t.Errorf("status --json: no %q in %q: %v", field, path, at)
			}
		}
	}
	s, err := n.Status()
	must(t, err)
	if s.Members[0].Zone != "z1" || s.Members[0].Rack != "r1" {
		t.Errorf("zone and rack: %+v", s.Members)
	}
	if share := s.Members[0].OwnedShare + s.Members[1].OwnedShare; share < 0.99 || share > 1.01 {
		t.Errorf("shares add up to %v, want 1", share)
	}
	checkMetrics(t, n)
}

// descend follows names and the index 0 through a decoded document.
func descend(doc map[string]any, path string) (map[string]any, error) {
	var at any = doc
	for _, part := range strings.FieldsFunc(path, func(r rune) bool { return r == '.' }) {
		switch v := at.(type) {
		case map[string]any:
			at = v[part]
		case []any:
			if len(v) == 0 {
				return nil, fmt.Errorf("%s is empty", path)
			}
			at = v[0]
		}
	}
	m, ok := at.(map[string]any)
	if !ok {
		return nil, fmt.Errorf("%s is %T", path, at)
	}
	return m, nil
}

func checkMetrics(t *testing.T, n *cluster.Node) {
	t.Helper()
	m, err := n.Metrics()
	must(t, err)
	for _, name := range []string{
		`shardwell_read_bytes_total{source="origin"}`, `shardwell_read_bytes_total{source="peer"}`,
		`shardwell_read_bytes_total{source="disk"}`, `shardwell_read_bytes_total{source="memory"}`,
		"shardwell_read_ops_total", "shardwell_origin_requests_total", "shardwell_peer_sent_bytes_total",
		"shardwell_cache_bytes", "shardwell_ring_members", "shardwell_disk_state", "shardwell_fuse_op_seconds_count",
		"shardwell_passthrough_opens_total", "shardwell_peer_redirects_total", "shardwell_corrupt_blocks_total",
		"shardwell_cache_admissions_rejected_total",
	} {
		found := false
		for series := range m {
			found = found || series == name || strings.HasPrefix(series, name+"{")
			if strings.Contains(series, "d/a") {
				t.Errorf("metric %s has a key as a label", series)
			}
		}
		if !found {
			t.Errorf("metrics: no %s", name)
		}
	}
	if got := m.Sum("shardwell_ring_members"); got != 2 {
		t.Errorf("shardwell_ring_members is %v, want 2", got)
	}
}

// What a user gets wrong ends with a code and one line that says what, where, and what to do.
func TestMountSaysWhatIsWrong(t *testing.T) {
	c := start(t, cluster.Options{Nodes: 1})
	put(t, c, "d/", 1, 1000)
	n := c.Nodes[0]
	dir := t.TempDir()
	mounted := mountOn(t, n, "s3://"+bucket+"/d")
	file := filepath.Join(dir, "file")
	must(t, os.WriteFile(file, nil, 0o644))
	for _, wrong := range []struct {
		name string
		args []string
		word string
	}{
		{"no such bucket", []string{"mount", "s3://no-such-bucket/x", dir}, "bucket"},
		{"prefix that matches nothing", []string{"mount", "s3://" + bucket + "/nothing-here/", dir}, "nothing"},
		{"mount point missing", []string{"mount", "s3://" + bucket + "/d", filepath.Join(dir, "missing")}, "missing"},
		{"mount point is a file", []string{"mount", "s3://" + bucket + "/d", file}, "directory"},
		{"already ours, another dataset", []string{"mount", "s3://" + bucket + "/", mounted}, "already"},
		{"no URI", []string{"mount", bucket + "/d", dir}, "s3://"},
		{"umount of no mount", []string{"umount", dir}, "not"},
	} {
		r, err := n.Run(wrong.args...)
		lines := strings.Split(strings.TrimSpace(r.Stderr), "\n")
		if err == nil || r.Code < 1 || r.Code > 2 || len(lines) != 1 || !strings.Contains(strings.ToLower(lines[0]), wrong.word) {
			t.Errorf("%s: exit code %d, %q; want code 1 or 2 and one line with %q", wrong.name, r.Code, r.Stderr, wrong.word)
		}
	}
}

// Mounting once more what is mounted there is done already.
func TestMountTwiceIsDone(t *testing.T) {
	c := start(t, cluster.Options{Nodes: 1})
	put(t, c, "d/", 1, 1000)
	dir := mountOn(t, c.Nodes[0], "s3://"+bucket+"/d")
	r, err := c.Nodes[0].Run("mount", "s3://"+bucket+"/d", dir)
	if err != nil || !strings.Contains(r.Stdout+r.Stderr, "already") {
		t.Errorf("second mount of the same: %v, %q; want success that says so", err, r.Stdout+r.Stderr)
	}
	must(t, c.Nodes[0].Umount(dir))
}

// No log of any process holds a secret, at the most talkative level.
func TestNoSecretInAnyLog(t *testing.T) {
	c := start(t, cluster.Options{Nodes: 2, Flags: []string{"--log-level", "debug"}})
	objects := put(t, c, "d/", 3, 9<<20)
	must(t, readAll(mount(t, c, "s3://"+bucket+"/d"), "d/", objects))
	secret, err := os.ReadFile(filepath.Join(c.Cage.Dir, "secret"))
	must(t, err)
	for _, n := range c.Nodes {
		log := n.Proc.Output()
		for name, value := range map[string]string{
			"the cluster's secret": strings.TrimSpace(string(secret)), "the secret key": c.Origin.SecretKey, "a signature": "X-Amz-Signature=",
		} {
			if strings.Contains(log, value) {
				t.Errorf("node %s: the log holds %s", n.Name, name)
			}
		}
	}
}

// After an orderly stop nothing is mounted and nothing runs.
func TestStopLeavesNothing(t *testing.T) {
	c := start(t, cluster.Options{Nodes: 1})
	objects := put(t, c, "d/", 3, 1<<20)
	n := c.Nodes[0]
	dir := mountOn(t, n, "s3://"+bucket+"/d")
	must(t, readAll(map[int]string{0: dir}, "d/", objects))
	before, err := n.Proc.OpenFiles()
	must(t, err)
	for range 5 {
		must(t, readAll(map[int]string{0: dir}, "d/", objects))
	}
	after, err := n.Proc.OpenFiles()
	must(t, err)
	if after > before+8 {
		t.Errorf("descriptors grew from %d to %d over five epochs", before, after)
	}
	code, err := n.Proc.Stop(toolWait)
	if err != nil || code != 0 {
		t.Errorf("stopped with %d, %v", code, err)
	}
	data, err := os.ReadFile("/proc/self/mountinfo")
	must(t, err)
	if strings.Contains(string(data), " "+dir+" ") {
		t.Errorf("%s is still mounted after the node stopped", dir)
	}
}
