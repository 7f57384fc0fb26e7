package tree

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/shardwell/shardwell/internal/chunk"
	"github.com/shardwell/shardwell/objstore"
)

func TestCheck(t *testing.T) {
	for name, want := range map[string]Reason{
		"a": OK, "...": OK, "a b": OK, "\xff": OK, "\xc3": OK, "\u00ff": OK, strings.Repeat("x", 255): OK,
		"": EmptyPart, ".": DotPart, "..": DotPart, "a\x00": NulByte, strings.Repeat("x", 256): LongPart,
	} {
		if got := (Rules{}).Check("d/", name); got != want {
			t.Errorf("%q: %v, want %v", name, got, want)
		}
		if want == OK && !utf8.ValidString(name) {
			want = NotUTF8
		}
		if got := (Rules{UTF8: true}).Check("d/", name); got != want {
			t.Errorf("%q where keys are UTF-8: %v, want %v", name, got, want)
		}
	}
	deep := strings.Repeat("d/", chunk.MaxKeyBytes/2-2)
	for name, want := range map[string]Reason{"abc": OK, "abcd": LongKey} {
		if got := (Rules{}).Check(deep, name); got != want {
			t.Errorf("key of %d bytes: %v, want %v", len(deep)+len(name), got, want)
		}
	}
}

func TestDirPrefix(t *testing.T) {
	for prefix, want := range map[string]string{"": "", "a": "a/", "a/": "a/", "a/b": "a/b/", "a//": "a//"} {
		if got := DirPrefix(prefix); got != want {
			t.Errorf("%q: %q, want %q", prefix, got, want)
		}
	}
}

func TestResolve(t *testing.T) {
	missing := fmt.Errorf("head: %w", objstore.ErrNotExist)
	denied := fmt.Errorf("denied: %w", objstore.ErrPermission)
	refused := fmt.Errorf("head: %w", objstore.ErrInvalid)
	broken := errors.New("connection reset")
	file := objstore.Info{Key: "p/n", Size: 5, ETag: "e"}
	below := objstore.Page{Objects: []objstore.Info{{Key: "p/n/x"}}}
	for name, c := range map[string]struct {
		a        Answers
		kind     Kind // 0 = none
		shadowed bool
		err      error
	}{
		"file":                   {Answers{Head: file}, File, false, nil},
		"directory":              {Answers{HeadErr: missing, Below: below}, Dir, false, nil},
		"both":                   {Answers{Head: file, Below: below}, Dir, true, nil},
		"nothing":                {Answers{HeadErr: missing}, 0, false, nil},
		"no right to list":       {Answers{Head: file, ListErr: denied}, File, false, nil},
		"no right at all":        {Answers{HeadErr: denied, ListErr: denied}, 0, false, objstore.ErrPermission},
		"none, no right to list": {Answers{HeadErr: missing, ListErr: denied}, 0, false, objstore.ErrPermission},
		"file, listing broken":   {Answers{Head: file, ListErr: broken}, 0, false, broken},
		"head refused":           {Answers{HeadErr: refused}, 0, false, nil},
		"all refused":            {Answers{HeadErr: refused, ListErr: refused}, 0, false, objstore.ErrInvalid},
		"head broken":            {Answers{HeadErr: broken}, 0, false, broken},
		"head denied, directory": {Answers{HeadErr: denied, Below: below}, Dir, false, nil},
	} {
		e, found, shadowed, err := Resolve("n", c.a)
		if found != (c.kind != 0) || e.Kind != c.kind || shadowed != c.shadowed || !errors.Is(err, c.err) || (err == nil) != (c.err == nil) {
			t.Errorf("%s: %+v, %v, %v, %v", name, e, found, shadowed, err)
		}
	}
}

// pages lists keys under prefix as an origin does; limit names a page.
func pages(keys []string, prefix string, limit int) (all []objstore.Page) {
	var page objstore.Page
	last := ""
	for _, key := range keys {
		if !strings.HasPrefix(key, prefix) {
			continue
		}
		part, _, below := strings.Cut(key[len(prefix):], "/")
		dir := prefix + part + "/"
		if below && dir == last {
			continue
		}
		if len(page.Objects)+len(page.Prefixes) == limit {
			page.Next = key
			all = append(all, page)
			page = objstore.Page{}
		}
		if below {
			last = dir
			page.Prefixes = append(page.Prefixes, dir)
		} else {
			page.Objects = append(page.Objects, objstore.Info{Key: key, Size: int64(len(key)), ETag: key})
		}
	}
	return append(all, page)
}

