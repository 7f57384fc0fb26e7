package warm

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/shardwell/shardwell/internal/chunk"
)

func TestTemplates(t *testing.T) {
	for _, tt := range []struct {
		in   string
		want string // joined by spaces, "" for an error
	}{
		{"a", "a"},
		{"a{b,c}d", "abd acd"},
		{"{08..11}", "08 09 10 11"},
		{"{8..11}", "8 9 10 11"},
		{"{3..1}", "3 2 1"},
		{"{0..10..5}", "0 5 10"},
		{"{10..0..-5}", "10 5 0"},
		{"{-1..1}", "-1 0 1"},
		{"{-01..01}", "-01 000 001"},
		{"{a..c}", "a b c"},
		{"{a,b{1..2}}x", "ax b1x b2x"},
		{"{a,{b,{c,d}}}", "a b c d"},
		{"{x}", "{x}"},
		{"{}", "{}"},
		{"{1..b}", "{1..b}"},
		{"{,.idx}", " .idx"},
		{"t-{0..1}-{a,b}", "t-0-a t-0-b t-1-a t-1-b"},
		{`\{a,b\}`, `\{a,b\}`},
		{`{a\,b,c}`, `a\,b c`},
		{"a,b", "a,b"},
		{"{1..100000000000}", ""},
		{"{a", ""},
		{"a}", ""},
		{"{a,{b}", ""},
		{strings.Repeat("{a,", 40) + strings.Repeat("}", 40), ""},
	} {
		tmpl, err := parseTemplate(tt.in)
		if err != nil {
			if usage := new(UsageError); tt.want != "" || !errors.As(err, &usage) {
				t.Errorf("%q: %v", tt.in, err)
			}
			continue
		}
		got := slices.Collect(tmpl.all())
		if strings.Join(got, " ") != tt.want || tmpl.count() != uint64(len(got)) {
			t.Errorf("%q: %q, counted as %d, want %q", tt.in, got, tmpl.count(), tt.want)
		}
	}
}

// What a template is said to expand to is what it does.
func FuzzTemplate(f *testing.F) {
	for _, s := range []string{"a{b,c{1..3}}", "{a..c..2}", `\{{x}`, "{1..9}{1..9}{1..9}"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		tmpl, err := parseTemplate(s)
		if err != nil || tmpl.count() > 10_000 {
			return
		}
		n := uint64(0)
		for range tmpl.all() {
			n++
		}
		if n != tmpl.count() {
			t.Errorf("%q: %d texts, counted as %d", s, n, tmpl.count())
		}
	})
}

func TestGlobs(t *testing.T) {
	for _, tt := range []struct {
		pattern, key string
		want         bool
	}{
		{"a/*.tar", "a/1.tar", true},
		{"a/*.tar", "a/b/1.tar", false},
		{"a/?.tar", "a/12.tar", false},
		{"a/[0-9].tar", "a/3.tar", true},
		{"a/[!0-9].tar", "a/3.tar", false},
		{"a/**", "a/b/c", true},
		{"a/**", "a", false},
		{"a/**", "ab/c", false},
		{"a/**/z", "a/z", true},
		{"a/**/z", "a/b/c/z", true},
		{"a/**/z", "a/b/c/y", false},
		{"**/b/**/d", "a/b/b/c/d", true},
		{"*/", "a/b/c", true},
		{`a\*`, "a*", true},
		{`a\*`, "ab", false},
		{strings.Repeat("**/a/", 30) + "b", strings.Repeat("a/", 100) + "c", false},
	} {
		g, err := parseGlob(tt.pattern)
		if err != nil || g.match(tt.key) != tt.want {
			t.Errorf("%q and %q: not %v (%v)", tt.pattern, tt.key, tt.want, err)
		}
		if _, p := Matcher(tt.pattern); tt.want && !strings.HasPrefix(tt.key, p) {
			t.Errorf("%q: does not begin with %q", tt.key, p)
		}
	}
	if _, err := parseGlob("a/[b"); err == nil {
		t.Error("a pattern without its end is taken")
	}
}

