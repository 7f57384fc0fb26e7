package objstoretest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/shardwell/shardwell/objstore"
)

// Target is an origin under test, empty at first.
type Target struct {
	Store objstore.Store
	// Put stores data as the new version of key; Delete removes key. They act on
	// the origin itself, not through Store.
	Put    func(key string, data []byte) error
	Delete func(key string) error
	// Holds tells which keys the origin can hold; nil means all.
	Holds func(key string) bool
}

// Factory makes a new, empty origin for one test.
type Factory func(t *testing.T) Target

// TestStore runs the conformance suite: what the comments of objstore.Store
// promise, of every implementation alike.
func TestStore(t *testing.T, factory Factory) {
	for _, c := range []struct {
		name string
		run  func(*testing.T, Target)
	}{
		{"Get", testGet},
		{"GetPinned", testGetPinned},
		{"GetWhileChanged", testGetWhileChanged},
		{"GetInvalid", testGetInvalid},
		{"Head", testHead},
		{"Keys", testKeys},
		{"List", testList},
		{"ListPages", testListPages},
		{"ListEmpty", testListEmpty},
		{"Context", testContext},
		{"Concurrent", testConcurrent},
	} {
		t.Run(c.name, func(t *testing.T) { c.run(t, factory(t)) })
	}
}

// put stores data and returns its description by Head.
func (tg Target) put(t *testing.T, key string, data []byte) objstore.Info {
	t.Helper()
	if err := tg.Put(key, data); err != nil {
		t.Fatalf("put %q: %v", key, err)
	}
	info, err := tg.Store.Head(t.Context(), key)
	if err != nil {
		t.Fatal(err)
	}
	if info.Key != key || info.Size != int64(len(data)) || info.ETag == "" || strings.Contains(info.ETag, `"`) {
		t.Fatalf("head %q of %d bytes: %+v", key, len(data), info)
	}
	return info
}

func read(ctx context.Context, s objstore.Store, info objstore.Info, off, n int64) ([]byte, error) {
	body, err := s.Get(ctx, info.Key, info.ETag, off, n)
	if err != nil {
		return nil, err
	}
	data, err := io.ReadAll(body)
	return data, errors.Join(err, body.Close())
}

// Bytes returns n random bytes, always the same for one seed.
func Bytes(seed uint64, n int) []byte {
	var key [32]byte
	for i := range 8 {
		key[i] = byte(seed >> (8 * i))
	}
	data := make([]byte, n)
	_, _ = rand.NewChaCha8(key).Read(data) // never fails
	return data
}

func testGet(t *testing.T, tg Target) {
	data := Bytes(1, 3<<20+7)
	info := tg.put(t, "dir/object.bin", data)
	size := int64(len(data))
	for _, r := range [][2]int64{{0, 1}, {0, size}, {size - 1, 1}, {1, size - 1}, {1 << 20, 1 << 20}, {12345, 100}} {
		got, err := read(t.Context(), tg.Store, info, r[0], r[1])
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got, data[r[0]:r[0]+r[1]]) {
			t.Errorf("range [%d, +%d): %d bytes, not those of the object", r[0], r[1], len(got))
		}
	}
	// A body that is closed early harms nobody.
	body, err := tg.Store.Get(t.Context(), info.Key, info.ETag, 0, size)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(body, make([]byte, 10)); err != nil {
		t.Error(err)
	}
	if err := body.Close(); err != nil {
		t.Error(err)
	}
}