// toy lists a directory in the plainest way.
func toy(rules Rules, keys []string, prefix string) (entries map[string]Kind, skipped map[string]Reason) {
	entries, skipped = map[string]Kind{}, map[string]Reason{}
	for _, key := range keys {
		rest, ok := strings.CutPrefix(key, prefix)
		if !ok || rest == "" {
			continue
		}
		name, _, below := strings.Cut(rest, "/")
		if below && rules.Check(prefix, name) == OK {
			entries[name] = Dir
		}
	}
	for _, key := range keys {
		rest, ok := strings.CutPrefix(key, prefix)
		if !ok || rest == "" {
			continue
		}
		name, _, below := strings.Cut(rest, "/")
		switch why := rules.Check(prefix, name); {
		case below && why != OK:
			skipped[prefix+name+"/"] = why
		case below:
		case why != OK:
			skipped[key] = why
		case entries[name] == Dir:
			skipped[key] = Shadowed
		default:
			entries[name] = File
		}
	}
	return entries, skipped
}

func check(t *testing.T, rules Rules, keys []string, prefix string, limit int) {
	t.Helper()
	wantEntries, wantSkipped := toy(rules, keys, prefix)
	l := NewLister(prefix, rules)
	entries, skipped := map[string]Kind{}, map[string]Reason{}
	for _, p := range pages(keys, prefix, limit) {
		es, ss := l.Add(p)
		for _, e := range es {
			if entries[e.Name] != 0 {
				t.Fatalf("%q came twice", e.Name)
			}
			entries[e.Name] = e.Kind
			if e.Kind == File && (e.ETag != prefix+e.Name || e.Size != int64(len(e.ETag))) {
				t.Fatalf("%+v", e)
			}
		}
		for _, s := range ss {
			skipped[s.Key] = s.Reason
		}
		for name, kind := range wantEntries {
			if l.Passed(name, kind) && entries[name] == 0 {
				t.Fatalf("listing passed %q, which did not come out", name)
			}
		}
	}
	if fmt.Sprint(entries) != fmt.Sprint(wantEntries) || fmt.Sprint(skipped) != fmt.Sprint(wantSkipped) {
		t.Fatalf("keys %q under %q, %d a page:\n got %v, skipped %v\nwant %v, skipped %v", keys, prefix, limit, entries, skipped, wantEntries, wantSkipped)
	}
	if !l.Sorted() {
		t.Fatal("taken for unsorted")
	}
}

func FuzzLister(f *testing.F) {
	f.Add("a\na/b\na-1\na//c\n/x\n..\n../y\nd/\nd/e/f", "", uint8(2))
	f.Add("p/a\np/\np/b/c\nq", "p/", uint8(1))
	f.Add("a\xff/b\na\xff\nb\xc3\xbf", "", uint8(0x81))
	f.Add("blue\nblue-1\nblue-2\nblue/x\nc", "", uint8(1))
	f.Fuzz(func(t *testing.T, text, prefix string, limit uint8) {
		if len(text) > 2000 || prefix != "" && !strings.HasSuffix(prefix, "/") {
			return
		}
		keys := strings.Split(text, "\n")
		slices.Sort(keys)
		keys = slices.Compact(keys)
		keys = slices.DeleteFunc(keys, func(k string) bool { return k == "" })
		check(t, Rules{UTF8: limit&0x80 != 0}, keys, prefix, 1+int(limit%9))
	})
}

func TestListerRandom(t *testing.T) {
	seed := rand.Uint64()
	r := rand.New(rand.NewPCG(seed, 0))
	t.Logf("seed %d", seed)
	const alphabet = "aab./-\x00\xff"
	for range 3000 {
		var keys []string
		for range r.IntN(30) {
			b := make([]byte, 1+r.IntN(6))
			for i := range b {
				b[i] = alphabet[r.IntN(len(alphabet))]
			}
			keys = append(keys, string(b))
		}
		slices.Sort(keys)
		check(t, Rules{UTF8: r.IntN(2) == 0}, slices.Compact(keys), []string{"", "a/", "a/a/"}[r.IntN(3)], 1+r.IntN(5))
	}
}

// An origin that does not sort, one that does not know delimiters, and one that
// lists what it was not asked for.
func TestOddOrigins(t *testing.T) {
	l := NewLister("p/", Rules{})
	entries, _ := l.Add(objstore.Page{Objects: []objstore.Info{{Key: "p/z"}, {Key: "p/y"}}, Next: "1"})
	more, skipped := l.Add(objstore.Page{Objects: []objstore.Info{{Key: "p/a"}, {Key: "p/d/e"}, {Key: "p/d/f"}, {Key: "q"}}, Prefixes: []string{"p/z/", "x/", "p/no-slash"}})
	entries = append(entries, more...)
	var got []string
	for _, e := range entries {
		got = append(got, fmt.Sprint(e.Name, e.Kind))
	}
	slices.Sort(got)
	if want := []string{"a1", "d2", "y1", "z2"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	if l.Sorted() || l.Passed("a", File) {
		t.Error("taken for sorted")
	}
	var keys []string
	for _, s := range skipped {
		keys = append(keys, s.Key+" "+s.Reason.String())
	}
	slices.Sort(keys)
	if want := []string{"p/no-slash " + Foreign.String(), "p/z " + Shadowed.String(), "q " + Foreign.String(), "x/ " + Foreign.String()}; !slices.Equal(keys, want) {
		t.Errorf("skipped %q, want %q", keys, want)
	}
}