func TestExpand(t *testing.T) {
	if got, err := Expand(`a-{0..1}\{`, 2); err != nil || !slices.Equal(got, []string{"a-0{", "a-1{"}) {
		t.Errorf("%q, %v", got, err)
	}
	if _, err := Expand("{0..2}", 2); err == nil {
		t.Error("more names than there may be")
	}
}

func TestSources(t *testing.T) {
	for _, tt := range []struct {
		in   string
		want string
	}{
		{"s3://b", "{ }"},
		{"s3://b/train-{00..01}.tar", "{train-00.tar } {train-01.tar }"},
		{"s3://b/{x,y}/*.tar", "{ x/*.tar} { y/*.tar}"},
		{"s3://b/{x,y*}", "{x } { y*}"},
		{"s3://b/{x{1..2000},y*}", "error"},
		{`s3://b/a\{1\}`, "{a{1} }"},
		{"file:///d/e", "{d/e }"},
		{"b/c", "error"}, {"gs://b/c", "error"}, {"s3:///c", "error"}, {"s3://b{1,2}/c", "error"},
		{"s3://b/{1..100000}{1..100000}", "error"},
		{"s3://b/{1..2000}*", "error"},
		{"s3://b/*{1..2000}", "error"},
		{"s3://b/[a", "error"},
		{"s3://b/a\nb", "error"},
		{"s3://b/\xff", "error"},
	} {
		src, err := ParseSource(tt.in)
		got := "error"
		if err == nil {
			var all []string
			for w := range src.Wants() {
				all = append(all, fmt.Sprint(w))
			}
			got = strings.Join(all, " ")
		}
		if got != tt.want {
			t.Errorf("%q: %s, want %s (%v)", tt.in, got, tt.want, err)
		}
	}
}

func TestLines(t *testing.T) {
	name := `odd{1..2}*[x]\,name`
	src, err := ParseLine("s3://b/" + name + "\r")
	if err != nil || src.Base() != "s3://b/" {
		t.Fatalf("%v, %v", src, err)
	}
	for w := range src.Wants() {
		if w.Name != name || w.Glob != "" {
			t.Errorf("a name of a list became %+v", w)
		}
	}
	for line, ok := range map[string]bool{"": true, "  ": true, "# s3://b/x": true, "x": false, "s3:///x": false, "file://h/x": false} {
		if src, err := ParseLine(line); src != nil || (err == nil) != ok {
			t.Errorf("%q: %v, %v", line, src, err)
		}
	}
}

// Lists from elsewhere: marks of the byte order, carriage returns, no end of the last line.
func TestReadList(t *testing.T) {
	read := func(list string) (names []string, err error) {
		err = ReadList(strings.NewReader(list), func(src Source) error {
			names = append(names, src.String())
			return nil
		})
		return names, err
	}
	names, err := read("\ufeffs3://b/x\r\n\r\n# s3://b/y\n  \ns3://b/ z \ns3://b/x")
	if want := []string{"s3://b/x", "s3://b/ z ", "s3://b/x"}; err != nil || !slices.Equal(names, want) {
		t.Errorf("%q, %v, want %q", names, err, want)
	}
	for list, want := range map[string]string{
		"s3://b/x\n\nb/y\n":                            `line 3: "b/y" is not a URI`,
		"s3://b/\ns3://b/" + strings.Repeat("k", 9000): "line 2: is longer than 8192 bytes",
		strings.Repeat("k", 5000):                      "line 1: \"kkk",
	} {
		_, err := read(list)
		if usage := new(UsageError); !errors.As(err, &usage) || !strings.HasPrefix(err.Error(), want) || len(err.Error()) > 300 {
			t.Errorf("%.20q: %v, want %q", list, err, want)
		}
	}
	full := errors.New("full")
	if err := ReadList(strings.NewReader("s3://b/x"), func(Source) error { return full }); err != full {
		t.Errorf("%v, want the caller's own error", err)
	}
}

func object(bucket, key string, size int64) chunk.Object {
	return chunk.Object{Origin: "https://o", Bucket: bucket, Key: key, ETag: "e" + key, Size: size}
}

