package disk

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/shardwell/shardwell/internal/chunk"
)

const damagedBlocks = 6

// metaLayout returns where the parts of c's sidecar are.
func metaLayout(c content) layout {
	return layoutOf(len(c.obj.AppendBinary(nil)), small.Blocks(c.obj.Size))
}

// TestDamage damages a cache in every way of the table, at rest, and reads it again
// in the same boot: right bytes or a miss, the reason counted and logged, and
// whole again after a new Put.
func TestDamage(t *testing.T) {
	c := newContent("key", damagedBlocks*chunk.MinBlockBytes)
	twin := newContent("twin", damagedBlocks*chunk.MinBlockBytes)
	l := metaLayout(c)
	tests := []struct {
		name   string
		damage func(t *testing.T, data, meta, twinData, twinMeta string)
		want   Loss
		count  int64 // how often the reason is counted for c
	}{
		{"a flipped bit in data", func(t *testing.T, data, _, _, _ string) {
			flipByte(t, data, 2*chunk.MinBlockBytes+5)
		}, LossChecksum, 1},
		{"a zeroed page in data", func(t *testing.T, data, _, _, _ string) {
			writeAt(t, data, make([]byte, pageBytes), chunk.MinBlockBytes)
		}, LossChecksum, 1},
		{"a flipped bit in a checksum", func(t *testing.T, _, meta, _, _ string) {
			flipByte(t, meta, l.sums+4*3)
		}, LossChecksum, 1},
		{"a flipped bit in the header", func(t *testing.T, _, meta, _, _ string) {
			flipByte(t, meta, 20)
		}, LossSidecar, 1},
		{"a flipped bit in the identity", func(t *testing.T, _, meta, _, _ string) {
			flipByte(t, meta, identityOffset+8)
		}, LossSidecar, 1},
		{"a zeroed sidecar", func(t *testing.T, _, meta, _, _ string) {
			writeAt(t, meta, make([]byte, l.end), 0)
		}, LossSidecar, 1},
		{"an empty sidecar", func(t *testing.T, _, meta, _, _ string) { truncate(t, meta, 0) }, LossSidecar, 1},
		{"a truncated sidecar", func(t *testing.T, _, meta, _, _ string) { truncate(t, meta, l.end-4) }, LossTruncated, 1},
		{"truncated data", func(t *testing.T, data, _, _, _ string) { truncate(t, data, 5*chunk.MinBlockBytes) }, LossTruncated, 1},
		{"no data", func(t *testing.T, data, _, _, _ string) { os.Remove(data) }, LossNoData, 1},
		{"a sidecar of another version", func(t *testing.T, _, meta, _, _ string) {
			writeAt(t, meta, binary.LittleEndian.AppendUint32(nil, LayoutVersion+1), 8)
		}, LossVersion, 1},
		{"a sidecar of another geometry", func(t *testing.T, _, meta, _, _ string) {
			head := appendHeader(nil, c.obj, chunk.DefaultGeometry(), stamp{})
			writeAt(t, meta, head, 0)
		}, LossGeometry, 1},
		{"swapped sidecars", func(t *testing.T, _, meta, _, twinMeta string) { swap(t, meta, twinMeta) }, LossIdentity, 1},
		{"swapped data", func(t *testing.T, data, _, twinData, _ string) { swap(t, data, twinData) }, LossChecksum, damagedBlocks},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			path := t.TempDir()
			d := openDir(t, testConfig(path))
			c.store(t, d)
			twin.store(t, d)
			dataPath, metaPath := d.dataPath(c.id), d.metaPath(c.id)
			twinData, twinMeta := d.dataPath(twin.id), d.metaPath(twin.id)
			if err := d.Close(); err != nil {
				t.Fatal(err)
			}
			tt.damage(t, dataPath, metaPath, twinData, twinMeta)

			rep, err := VerifyDir(context.Background(), path, VerifyOptions{})
			if err != nil || rep.Damaged == 0 || !strings.Contains(rep.Damage[0].String(), path) {
				t.Errorf("verify says %+v, %v", rep, err)
			}
			var logged bytes.Buffer
			cfg := testConfig(path)
			cfg.Logger = slog.New(slog.NewTextHandler(&logged, nil))
			d = openDir(t, cfg)
			f := c.acquire(t, d)
			defer f.Release()
			if tt.name == "swapped data" && f.Trusted() {
				t.Error("another data file is trusted")
			}
			p := make([]byte, small.BlockBytes)
			for b := range f.Blocks() {
				n, err := f.ReadAt(p, int64(b)*small.BlockBytes)
				if err == nil && !bytes.Equal(p[:n], c.block(small, b).Data) {
					t.Fatalf("block %d: wrong bytes", b)
				}
				if err != nil && !errors.Is(err, chunk.ErrCorrupt) && !errors.Is(err, ErrNotPresent) {
					t.Errorf("block %d: %v", b, err)
				}
			}
			if got := d.stats.Lost[tt.want].Load(); got != tt.count {
				t.Errorf("%v counted %d times, want %d", tt.want, got, tt.count)
			}
			if !strings.Contains(logged.String(), "reason="+tt.want.String()) {
				t.Errorf("no reason in the log: %s", &logged)
			}
			c.putAll(t, f)
			c.check(t, f)
			if _, ok := f.Backing(); !ok {
				t.Error("not given out after it was stored again")
			}
			if names, _ := filepath.Glob(d.path(quarantineName, "*")); len(names) == 0 && tt.want != LossNoData {
				t.Error("nothing was set aside")
			}
			// The mark of the clean stop counted what the damage took away.
			if err := d.walk(context.Background(), nil); err != nil {
				t.Fatal(err)
			}
			checkLedger(t, d)
		})
	}
}

