package demo

import (
	"archive/tar"
	"bytes"
	"errors"
	"image/jpeg"
	"io"
	"os"
	"path"
	"path/filepath"
	"strings"
	"testing"
)

func TestDatasetIsAWebDatasetOfPictures(t *testing.T) {
	file, err := makeFile(t.TempDir(), "train/train-000000.tar", func(f *os.File) error { return writeShard(t.Context(), f, 0) })
	if err != nil {
		t.Fatal(err)
	}
	d := &dataset{shards: []sourceFile{file}}
	defer d.close()
	if n := len(file.data); n < 1<<20 || n > 16<<20 {
		t.Errorf("a shard has %d bytes, want some MB", n)
	}
	endings := map[string]int{}
	for r := tar.NewReader(bytes.NewReader(file.data)); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		endings[path.Ext(h.Name)]++
		if path.Ext(h.Name) == ".jpg" {
			if c, err := jpeg.DecodeConfig(r); err != nil || c.Width != pictureWidth || c.Height != pictureHeight {
				t.Errorf("%s: got %+v, %v", h.Name, c, err)
			}
		}
	}
	for _, e := range []string{".jpg", ".cls", ".json"} {
		if endings[e] != samplesInShard {
			t.Errorf("%d members end in %s, want %d", endings[e], e, samplesInShard)
		}
	}
}

func TestCompare(t *testing.T) {
	want := bytes.Repeat([]byte("shardwell"), 300_000) // more than one read
	file := filepath.Join(t.TempDir(), "f")
	for _, c := range []struct {
		name  string
		got   func() []byte
		error string // "" for none
	}{
		{"equal", func() []byte { return want }, ""},
		{"one byte", func() []byte { b := bytes.Clone(want); b[2_000_000]++; return b }, "at byte 2000000"},
		{"short", func() []byte { return want[:len(want)-1] }, "2699999 bytes long instead of 2700000"},
		{"long", func() []byte { return append(bytes.Clone(want), 0) }, "2700001 bytes long"},
	} {
		if err := os.WriteFile(file, c.got(), 0o600); err != nil {
			t.Fatal(err)
		}
		err := compare(t.Context(), file, want)
		switch {
		case c.error == "" && err != nil:
			t.Errorf("%s: %v", c.name, err)
		case c.error != "" && (!errors.Is(err, ErrDiffers) || !strings.Contains(err.Error(), c.error)):
			t.Errorf("%s: got %v, want %q", c.name, err, c.error)
		}
	}
}

func TestJudge(t *testing.T) {
	d := &demo{}
	good := []step{{name: "epoch 1", unique: 100, origin: 100}, {name: "epoch 2", unique: 100}, {name: "checkpoint", unique: 7, origin: 7}}
	if got := d.judge(good); len(got) != 0 {
		t.Errorf("all as promised: got %q", got)
	}
	good[1].sources.Origin = 5
	if got := d.judge(good); len(got) != 1 || got[0] != "epoch 2: nodes say that readers had 5 bytes from the origin" {
		t.Errorf("nodes that count otherwise than the origin: got %q", got)
	}
	bad := []step{{name: "epoch 1", unique: 100, origin: 101}, {name: "epoch 2", unique: 100, origin: 1}, {name: "checkpoint", unique: 7, origin: 14}}
	got := strings.Join(d.judge(bad), "\n")
	want := "epoch 1: the origin sent 101 bytes of 100, 1.01 copies\nepoch 2: the origin sent 1 bytes again\ncheckpoint: the origin sent 14 bytes of 7, 2.00 copies"
	if got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

func TestCleanEnviron(t *testing.T) {
	got := cleanEnviron([]string{"PATH=/bin", "SHARDWELL_BIND=x", "AWS_PROFILE=y", "http_proxy=z", "HTTP_PROXY=z", "HOME=/"})
	if want := "PATH=/bin HOME=/"; strings.Join(got, " ") != want {
		t.Errorf("got %q, want %q", got, want)
	}
}