func testGetPinned(t *testing.T, tg Target) {
	one, two := Bytes(1, 5000), Bytes(2, 5000)
	old := tg.put(t, "k", one)
	young := tg.put(t, "k", two) // same size
	if old.ETag == young.ETag {
		t.Fatalf("two versions have the ETag %q", old.ETag)
	}
	if _, err := read(t.Context(), tg.Store, old, 0, 5000); !errors.Is(err, objstore.ErrChanged) {
		t.Errorf("old version: %v, want ErrChanged", err)
	}
	if got, err := read(t.Context(), tg.Store, young, 0, 5000); err != nil || !bytes.Equal(got, two) {
		t.Errorf("new version: %d bytes, %v", len(got), err)
	}
	wrong := young
	wrong.ETag = "0123456789abcdef0123456789abcdef"
	if _, err := read(t.Context(), tg.Store, wrong, 10, 10); !errors.Is(err, objstore.ErrChanged) {
		t.Errorf("unknown version: %v, want ErrChanged", err)
	}
	shorter := tg.put(t, "k", one[:100])
	if _, err := read(t.Context(), tg.Store, young, 4000, 1000); !errors.Is(err, objstore.ErrChanged) {
		t.Errorf("range behind the end of the new version: %v, want ErrChanged", err)
	}
	if err := tg.Delete("k"); err != nil {
		t.Fatal(err)
	}
	_, err := read(t.Context(), tg.Store, shorter, 0, 100)
	if !errors.Is(err, objstore.ErrChanged) {
		t.Errorf("deleted: %v, want ErrChanged", err)
	}
	if err != nil && !strings.Contains(err.Error(), "get") {
		t.Errorf("error %q does not name the operation", err)
	}
}

// A body that is open while its object changes yields the old bytes or an error.
func testGetWhileChanged(t *testing.T, tg Target) {
	one, two := bytes.Repeat([]byte{1}, 8<<20), bytes.Repeat([]byte{2}, 8<<20)
	info := tg.put(t, "k", one)
	body, err := tg.Store.Get(t.Context(), info.Key, info.ETag, 0, info.Size)
	if err != nil {
		t.Fatal(err)
	}
	defer body.Close()
	if _, err := io.ReadFull(body, make([]byte, 1000)); err != nil {
		t.Fatal(err)
	}
	tg.put(t, "k", two)
	rest, err := io.ReadAll(body)
	if bytes.IndexByte(rest, 2) >= 0 {
		t.Error("bytes of two versions in one body")
	}
	if err == nil && len(rest) != len(one)-1000 {
		t.Errorf("%d bytes and no error", len(rest))
	}
}

func testGetInvalid(t *testing.T, tg Target) {
	info := tg.put(t, "k", Bytes(1, 100))
	for _, r := range [][2]int64{{0, 0}, {-1, 1}, {0, -5}, {100, 1}, {50, 51}, {0, 101}} {
		if got, err := read(t.Context(), tg.Store, info, r[0], r[1]); err == nil {
			t.Errorf("range [%d, +%d) of 100 bytes: %d bytes, no error", r[0], r[1], len(got))
		} else if !objstore.Final(err) && r[1] <= 0 {
			t.Errorf("range [%d, +%d): %v would be tried again", r[0], r[1], err)
		}
	}
	if _, err := tg.Store.Get(t.Context(), "", "x", 0, 1); err == nil {
		t.Error("the empty key can be read")
	}
}

func testHead(t *testing.T, tg Target) {
	before := time.Now().Add(-time.Minute)
	info := tg.put(t, "a/b", Bytes(1, 10))
	if info.ModTime.Before(before) || info.ModTime.After(time.Now().Add(time.Minute)) {
		t.Errorf("modified at %v", info.ModTime)
	}
	tg.put(t, "empty", nil)
	for _, key := range []string{"missing", "a", "a/b/c", "a/", "A/B"} {
		_, err := tg.Store.Head(t.Context(), key)
		if !errors.Is(err, objstore.ErrNotExist) {
			t.Errorf("head %q: %v, want ErrNotExist", key, err)
		} else if !strings.Contains(err.Error(), key) || !strings.Contains(err.Error(), "head") {
			t.Errorf("error %q does not name operation and key", err)
		}
	}
}

