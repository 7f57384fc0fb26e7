package fuse

import (
	"errors"
	"os"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shardwell/shardwell/objstore"
)

// Where opens prove that the mount may read, each asks for the object itself, whatever a listing
// told, and takes no answer that is older than the proof may be.
func TestOpensProve(t *testing.T) {
	o := newOrigin()
	o.put("d/f", []byte("bytes"))
	var within atomic.Int64
	m := mount(t, o, func(cfg *Config) {
		cfg.Consistency = Consistency{TTL: time.Hour}
		cfg.NameBudget = time.Second
		cfg.Prove = func() time.Duration { return time.Duration(within.Load()) }
	})
	names(t, m.path("d"))
	before := o.heads.Load() // of the look-up of the directory
	if got := content(t, m.path("d/f")); got != "bytes" || o.heads.Load() != before {
		t.Errorf("without proofs: %q after %d HEADs", got, o.heads.Load()-before)
	}
	within.Store(int64(time.Minute))
	for want := int64(1); want <= 2; want++ { // the answers are for Names to keep
		if got := content(t, m.path("d/f")); got != "bytes" || o.heads.Load() != before+want {
			t.Errorf("%q after %d HEADs, want %d", got, o.heads.Load()-before, want)
		}
	}
	held, err := os.Open(m.path("d/f"))
	if err != nil {
		t.Fatal(err)
	}
	defer held.Close()

	o.mu.Lock()
	o.headErr = objstore.ErrPermission
	o.mu.Unlock()
	if _, err := os.Open(m.path("d/f")); !errors.Is(err, syscall.EACCES) {
		t.Errorf("open of what may not be read: %v", err)
	}
	if info, err := os.Stat(m.path("d/f")); err != nil || info.Size() != 5 {
		t.Errorf("stat of what was listed: %v, %v", info, err)
	}
	if _, err := unix.Getxattr(m.path("d/f"), xattrCached, make([]byte, 64)); !errors.Is(err, syscall.EACCES) {
		t.Errorf("how much of it is cached: %v", err)
	}
	p := make([]byte, 5)
	if n, err := held.ReadAt(p, 0); n != 5 || err != nil {
		t.Errorf("the open handle: %d bytes, %v", n, err)
	}

	// A silent origin proves nothing: what was true when it last answered does not count.
	o.mu.Lock()
	o.headErr, o.silent = nil, make(chan struct{})
	o.mu.Unlock()
	if _, err := os.Open(m.path("d/f")); !errors.Is(err, syscall.EIO) {
		t.Errorf("open while the origin is silent: %v", err)
	}
	o.mu.Lock()
	close(o.silent)
	o.silent = nil
	o.mu.Unlock()
	if got := content(t, m.path("d/f")); got != "bytes" {
		t.Errorf("afterwards %q", got)
	}
}

// An overwritten object is proven by its new version: the open goes to that one, also where
// names are never asked for again.
func TestProofOfANewVersion(t *testing.T) {
	o := newOrigin()
	o.put("d/f", []byte("old"))
	m := mount(t, o, func(cfg *Config) {
		cfg.Consistency = Consistency{Mode: ModeImmutable}
		cfg.Prove = func() time.Duration { return time.Minute }
	})
	if got := content(t, m.path("d/f")); got != "old" {
		t.Errorf("%q", got)
	}
	o.put("d/f", []byte("new one"))
	if got := content(t, m.path("d/f")); got != "new one" {
		t.Errorf("%q", got)
	}
}