func TestManifestKeepsObjects(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		keys := rapid.SliceOf(rapid.StringMatching(`[ab/]{0,5}`)).Draw(t, "keys")
		var m Manifest
		var want []chunk.Object
		seen := map[chunk.Object]bool{}
		for i, k := range keys {
			o := object([]string{"", "b", "c"}[i%3], k, int64(len(k))<<30)
			if added := m.Add(o); added == seen[o] {
				t.Fatalf("%+v: added is %v", o, added)
			}
			if !seen[o] {
				want = append(want, o)
			}
			seen[o] = true
		}
		m.Seal()
		n := 0
		for i, o := range m.All() {
			if i != n || o != want[i] || m.At(i) != want[i] {
				t.Fatalf("object %d is %+v and %+v, want %+v", i, o, m.At(i), want[i])
			}
			n++
		}
		if n != len(want) || m.Len() != n {
			t.Fatalf("%d objects, want %d", n, len(want))
		}
	})
}

// A million objects take tens of megabytes.
func TestManifestIsSmall(t *testing.T) {
	var m Manifest
	const count = 100_000
	for i := range count {
		o := object("b", fmt.Sprintf("imagenet/train/shard-%06d.tar", i), 1<<20)
		o.ETag = fmt.Sprintf("%032x", i)
		m.Add(o)
	}
	m.Seal()
	if per := (len(m.data) + 8*len(m.restarts)) / count; per > 48 {
		t.Errorf("%d bytes an object", per)
	}
}

func TestAssign(t *testing.T) {
	g := chunk.Geometry{ChunkBytes: 1 << 20, BlockBytes: 64 << 10}
	var m Manifest
	for i := range 50 {
		m.Add(object("b", fmt.Sprint(i), int64(rand.N(5<<20))))
	}
	m.Add(object("b", "none", 0))
	m.Seal()
	owner := func(id chunk.ObjectID, size int64, index uint32) string {
		return fmt.Sprint((uint32(id[0]) + index) % 3)
	}
	loads := Assign(&m, g, 2<<20, owner)
	got := map[uint32]int64{}
	var bytes int64
	for node, l := range loads {
		var sum int64
		for _, it := range l.Items {
			o := m.At(int(it.Object))
			if whole := it.Chunk == Whole; whole != (o.Size <= 2<<20) {
				t.Errorf("%+v of %+v", it, o)
			} else if c := it.Chunk; owner(o.ID(), o.Size, map[bool]uint32{true: 0, false: c}[whole]) != node {
				t.Errorf("%+v is given to %s", it, node)
			}
			n := it.BytesOf(g, o)
			got[it.Object] += n
			sum += n
		}
		if sum != l.Bytes {
			t.Errorf("%s: %d bytes, said to be %d", node, sum, l.Bytes)
		}
		bytes += sum
	}
	for i, o := range m.All() {
		if got[uint32(i)] != o.Size {
			t.Errorf("%+v: %d bytes are given to somebody", o, got[uint32(i)])
		}
	}
	if bytes != m.Bytes() {
		t.Errorf("%d bytes, want %d", bytes, m.Bytes())
	}
	for _, l := range Everywhere(&m, []string{"a", "b"}) {
		if len(l.Items) != m.Len() || l.Bytes != m.Bytes() {
			t.Errorf("everywhere: %d items, %d bytes", len(l.Items), l.Bytes)
		}
	}
}