// OddKeys are keys that survive only where nothing cleans, folds or decodes them.
var OddKeys = []string{
	"plain", "with space", " leading", "trailing ", "plus+plus", "per%cent", "%2F", "%41", "a&b=c", "q?x=1#frag",
	"semi;colon", "quote\"'quote", "back\\slash", "tab\there", "new\nline", "cr\rhere", "bell\x07", "del\x7f", "ünïcode",
	"nfc-\u00e9", "nfd-e\u0301", "日本語/キー", "emoji-🦊", "a//b", "/rooted", "//", "dot/./dot", "up/../up", ".", "..",
	"../../etc/passwd", "dir/", "tilde~", "star*", "<xml>&amp;</xml>", "]]>", "a:b@c", "comma,", "{brace}", "$dollar", "=",
	"longsegment/" + strings.Repeat("x", 255), strings.Repeat("seg/", 200) + "end",
}

func testKeys(t *testing.T, tg Target) {
	var stored []string
	for i, key := range OddKeys {
		if tg.Holds != nil && !tg.Holds(key) {
			continue
		}
		data := fmt.Appendf(nil, "%d %q", i, key)
		if err := tg.Put(key, data); err != nil {
			t.Errorf("put %q: %v", key, err)
			continue
		}
		stored = append(stored, key)
		info, err := tg.Store.Head(t.Context(), key)
		if err != nil {
			t.Error(err)
			continue
		}
		if got, err := read(t.Context(), tg.Store, info, 0, info.Size); err != nil || !bytes.Equal(got, data) {
			t.Errorf("get %q: %q, %v", key, got, err)
		}
		page, err := tg.Store.List(t.Context(), objstore.ListRequest{Prefix: key})
		if err != nil {
			t.Error(err)
		} else if !slices.ContainsFunc(page.Objects, func(o objstore.Info) bool { return o.Key == key && o.ETag == info.ETag }) {
			t.Errorf("list of prefix %q: %+v", key, page)
		}
	}
	objects, _ := listAll(t, tg.Store, objstore.ListRequest{Limit: 5})
	slices.Sort(stored)
	slices.Sort(objects)
	if !slices.Equal(objects, stored) {
		t.Errorf("listed %q\nstored %q", objects, stored)
	}
}

// listAll returns all names, and fails the test when one comes twice.
func listAll(t *testing.T, s objstore.Store, req objstore.ListRequest) (objects, prefixes []string) {
	t.Helper()
	seen := make(map[string]bool)
	for range 10000 {
		page, err := s.List(t.Context(), req)
		if err != nil {
			t.Fatal(err)
		}
		if n := len(page.Objects) + len(page.Prefixes); req.Limit > 0 && n > req.Limit {
			t.Errorf("a page of %d entries, limit %d", n, req.Limit)
		}
		for _, o := range page.Objects {
			objects = append(objects, o.Key)
		}
		prefixes = append(prefixes, page.Prefixes...)
		if page.Next == "" {
			break
		}
		req.Token = page.Next
	}
	for _, name := range slices.Concat(objects, prefixes) {
		if seen[name] {
			t.Errorf("%+v: %q is listed twice", req, name)
		}
		seen[name] = true
	}
	return objects, prefixes
}

func testList(t *testing.T, tg Target) {
	data := map[string][]byte{"a": Bytes(1, 3), "b/c": Bytes(2, 30), "b/d/e": Bytes(3, 300)}
	for key, d := range data {
		tg.put(t, key, d)
	}
	page, err := tg.Store.List(t.Context(), objstore.ListRequest{Prefix: "b/", Delimiter: "/"})
	if err != nil {
		t.Fatal(err)
	}
	if len(page.Objects) != 1 || !slices.Equal(page.Prefixes, []string{"b/d/"}) || page.Next != "" {
		t.Fatalf("%+v", page)
	}
	info, err := tg.Store.Head(t.Context(), "b/c")
	if err != nil {
		t.Fatal(err)
	}
	got := page.Objects[0]
	if got.Key != info.Key || got.Size != info.Size || got.ETag != info.ETag {
		t.Errorf("listed %+v, head %+v", got, info)
	}
	if d := got.ModTime.Sub(info.ModTime).Abs(); d > time.Second {
		t.Errorf("listed time %v, head %v", got.ModTime, info.ModTime)
	}
}

