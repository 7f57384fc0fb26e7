package node

import (
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shardwell/shardwell/fuse"
)

// A mount in use is taken from its directory, who has it open reads on, and the next one is made
// there at once. What is not mounted is no error.
func TestRelease(t *testing.T) {
	needMounts(t)
	o := newOrigin(t, map[string][]byte{"a": []byte("hello"), "b": []byte("more")})
	n := start(t, testConfig(t, o.URL()))
	dir := mountpoint(t)
	mustMount(t, n, "s3://data/", dir, nil)
	inside := exec.Command("sh", "-c", "cd "+dir+" && cat a && read x && cat b")
	in, err := inside.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := inside.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := inside.Start(); err != nil {
		t.Fatal(err)
	}
	var said [16]byte
	if k, err := out.Read(said[:]); err != nil || string(said[:k]) != "hello" {
		t.Fatalf("read %q, %v", said[:k], err)
	}
	u, err := n.Usage(t.Context(), dir)
	if err != nil || u.Bytes < 5 || u.Objects < 1 {
		t.Errorf("usage: %+v, %v", u, err)
	}
	if err := n.Release(t.Context(), dir); err != nil {
		t.Fatal(err)
	}
	if e, ok := fuse.FindMount(dir); ok {
		t.Errorf("%s is still mounted", e.Dir)
	}
	mustMount(t, n, "s3://data/", dir, nil)
	if _, err := in.Write([]byte("\n")); err != nil {
		t.Fatal(err)
	}
	if k, err := out.Read(said[:]); err != nil || string(said[:k]) != "more" {
		t.Errorf("after the release: read %q, %v", said[:k], err)
	}
	if err := inside.Wait(); err != nil {
		t.Error(err)
	}
	for _, d := range []string{dir, dir, filepath.Join(dir, "never")} {
		if err := n.Release(t.Context(), d); err != nil {
			t.Errorf("release %s: %v", d, err)
		}
	}
	if _, err := n.Usage(t.Context(), dir); err == nil {
		t.Error("usage of what is not mounted")
	}
}

// A released mount that somebody is inside of, or has copied, ends when nothing in it has been open for a time.
func TestReleasedMountEnds(t *testing.T) {
	needMounts(t)
	o := newOrigin(t, map[string][]byte{"a": []byte("hello")})
	n := start(t, testConfig(t, o.URL()))
	dir, elsewhere := mountpoint(t), mountpoint(t)
	mustMount(t, n, "s3://data/", dir, nil)
	if err := unix.Mount(dir, elsewhere, "", unix.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
	defer unix.Unmount(elsewhere, unix.MNT_DETACH)
	m, _ := n.mounts.at(dir)
	f, err := openFile(filepath.Join(elsewhere, "a"))
	if err != nil {
		t.Fatal(err)
	}
	if err := n.Release(t.Context(), dir); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		m.endWhenIdle(t.Context(), 200*time.Millisecond)
	}()
	if got, err := f.readAll(); err != nil || string(got) != "hello" {
		t.Errorf("what is open reads %q, %v", got, err)
	}
	f.close()
	<-ended
	if fuse.Served(elsewhere) {
		t.Error("the copy is still served")
	}
}
