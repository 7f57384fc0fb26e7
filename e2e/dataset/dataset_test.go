package dataset_test

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/shardwell/shardwell/e2e/dataset"
)

func TestRandomIsTheSameFromEverywhere(t *testing.T) {
	r := dataset.Random{Seed: 7, Size: 300_001}
	whole := r.Bytes()
	for _, at := range [][2]int64{{0, 1}, {65535, 2}, {65536, 65536}, {131000, 150000}, {300_000, 1}} {
		got := make([]byte, at[1])
		if _, err := r.ReadAt(got, at[0]); err != nil || !bytes.Equal(got, whole[at[0]:at[0]+at[1]]) {
			t.Errorf("range %v differs from the whole (%v)", at, err)
		}
	}
	if n, err := r.ReadAt(make([]byte, 10), 299_995); n != 6 || err != io.EOF {
		t.Errorf("behind the end: %d, %v", n, err)
	}
}

func TestCompareFindsEveryDifference(t *testing.T) {
	r := dataset.Random{Seed: 7, Size: 3<<20 + 5}
	good := r.Bytes()
	bad := bytes.Clone(good)
	bad[2<<20+3] ^= 1
	zeros := bytes.Clone(good)
	clear(zeros[100:200])
	for _, c := range []struct {
		name string
		got  io.Reader
		want string // in the error, "" for none
	}{
		{"equal", bytes.NewReader(good), ""},
		{"equal in small reads", iotest.HalfReader(bytes.NewReader(good)), ""},
		{"flipped", bytes.NewReader(bad), "differs at byte 2097155"},
		{"zeros", bytes.NewReader(zeros), "(zeros)"},
		{"short", bytes.NewReader(good[:len(good)-1]), "ends after"},
		{"long", io.MultiReader(bytes.NewReader(good), strings.NewReader("x")), "longer"},
		{"failing", io.MultiReader(bytes.NewReader(good[:10]), iotest.ErrReader(errors.New("boom"))), "boom"},
	} {
		err := dataset.Compare(c.got, r, r.Size)
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want an error with %q", c.name, err, c.want)
		}
	}
}
