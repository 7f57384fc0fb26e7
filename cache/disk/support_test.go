package disk

import (
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/shardwell/shardwell/cache/evict"
	"github.com/shardwell/shardwell/internal/chunk"
)

// flipByte inverts one byte of a file, if it has it.
func flipByte(t testing.TB, name string, off int64) {
	t.Helper()
	f, err := os.OpenFile(name, os.O_RDWR, 0)
	if err != nil {
		return // a fault left no file
	}
	defer f.Close()
	var b [1]byte
	if _, err := f.ReadAt(b[:], off); err != nil {
		return
	}
	b[0] ^= 0xff
	if _, err := f.WriteAt(b[:], off); err != nil {
		t.Error(err)
	}
}

func writeAt(t testing.TB, name string, p []byte, off int64) {
	t.Helper()
	f, err := os.OpenFile(name, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteAt(p, off); err != nil {
		t.Fatal(err)
	}
}

func victim(id chunk.ObjectID) evict.Candidate {
	return evict.Candidate{ID: id, LastUse: math.MaxInt64}
}

// onDisk adds up what lies below objects/, with the file system's own figures.
func onDisk(t testing.TB, d *Dir) (used int64) {
	t.Helper()
	err := filepath.WalkDir(d.path(objectsName), func(_ string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		info, err := e.Info()
		if err == nil {
			used += info.Sys().(*syscall.Stat_t).Blocks * 512
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return used
}

// checkLedger compares the accounting with the disk, when nothing is at work.
func checkLedger(t testing.TB, d *Dir) {
	t.Helper()
	var sum use
	for _, n := range d.ledger.byPrefix {
		sum = sum.plus(n)
	}
	if got, want := d.ledger.sum, onDisk(t, d); got.used != want || sum != got || got.copies < 0 || got.copies > want {
		t.Errorf("ledger says %+v bytes (%+v by prefix), the disk %d", got, sum, want)
	}
	if d.ledger.reserved != (use{}) {
		t.Errorf("%+v bytes are still reserved", d.ledger.reserved)
	}
}

// memoryDir is t.TempDir in memory where that is possible, for tests that make
// thousands of files.
func memoryDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "shardwell-test-")
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}