func truncate(t *testing.T, name string, size int64) {
	t.Helper()
	if err := os.Truncate(name, size); err != nil {
		t.Fatal(err)
	}
}

func swap(t *testing.T, a, b string) {
	t.Helper()
	temp := a + "x"
	for _, r := range [][2]string{{a, temp}, {b, a}, {temp, b}} {
		if err := os.Rename(r[0], r[1]); err != nil {
			t.Fatal(err)
		}
	}
}

// TestFalsePresence sets presence bits of blocks that were never stored.
func TestFalsePresence(t *testing.T) {
	c := newContent("key", damagedBlocks*chunk.MinBlockBytes)
	l := metaLayout(c)
	path := t.TempDir()
	d := openDir(t, testConfig(path))
	f := c.acquire(t, d)
	for b := range uint32(damagedBlocks - 1) {
		if err := f.Put(c.block(small, b)); err != nil {
			t.Fatal(err)
		}
	}
	metaPath := d.metaPath(c.id)
	f.Release()
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	all := []byte{1<<damagedBlocks - 1}

	writeAt(t, metaPath, all, l.bits)
	d = openDir(t, testConfig(path))
	f = c.acquire(t, d)
	if f.Complete() || f.Has(damagedBlocks-1) {
		t.Error("a bit without a checksum makes a block present")
	}
	f.Release()
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}

	writeAt(t, metaPath, all, l.bits)
	writeAt(t, metaPath, []byte{1, 2, 3, 4}, l.sums+4*(damagedBlocks-1))
	d = openDir(t, testConfig(path))
	f = c.acquire(t, d)
	defer f.Release()
	if _, ok := f.Backing(); ok {
		t.Error("a file with a hole is given to the kernel")
	}
	if _, err := f.ReadAt(make([]byte, len(c.data)), 0); !errors.Is(err, chunk.ErrCorrupt) {
		t.Errorf("read of a hole: %v", err)
	}
	c.putAll(t, f)
	c.check(t, f)
	if _, ok := f.Backing(); !ok {
		t.Error("not given out after it was made whole")
	}
}

// TestOtherBoot checks blocks before first use after a boot, and trusts again after.
func TestOtherBoot(t *testing.T) {
	path := t.TempDir()
	c := newContent("key", damagedBlocks*chunk.MinBlockBytes)
	d := openDir(t, testConfig(path))
	c.store(t, d)
	dataPath := d.dataPath(c.id)
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	flipByte(t, dataPath, 10)

	cfg := testConfig(path)
	cfg.BootID = "boot-two"
	d = openDir(t, cfg)
	f := c.acquire(t, d)
	if _, ok := f.Backing(); ok || f.Trusted() || !f.Complete() {
		t.Error("trusted across a boot")
	}
	if _, ok := f.Lend(0); ok {
		t.Error("a damaged block was lent")
	}
	if f.Has(0) {
		t.Error("the damaged block is still there")
	}
	piece, ok := f.Lend(1)
	if !ok || piece.CRC != c.block(small, 1).CRC || piece.Offset != small.BlockBytes || piece.Len != int(small.BlockBytes) {
		t.Errorf("lent %+v, %v", piece, ok)
	}
	c.putAll(t, f)
	if f.Trusted() {
		t.Error("trusted before all blocks were read")
	}
	// A restart in the midst of it begins anew: what was checked is not written down yet.
	f.Release()
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	d = openDir(t, cfg)
	f = c.acquire(t, d)
	if f.Trusted() {
		t.Error("trusted although not all was checked")
	}
	c.check(t, f)
	if _, ok := f.Backing(); !ok {
		t.Error("not trusted although all was checked")
	}
	f.Release()
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	d = openDir(t, cfg)
	f = c.acquire(t, d)
	defer f.Release()
	if _, ok := f.Backing(); !ok {
		t.Error("the stamp was not renewed")
	}
}

