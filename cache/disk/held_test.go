package disk

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/shardwell/shardwell/cache/evict"
)

// mapFile maps a file for the time of the test, as a process does that reads by passthrough.
func mapFile(t *testing.T, file *os.File, size int) []byte {
	t.Helper()
	conn, err := file.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var mapped []byte
	var mapErr error
	if err := conn.Control(func(fd uintptr) { mapped, mapErr = unix.Mmap(int(fd), 0, size, unix.PROT_READ, unix.MAP_SHARED) }); err != nil || mapErr != nil {
		t.Fatal(err, mapErr)
	}
	t.Cleanup(func() { _ = unix.Munmap(mapped) })
	return mapped
}

// sendfile has the kernel send n bytes of a file from off on, and returns them.
func sendfile(t *testing.T, file *os.File, off int64, n int) []byte {
	t.Helper()
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(pair[0])
	defer unix.Close(pair[1])
	conn, err := file.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	got, buf := []byte{}, make([]byte, n)
	for len(got) < n {
		sent := 0
		err := conn.Control(func(fd uintptr) { sent, err = unix.Sendfile(pair[0], int(fd), &off, n-len(got)) })
		if err != nil || sent == 0 {
			t.Fatalf("sendfile: %d bytes, %v", sent, err)
		}
		for end := len(got) + sent; len(got) < end; {
			m, err := unix.Read(pair[1], buf[:end-len(got)])
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, buf[:m]...)
		}
	}
	return got
}

// crowd stores other objects until everything that may go has gone.
func crowd(t *testing.T, d *Dir, prefix string) {
	t.Helper()
	for i := range 60 {
		f := newContent(fmt.Sprint(prefix, i), 2*testBlock).acquire(t, d)
		for b := range f.Blocks() {
			if err := f.Put(newContent(fmt.Sprint(prefix, i), 2*testBlock).block(small, b)); err != nil && !errors.Is(err, ErrNotAdmitted) {
				t.Fatal(err)
			}
		}
		f.Release()
		d.relieve(context.Background())
	}
}

// TestHeldOverEviction has the kernel read a file, by itself, by a mapping and by sendfile, and the daemon,
// while everything else is evicted; then gives it up, keeping the mapping. See "Open files" in the package comment.
func TestHeldOverEviction(t *testing.T) {
	for _, name := range []string{"a/copyheld", "a/mixheld", "a/ownheld"} {
		t.Run(name, func(t *testing.T) {
			p := &testPolicy{classes: map[string]evict.Class{"a": evict.Recent, "z": evict.Pinned}}
			cfg := testConfig(t.TempDir())
			cfg.Policy, cfg.BudgetBytes, cfg.TransitBytes = p, 96*testBlock, 16*testBlock
			d := openDir(t, cfg)
			c := newContent(name, 16*testBlock)
			f := c.acquire(t, d)
			c.putAll(t, f)
			backing, ok := f.Backing()
			if !ok {
				t.Fatal("not given to the kernel")
			}
			mapped := mapFile(t, backing, len(c.data))
			piece, ok := f.Lend(9)
			if !ok {
				t.Fatal("not lent")
			}
			half := piece.Len / 2
			sent := sendfile(t, piece.File, piece.Offset, half)
			crowd(t, d, "a/copy")
			crowd(t, d, "z/own")
			sent = append(sent, sendfile(t, piece.File, piece.Offset+int64(half), piece.Len-half)...)
			if !bytes.Equal(sent, c.data[piece.Offset:piece.Offset+int64(piece.Len)]) {
				t.Error("other bytes were sent")
			}
			if !f.Complete() || !bytes.Equal(mapped, c.data) {
				t.Error("an object in use lost blocks")
			}
			c.check(t, f)
			if used := onDisk(t, d); used > 96*testBlock {
				t.Errorf("%d bytes on the disk", used)
			}
			f.Return(9)
			f.Release()
			crowd(t, d, "z/ownmore")
			d.victims = [kinds]victims{} // a second passes: walks rest no more
			crowd(t, d, "a/copymore")
			if f, err := d.Find(c.id); err == nil {
				if f.Complete() {
					t.Error("an object out of use was not evicted")
				}
				f.Release()
			}
			d.trim(0, 1000)
			if !bytes.Equal(mapped, c.data) {
				t.Error("who has the old file mapped sees other bytes")
			}
			checkLedger(t, d)
		})
	}
}

// TestUnlinkedInUse serves readers and the cluster from a file that had to be unlinked while it is in use, and
// counts its space until it is free.
func TestUnlinkedInUse(t *testing.T) {
	d := openDir(t, testConfig(t.TempDir()))
	c := newContent("key", 4*testBlock)
	f := c.acquire(t, d)
	c.putAll(t, f)
	used, _ := d.Usage()
	f.doom(f.body.Load(), errors.New("its sidecar takes no note of damage"))
	if onDisk(t, d) != 0 {
		t.Error("still on the disk")
	}
	if now, _ := d.Usage(); now != used {
		t.Errorf("%d bytes are counted, %d are taken", now, used)
	}
	other := c.acquire(t, d)
	c.check(t, other)
	piece, ok := other.Lend(2)
	if !ok || !bytes.Equal(sendfile(t, piece.File, piece.Offset, piece.Len), c.data[piece.Offset:piece.Offset+int64(piece.Len)]) {
		t.Error("the cluster does not get what is there until the last close")
	}
	other.Return(2)
	other.Release()
	f.Release()
	if now, _ := d.Usage(); now != 0 {
		t.Errorf("%d bytes are counted after the last close", now)
	}
	again := c.acquire(t, d)
	defer again.Release()
	if again.PresentBlocks() != 0 {
		t.Error("what was unlinked came back")
	}
}
