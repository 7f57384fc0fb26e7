package fuse

import (
	"errors"
	"fmt"
	"os"
	"syscall"
	"testing"
	"time"
)

// Listings without ETags: HEAD tells the version at look-up or open, once, and what it
// told outlives the next listing.
func TestListingWithoutETags(t *testing.T) {
	o := newOrigin()
	o.bareList = true
	for i := range 5 {
		o.put(fmt.Sprintf("d/%d", i), []byte("one"))
	}
	m := mount(t, o, func(c *Config) { c.Consistency.TTL = time.Second })
	read := func(want string) {
		t.Helper()
		if got := names(t, m.path("d")); len(got) != 5 {
			t.Errorf("listed: %q", got)
		}
		for i := range 5 {
			if got := content(t, m.path(fmt.Sprintf("d/%d", i))); got != want {
				t.Errorf("d/%d: %q", i, got)
			}
		}
	}
	read("one")
	<-time.After(time.Second + 2*tickOfSnapshots)
	records := m.store.Records()
	read("one")
	if n := m.store.Records() - records; n != 0 {
		t.Errorf("%d new versions of what did not change", n)
	}
	for i := range 5 {
		o.put(fmt.Sprintf("d/%d", i), []byte("two"))
	}
	<-time.After(time.Second + 2*tickOfSnapshots)
	read("two")
	if keys := m.SkippedKeys(); len(keys) != 0 {
		t.Errorf("left out: %v", keys)
	}
}

// An object that has no ETag anywhere is left out and named; others are read.
func TestNoETagAnywhere(t *testing.T) {
	o := newOrigin()
	o.bareList, o.bareHead = true, map[string]bool{"all/a": true, "all/b": true, "some/b": true}
	for key := range o.bareHead {
		o.put(key, []byte("x"))
	}
	o.put("some/a", []byte("x"))
	m := mount(t, o, func(c *Config) { c.Consistency.TTL = 200 * time.Millisecond })
	if got := names(t, m.path("all")); len(got) != 0 {
		t.Errorf("all: %q", got)
	}
	names(t, m.path("some"))
	for range 2 {
		for _, key := range []string{"all/a", "all/b", "some/b"} {
			if _, err := os.ReadFile(m.path(key)); !errors.Is(err, syscall.ENOENT) {
				t.Errorf("%s: %v", key, err)
			}
		}
		if got := fmt.Sprint(names(t, m.path("some"))); got != "[a]" {
			t.Errorf("some: %s", got)
		}
		if got := content(t, m.path("some/a")); got != "x" {
			t.Errorf("some/a: %q", got)
		}
		<-time.After(200*time.Millisecond + 2*tickOfSnapshots)
	}
	if keys := m.SkippedKeys(); len(keys) != 3 || m.Stats().Skipped.Load() != 3 || keys[0].Reason != "has no version: the origin gives no ETag" {
		t.Errorf("left out: %v", keys)
	}
	o.mu.Lock()
	o.bareHead = nil
	o.mu.Unlock()
	<-time.After(200*time.Millisecond + 2*tickOfSnapshots)
	if got := content(t, m.path("all/a")); got != "x" {
		t.Errorf("all/a with a version: %q", got)
	}
}