// SEMANTICS B5: A file that is complete on the node when it is opened is read by the kernel itself
// (passthrough), where the kernel can and no earlier handle reads it through the daemon; damage that
// happens on the disk after the bytes were stored is then found by `shardwell verify`, not by the read. `--verify-reads always` turns passthrough off and checks every read.
func TestDamageUnderTheKernel(t *testing.T) {
	cfg := testConfig(t.TempDir())
	d := openDir(t, cfg)
	c := newContent("key", 2*chunk.MinBlockBytes)
	f := c.acquire(t, d)
	c.putAll(t, f)
	flipByte(t, d.dataPath(c.id), 7)
	backing, ok := f.Backing()
	if !ok {
		t.Fatal("a complete file is not given to the kernel")
	}
	var b [1]byte
	if _, err := backing.ReadAt(b[:], 7); err != nil || b[0] == c.data[7] {
		t.Fatalf("the damage is not seen through the backing file: %v", err)
	}
	f.Release()
	rep, err := VerifyDir(context.Background(), cfg.Path, VerifyOptions{})
	if err != nil || rep.Damaged != 1 || rep.Damage[0].Block != 0 || rep.Damage[0].Object != c.obj.URI() {
		t.Fatalf("verify says %+v, %v", rep, err)
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}

	cfg.Verify = VerifyAlways
	d = openDir(t, cfg)
	f = c.acquire(t, d)
	defer f.Release()
	if _, ok := f.Backing(); ok {
		t.Error("a file was given to the kernel although every read is to be checked")
	}
	if _, err := f.ReadAt(b[:], 7); !errors.Is(err, chunk.ErrCorrupt) {
		t.Errorf("read of the damage: %v", err)
	}
}

func TestSuspect(t *testing.T) {
	d := openDir(t, testConfig(t.TempDir()))
	c := newContent("key", 3*chunk.MinBlockBytes)
	f := c.acquire(t, d)
	defer f.Release()
	c.putAll(t, f)
	flipByte(t, d.dataPath(c.id), chunk.MinBlockBytes)
	if f.Suspect(0); !f.Has(0) {
		t.Error("a good block was dropped")
	}
	if f.Suspect(1); f.Has(1) {
		t.Error("a damaged block was kept")
	}
	f.Suspect(1)
	f.Suspect(99)
	if n := d.stats.Lost[LossChecksum].Load(); n != 1 {
		t.Errorf("%d blocks counted as damaged", n)
	}
	if _, ok := f.Backing(); ok {
		t.Error("a file that lacks a block is given out")
	}
}

// TestVerifyRepair names the damage beside a running node and repairs without one.
func TestVerifyRepair(t *testing.T) {
	path := t.TempDir()
	a, b := newContent("a", 3*chunk.MinBlockBytes), newContent("b", 100)
	d := openDir(t, testConfig(path))
	a.store(t, d)
	b.store(t, d)
	flipByte(t, d.dataPath(a.id), 2*chunk.MinBlockBytes+1)
	truncate(t, d.dataPath(b.id), 5)

	var last Progress
	rep, err := VerifyDir(context.Background(), path, VerifyOptions{Progress: func(p Progress) { last = p }})
	if err != nil || rep.Damaged != 2 || rep.Objects != 2 || rep.Blocks != 3 {
		t.Fatalf("%+v, %v", rep, err)
	}
	if last.Objects == 0 || last.Bytes == 0 || last.TotalBytes < last.Bytes {
		t.Errorf("last progress %+v", last)
	}
	for _, dmg := range rep.Damage {
		if dmg.ID == a.id && (dmg.Block != 2 || dmg.Offset != 2*chunk.MinBlockBytes || dmg.Object != a.obj.URI() || dmg.File != d.dataPath(a.id)) {
			t.Errorf("%+v", dmg)
		}
		if dmg.ID == b.id && (dmg.Block != WholeObject || dmg.Reason != LossTruncated) {
			t.Errorf("%+v", dmg)
		}
	}
	if _, err := VerifyDir(context.Background(), path, VerifyOptions{Repair: true}); err == nil || !strings.Contains(err.Error(), "in use") {
		t.Errorf("repair beside a node: %v", err)
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	if rep, err = VerifyDir(context.Background(), path, VerifyOptions{Repair: true}); err != nil || rep.Damaged != 2 {
		t.Fatalf("%+v, %v", rep, err)
	}
	if rep, err = VerifyDir(context.Background(), path, VerifyOptions{}); err != nil || rep.Damaged != 0 || rep.Blocks != 2 {
		t.Fatalf("after the repair: %+v, %v", rep, err)
	}
	if _, err := VerifyDir(context.Background(), t.TempDir(), VerifyOptions{}); err == nil {
		t.Error("an empty directory passes")
	}
}
