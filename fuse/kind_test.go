package fuse

import (
	"archive/tar"
	"bytes"
	"encoding/binary"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// What a file is, its first bytes tell, whatever its name: of a tar more is fetched after the first read, and
// of a model its header.
func TestFilesAreKnownByTheirContent(t *testing.T) {
	const size = 64 << 20
	o := newOrigin()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	if err := w.WriteHeader(&tar.Header{Name: "a.jpg", Size: size - 4096, Mode: 0o644}); err != nil {
		t.Fatal(err)
	}
	contents := map[string][]byte{
		"shard": b.Bytes(),
		"model": append(binary.LittleEndian.AppendUint64(nil, 9<<20), '{'),
	}
	for name, head := range contents {
		o.put(name, append(head, make([]byte, size-len(head))...))
	}
	m := mount(t, o, nil)
	for name, c := range map[string]struct{ least, most int64 }{
		"shard": {1 << 20, 16 << 20}, "model": {9 << 20, 9<<20 + 8},
	} {
		fd, err := unix.Open(m.path(name), unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		var p [4096]byte
		if _, err := unix.Read(fd, p[:]); err != nil {
			t.Fatal(err)
		}
		end := int64(0)
		for deadline := time.Now().Add(30 * time.Second); end < c.least && time.Now().Before(deadline); time.Sleep(time.Millisecond) {
			if v, ok := o.prefetched.Load(name); ok {
				end = max(end, v.(int64))
			}
		}
		unix.Close(fd)
		if end < c.least || end > c.most {
			t.Errorf("%s: fetched ahead up to %d, want %d to %d", name, end, c.least, c.most)
		}
	}
}