// testListPages compares listings of all page sizes with a model.
func testListPages(t *testing.T, tg Target) {
	keys := []string{"0", "a", "a-b/1", "a-b/2", "a.txt", "a/1", "a/2", "a/3/x", "a/3/y", "a0", "aa/1", "b/1/2/3", "b/1/2/4", "c/",
		"d d/1", "d d/2", "d+d/1", "é/1", "é/2", "z"}
	for i := range 40 {
		keys = append(keys, fmt.Sprintf("many/%03d/f", i), fmt.Sprintf("shard-%06d.tar", i))
	}
	if tg.Holds != nil {
		keys = slices.DeleteFunc(keys, func(k string) bool { return !tg.Holds(k) })
	}
	for _, key := range keys {
		if err := tg.Put(key, []byte(key)); err != nil {
			t.Fatal(err)
		}
	}
	for _, prefix := range []string{"", "a", "a/", "a/3", "b/1/", "many/", "many/00", "shard-", "d d/", "d+", "é", "é/", "nothing", "z", "zz"} {
		for _, delimiter := range []string{"/", ""} {
			wantObjects, wantPrefixes := expect(keys, prefix, delimiter)
			for _, limit := range []int{1, 2, 3, 7, 1000, 0} {
				if limit > 0 && limit < 3 && delimiter == "" && len(wantObjects) > 40 {
					continue // many requests for little
				}
				req := objstore.ListRequest{Prefix: prefix, Delimiter: delimiter, Limit: limit}
				objects, prefixes := listAll(t, tg.Store, req)
				slices.Sort(objects)
				slices.Sort(prefixes)
				if !slices.Equal(objects, wantObjects) || !slices.Equal(prefixes, wantPrefixes) {
					t.Errorf("%+v:\n got %q %q\nwant %q %q", req, objects, prefixes, wantObjects, wantPrefixes)
				}
			}
		}
	}
}

// expect is the model of a listing.
func expect(keys []string, prefix, delimiter string) (objects, prefixes []string) {
	for _, key := range keys {
		rest, ok := strings.CutPrefix(key, prefix)
		if !ok {
			continue
		}
		if cut := strings.Index(rest, delimiter); delimiter != "" && cut >= 0 {
			prefixes = append(prefixes, prefix+rest[:cut+1])
		} else {
			objects = append(objects, key)
		}
	}
	slices.Sort(objects)
	slices.Sort(prefixes)
	return objects, slices.Compact(prefixes)
}

func testListEmpty(t *testing.T, tg Target) {
	for _, delimiter := range []string{"", "/"} {
		for _, prefix := range []string{"", "x", "x/y/", "a//b"} {
			page, err := tg.Store.List(t.Context(), objstore.ListRequest{Prefix: prefix, Delimiter: delimiter})
			if err != nil || len(page.Objects)+len(page.Prefixes) != 0 || page.Next != "" {
				t.Errorf("list %q by %q: %+v, %v", prefix, delimiter, page, err)
			}
		}
	}
}

func testContext(t *testing.T, tg Target) {
	info := tg.put(t, "k", Bytes(1, 1000))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := read(ctx, tg.Store, info, 0, 10)
	_, err2 := tg.Store.Head(ctx, "k")
	_, err3 := tg.Store.List(ctx, objstore.ListRequest{})
	for i, err := range []error{err, err2, err3} {
		if !errors.Is(err, context.Canceled) {
			t.Errorf("%v after cancel: %v", objstore.Op(i), err)
		}
	}
}

func testConcurrent(t *testing.T, tg Target) {
	data := Bytes(4, 1<<20)
	info := tg.put(t, "k", data)
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for j := range 4 {
				off := int64(i*4+j) << 15
				got, err := read(t.Context(), tg.Store, info, off, 1<<15)
				if err != nil || !bytes.Equal(got, data[off:off+1<<15]) {
					t.Errorf("range at %d: %d bytes, %v", off, len(got), err)
				}
			}
		})
	}
	wg.Wait()
}