func TestFit(t *testing.T) {
	loads := map[string]*Load{"a": {Bytes: 10}, "b": {Bytes: 20}, "c": {Bytes: 5}, "d": {Bytes: 1}}
	rooms := map[string]Room{"a": {LimitBytes: 10}, "b": {LimitBytes: 30, TakenBytes: 12}, "c": {LimitBytes: 2, TakenBytes: 9}}
	want := []Short{{"c", 5, 0}, {"b", 20, 18}, {"d", 1, 0}}
	if got := Fit(loads, rooms); !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

func TestDatasets(t *testing.T) {
	var m Manifest
	for _, k := range []string{"a/train-01", "a/train-02", "b/x", "whole/1", "whole/2/3"} {
		m.Add(object("b", k, 1))
	}
	got := Datasets(&m, []Dataset{{"https://o", "b", "whole/"}})
	want := []Dataset{{"https://o", "b", "a/train-0"}, {"https://o", "b", "b/x"}, {"https://o", "b", "whole/"}}
	if !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	for i := range 1000 {
		m.Add(object("b", fmt.Sprintf("many/%d/x", i), 1))
	}
	got = Datasets(&m, nil)
	if len(got) > MaxDatasets {
		t.Errorf("%d datasets", len(got))
	}
	for _, o := range m.All() {
		if !slices.ContainsFunc(got, func(d Dataset) bool { return d.Covers(o) }) {
			t.Errorf("%s is in no dataset", o.Key)
		}
	}
}

func TestIDs(t *testing.T) {
	a := Spec{Sources: []string{"s3://b/x", "s3://b/y"}, Nodes: []string{"n1", "n2"}, Pin: time.Hour}
	b := Spec{Sources: []string{"s3://b/y", "s3://b/x", "s3://b/x"}, Nodes: []string{"n2", "n1"}, Force: true, Parallel: 3}
	if a.ID() != b.ID() || !ValidID(a.ID()) {
		t.Errorf("%s and %s are two jobs", a.ID(), b.ID())
	}
	for _, other := range []Spec{{Sources: a.Sources}, {Sources: a.Sources, Nodes: a.Nodes, EveryNode: true}, {Sources: a.Sources[:1], Nodes: a.Nodes},
		{Sources: a.Sources, Nodes: a.Nodes, ListSum: "1"}} {
		if other.ID() == a.ID() {
			t.Errorf("%+v is the same job", other)
		}
	}
	if ValidID("zz") || ValidID("00") || ValidID("") {
		t.Error("what is no ID is taken for one")
	}
}

// Nodes that hear of a job in any order, some news several times, know the same in the end.
func TestRecordsMerge(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var all []Record
		for i := range rapid.IntRange(1, 6).Draw(t, "records") {
			all = append(all, Record{ID: "x", Started: rapid.Int64Range(1, 2).Draw(t, "started"), Seq: int64(i),
				State: rapid.SampledFrom([]State{Running, Done, Canceled, Partly}).Draw(t, "state"),
				Spec:  Spec{Pin: time.Duration(rapid.IntRange(0, 3).Draw(t, "pin"))}})
		}
		merge := func(list []Record) Record {
			r := list[0]
			for _, o := range list[1:] {
				r = Merge(r, o)
			}
			return r
		}
		want := merge(all)
		for range 5 {
			rand.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
			got := merge(append(slices.Clone(all), all[0]))
			if got.Seq != want.Seq || got.State != want.State || got.Spec.Pin != want.Spec.Pin {
				t.Fatalf("%+v and %+v of %+v", got, want, all)
			}
		}
	})
}

func TestJoin(t *testing.T) {
	known := Record{ID: "x", Started: 5, Seq: 9, State: Running, Runner: "n1", Progress: Progress{Objects: 3}}
	asked := Record{ID: "x", Started: 8, State: Running, Runner: "n2", Spec: Spec{Pin: time.Hour}}
	if r, joined := Join(known, asked); !joined || r.Started != 5 || r.Seq != 9 || r.Runner != "n1" || r.Spec.Pin != time.Hour || r.Progress.Objects != 3 {
		t.Errorf("joined %v: %+v", joined, r)
	}
	known.State = Canceled
	asked.Started = 5
	if r, joined := Join(known, asked); joined || r.Started <= known.Started || Merge(known, r).State != Running {
		t.Errorf("a job that has ended is joined: %+v", r)
	}
}

func TestMissingIsBounded(t *testing.T) {
	var r Record
	for range 200_000 {
		r.Miss(Missing{URI: "s3://b/some/key/of/usual/length", Reason: Forbidden})
	}
	if !r.Cut || len(r.Missing) == 0 || len(r.Missing) > 100_000 || r.Lost() != 200_000 {
		t.Errorf("%d of %d are named, cut %v", len(r.Missing), r.Lost(), r.Cut)
	}
	if got := maps.Collect(maps.All(r.Counts)); got[Forbidden] != 200_000 {
		t.Errorf("counts %v", got)
	}
}
