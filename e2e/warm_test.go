package e2e_test

import (
	"encoding/json"
	"fmt"
	"os/exec"
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

// warmJob is what the tests need of a document of `shardwell warm --json`.
type warmJob struct {
	Event string `json:"event"`
	Job   struct {
		ID       string `json:"id"`
		State    string `json:"state"`
		Runner   string `json:"runner"`
		Progress struct {
			Bytes     int64 `json:"bytes"`
			DoneBytes int64 `json:"doneBytes"`
		} `json:"progress"`
		Counts  map[string]int64 `json:"counts"`
		Missing []struct {
			URI    string `json:"uri"`
			Reason string `json:"reason"`
		} `json:"missing"`
	} `json:"job"`
}

// events reads what `shardwell warm --json` printed.
func events(t *testing.T, out string) (all []warmJob) {
	t.Helper()
	for line := range strings.Lines(out) {
		var e warmJob
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		all = append(all, e)
	}
	if len(all) == 0 {
		t.Fatal("nothing was printed")
	}
	return all
}

// The node that runs a warm-up is killed: another carries on from what is present, and in the end every byte is there.
func TestWarmUpWhoseNodeIsKilled(t *testing.T) {
	c := start(t, cluster.Options{Nodes: 4, Flags: []string{"--max-origin-rate", "16Mi"}})
	objects := put(t, c, "d/", 40, 5<<20)
	unique := sizeOf(objects)
	c.Origin.Reset()
	uri := "s3://" + bucket + "/d/{0000..0039}"
	r, err := c.Nodes[0].Run("warm", "--json", "--wait=false", uri)
	must(t, err)
	id := events(t, r.Stdout)[0].Job.ID

	var victim *cluster.Node
	waitFor(t, "half is fetched", func() bool { return c.Origin.Requests().Bytes() > unique/3 })
	r, err = c.Nodes[1].Run("warm", "--list", "--json")
	must(t, err)
	var rec struct {
		Runner string `json:"runner"`
		State  string `json:"state"`
	}
	must(t, json.Unmarshal([]byte(r.Stdout), &rec))
	if rec.State != "running" {
		t.Fatalf("the warm-up is %s", rec.State)
	}
	for _, n := range c.Nodes {
		if n.Name == rec.Runner {
			victim = n
		}
	}
	if victim == nil {
		t.Fatalf("runs at %q", rec.Runner)
	}
	must(t, victim.Kill())
	asker := c.Nodes[(slices.Index(c.Nodes, victim)+1)%len(c.Nodes)]
	r, err = asker.Run("warm", "--json", "--attach", id)
	must(t, err)
	all := events(t, r.Stdout)
	if last := all[len(all)-1]; last.Event != "ended" || last.Job.State != "done" || last.Job.Runner == victim.Name || last.Job.Progress.DoneBytes != unique {
		t.Errorf("the warm-up ended as %+v", last)
	}
	if _, err := asker.Run("warm", "--check", uri); err != nil {
		t.Errorf("check: %v", err)
	}
	// What the victim held is fetched again, and what it was about to give.
	wantOriginAtMost(t, c.Origin, unique+unique/2, "the node of a warm-up was killed")
	c.Origin.Reset()
	dirs := make(map[*cluster.Node]string)
	for _, n := range c.Nodes {
		if n != victim {
			dirs[n] = mountOn(t, n, "s3://"+bucket+"/d")
		}
	}
	must(t, readAll(dirs, "d/", objects))
	wantOrigin(t, c.Origin, 0, "an epoch after the warm-up")
}

// waitFor polls until something is so.
func waitFor(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !ok(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within a minute: %s", what)
		}
	}
}

