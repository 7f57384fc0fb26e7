package disk

import (
	"bufio"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/shardwell/shardwell/internal/chunk"
)

// killEnv makes the test binary a writer of the directory that it names.
const killEnv = "SHARDWELL_TEST_KILL_DIR"

func TestMain(m *testing.M) {
	if dir := os.Getenv(killEnv); dir != "" {
		writeForever(dir)
	}
	goleak.VerifyTestMain(m)
}

func killObjects() (objects []content) {
	for i := range 20 {
		objects = append(objects, newContent(fmt.Sprint(i), 3*chunk.MinBlockBytes+100*i))
	}
	return objects
}

// writeForever stores and evicts until it is killed, and says when each block is in.
func writeForever(dir string) {
	d, err := Open(testConfig(dir))
	if err != nil {
		fmt.Println("error", err)
		os.Exit(1)
	}
	objects := killObjects()
	rng := rand.New(rand.NewPCG(uint64(os.Getpid()), 0))
	for {
		c := objects[rng.IntN(len(objects))]
		f, err := d.Acquire(c.obj, c.id, true)
		if err != nil {
			os.Exit(1)
		}
		for b := range f.Blocks() {
			if err := f.Put(c.block(small, b)); err != nil {
				os.Exit(1)
			}
			fmt.Println("stored", c.obj.Key, b)
		}
		f.Release()
		if rng.IntN(3) == 0 {
			c := objects[rng.IntN(len(objects))]
			_, _ = d.evict(victim(c.id))
		}
	}
}

// SEMANTICS I2: A process kill of the daemon at any point leaves each block of the cache present and right, or absent.
//
// TestKill kills a writer for real, again and again on one directory: what is present is
// right and trusted, the accounting is right, and the lock is free.
func TestKill(t *testing.T) {
	dir := t.TempDir()
	objects := killObjects()
	rng := rand.New(rand.NewPCG(uint64(time.Now().UnixNano()), 0))
	for round := range 6 {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), killEnv+"="+dir)
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		lines := 20 + rng.IntN(100)
		sc := bufio.NewScanner(out)
		for range lines {
			if !sc.Scan() {
				t.Fatalf("round %d: the writer ended by itself: %v", round, sc.Err())
			}
		}
		if err := cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		_ = cmd.Wait()
		afterKill(t, dir, objects)
	}
}

func afterKill(t *testing.T, dir string, objects []content) {
	t.Helper()
	d, err := Open(testConfig(dir))
	if err != nil {
		t.Fatal(err)
	}
	if d.ledger.exact() {
		t.Error("a killed process left a clean mark")
	}
	present := uint32(0)
	for _, c := range objects {
		f := c.acquire(t, d)
		if !f.Complete() && f.PresentBlocks() > 0 && !f.Trusted() {
			t.Errorf("%s is not trusted after a kill", c.obj.Key)
		}
		before := f.PresentBlocks()
		_ = readAndCompare(t, f, c)
		if f.PresentBlocks() != before {
			t.Errorf("%s lost %d blocks", c.obj.Key, before-f.PresentBlocks())
		}
		present += before
		f.Release()
	}
	if present == 0 {
		t.Error("nothing survived")
	}
	if err := d.walk(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	checkLedger(t, d)
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
}