// One object in a hundred is forbidden: the exit code is 3, and exactly these are named.
func TestWarmUpNamesWhatIsForbidden(t *testing.T) {
	const count, size = 1000, 20_000
	m := origin.NewMemory()
	for i := range count {
		m.PutReader(fmt.Sprintf("d/%04d", i), dataset.Random{Seed: seed + uint64(i), Size: size}, size, fmt.Sprintf("%032x", i))
	}
	c := start(t, cluster.Options{Nodes: 3, Origin: origin.Options{Store: m}})
	c.Origin.SetFault(func(r origin.Request) *origin.Fault {
		if r.Op == origin.OpGet && strings.HasSuffix(r.Key, "50") || r.Key == "d/none" {
			return &origin.Fault{Status: 403}
		}
		return nil
	})
	r, err := c.Nodes[0].Run("warm", "--json", "s3://"+bucket+"/d/", "s3://"+bucket+"/d/none")
	if r.Code != 3 {
		t.Fatalf("exit code %d: %v, %s", r.Code, err, r.Stdout)
	}
	all := events(t, r.Stdout)
	last := all[len(all)-1].Job
	var want, got []string
	for i := range count {
		if i%100 == 50 {
			want = append(want, fmt.Sprintf("s3://%s/d/%04d", bucket, i))
		}
	}
	want = append(want, "s3://"+bucket+"/d/none")
	for _, x := range last.Missing {
		got = append(got, x.URI)
		if x.Reason != "forbidden" {
			t.Errorf("%s: %s", x.URI, x.Reason)
		}
	}
	slices.Sort(got)
	if !slices.Equal(got, want) || last.State != "partly" {
		t.Errorf("%s without %q, want %q", last.State, got, want)
	}
	gets := c.Origin.Requests().Of(origin.OpGet)
	for key, n := range gets.PerKey() {
		if n > 3*size {
			t.Errorf("%s: %d bytes", key, n)
		}
	}
	if lists := len(c.Origin.Requests().Of(origin.OpList)); lists > 10 {
		t.Errorf("%d listings", lists)
	}
	if r, _ := c.Nodes[2].Run("warm", "--check", "s3://"+bucket+"/d/"); r.Code != 3 || strings.Count(r.Stdout, "not-cached\t") != count/100 {
		t.Errorf("check: exit code %d, %s", r.Code, r.Stdout)
	}
	c.Origin.SetFault(nil)
	if r, err := c.Nodes[1].Run("warm", "s3://"+bucket+"/d/"); err != nil || r.Stdout != "" {
		t.Errorf("again, with all allowed: %v, %s", err, r.Stdout)
	}
}

// lockedText collects what a process says while it runs.
type lockedText struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *lockedText) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *lockedText) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// Two warm-ups of one prefix at once are one, whose Ctrl-C lets it go on or ends it.
func TestWarmUpsAtOnceAndInterrupted(t *testing.T) {
	c := start(t, cluster.Options{Nodes: 3, Flags: []string{"--max-origin-rate", "8Mi"}})
	objects := put(t, c, "d/", 16, 5<<20)
	c.Origin.Reset()
	uri := "s3://" + bucket + "/d/"
	interrupt := func(flags ...string) (code int, out string) {
		n := c.Nodes[2]
		cmd := exec.Command(c.Tools.Shardwell, append([]string{"warm", uri, "--control-socket", n.Socket}, flags...)...)
		said := &lockedText{}
		cmd.Stderr = said
		must(t, cmd.Start())
		waitFor(t, "the warm-up has begun or is joined", func() bool {
			return strings.Contains(said.String(), "has begun") || strings.Contains(said.String(), "joined it")
		})
		must(t, cmd.Process.Signal(syscall.SIGINT))
		_ = cmd.Wait()
		return cmd.ProcessState.ExitCode(), said.String()
	}
	if code, out := interrupt(); code != 130 || !strings.Contains(out, "goes on") {
		t.Errorf("Ctrl-C: exit code %d, %s", code, out)
	}
	if code, out := interrupt("--on-interrupt", "cancel"); code != 130 {
		t.Errorf("Ctrl-C that cancels: exit code %d, %s", code, out)
	}
	if r, err := c.Nodes[0].Run("warm", "--list", "--json"); err != nil || !strings.Contains(r.Stdout, `"canceled"`) {
		t.Errorf("after the cancellation: %v, %s", err, r.Stdout)
	}

	var wg sync.WaitGroup
	for _, n := range c.Nodes {
		wg.Go(func() {
			if r, err := n.Run("warm", uri); err != nil || r.Stdout != "" {
				t.Errorf("%s: %v, %s", n.Name, err, r.Stdout)
			}
		})
	}
	wg.Wait()
	wantOrigin(t, c.Origin, sizeOf(objects), "warm-ups at once, after one that was canceled")
}
