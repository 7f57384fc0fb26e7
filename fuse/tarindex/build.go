package tarindex

import (
	"cmp"
	"hash/maphash"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Reasons for which a member is left out.
const (
	reasonParent   = `its name has a ".." part`
	reasonLong     = "its name is too long"
	reasonNoName   = "it has no name"
	reasonNul      = "its name holds a NUL byte"
	reasonIsDir    = "it is also a directory"
	reasonSymlink  = "symbolic links are not shown"
	reasonNoTarget = "it is a link to what is not there before it"
	reasonSpecial  = "devices and FIFOs are not shown"
	reasonSparse   = "sparse files cannot be read in place"
	reasonKind     = "members of its kind are not shown"
	reasonCut      = "it is cut off by the end of the tar"
)

// builder makes an index of members that come in the order of the tar.
type builder struct {
	x   *Index
	seq uint32
}

func newBuilder() *builder {
	return &builder{x: &Index{nodes: []node{{dir: true}}}}
}

// member is what a header says, after its name was cleaned.
type member struct {
	path  string
	off   int64
	size  int64
	mtime int64
	dir   bool
}

// full reports whether the index takes all the memory that it may.
func (b *builder) full() bool { return b.x.Bytes() > MaxIndexBytes }

// leave counts a member that is not shown.
func (b *builder) leave(name, reason string) {
	l := &b.x.left
	l.count++
	if len(l.named) < MaxNamedLeftOut {
		l.named = append(l.named, Left{Name: printable(name), Reason: reason})
	}
}

// printable quotes a name that would upset a terminal, and cuts one that is too long.
func printable(name string) string {
	if len(name) > maxPartBytes {
		name = name[:maxPartBytes]
	}
	if utf8.ValidString(name) && strconv.CanBackquote(name) {
		return strings.Clone(name)
	}
	return strconv.Quote(name)
}

// clean returns a name as a path from the root of the tar, or the reason why it is none.
// "" without a reason is the root itself.
func clean(name string) (path, reason string) {
	if plain(name) {
		return name, ""
	}
	if strings.IndexByte(name, 0) >= 0 {
		return "", reasonNul
	}
	parts := strings.Split(name, "/")
	kept := parts[:0]
	for _, p := range parts {
		switch {
		case p == "" || p == ".":
		case p == "..":
			return "", reasonParent
		case len(p) > maxPartBytes:
			return "", reasonLong
		default:
			kept = append(kept, p)
		}
	}
	path = strings.Join(kept, "/")
	if len(path) > maxPathBytes {
		return "", reasonLong
	}
	return path, ""
}

// plain reports that clean would return the name as it is: the usual case, without allocation.
func plain(name string) bool {
	if name == "" || len(name) > maxPartBytes || name[0] == '/' || name[0] == '.' || name[len(name)-1] == '/' {
		return false
	}
	for i := range len(name) {
		if c := name[i]; c == 0 || c == '/' && (name[i+1] == '.' || name[i+1] == '/') {
			return false
		}
	}
	return true
}

// add takes a member into the index.
func (b *builder) add(m member) {
	if m.path == "" {
		return // the root
	}
	b.seq++
	n, ok := b.enter(m.path)
	if !ok {
		return
	}
	x := b.x
	v := &x.nodes[n]
	isNew := v.seq == 0
	switch {
	case m.dir && isNew:
		v.dir, v.seq = true, b.seq
	case m.dir && !v.dir:
		b.turn(n)
	case m.dir:
	case v.dir && !isNew:
		b.leave(m.path, reasonIsDir)
		return
	default:
		if isNew {
			x.files++
		}
		v.seq = b.seq // the last of a name counts, at its place
		v.off, v.size = m.off, m.size
	}
	v.mtime = m.mtime
}

// link adds another name for the bytes of a file that is there already.
func (b *builder) link(path, target string, mtime int64) bool {
	to, reason := clean(target)
	n, ok := b.x.Find(to)
	if reason != "" || !ok || to == "" || b.x.nodes[n].dir {
		return false
	}
	v := b.x.nodes[n]
	b.add(member{path: path, off: v.off, size: v.size, mtime: mtime})
	return true
}

// turn makes a directory of a file, which is left out.
func (b *builder) turn(n uint32) {
	x := b.x
	b.leave(string(x.appendPath(nil, n)), reasonIsDir)
	v := &x.nodes[n]
	v.dir, v.off, v.size, v.mtime = true, 0, 0, 0
	x.files--
}

// enter returns the node of a path, with the directories above it. A new one has no seq.
func (b *builder) enter(path string) (n uint32, ok bool) {
	at := uint32(0)
	for {
		part, rest, more := strings.Cut(path, "/")
		child, found := b.x.table.find(b.x, at, part)
		if !found {
			child = b.append(at, part)
		}
		if !more {
			return child, true
		}
		v := &b.x.nodes[child]
		switch {
		case !found:
			v.dir, v.seq = true, b.seq
		case !v.dir:
			b.turn(child)
		}
		at, path = child, rest
	}
}

func (b *builder) append(parent uint32, name string) uint32 {
	x := b.x
	n := uint32(len(x.nodes))
	x.nodes = append(x.nodes, node{parent: parent, name: uint32(len(x.names)), nameLen: uint8(len(name))})
	x.names = append(x.names, name...)
	x.table.add(x, n)
	return n
}

// finish orders the entries of each directory. The builder is of no more use.
func (b *builder) finish() *Index {
	x := b.x
	x.order = make([]uint32, 0, len(x.nodes)-1)
	for i := 1; i < len(x.nodes); i++ {
		x.order = append(x.order, uint32(i))
	}
	slices.SortFunc(x.order, func(i, j uint32) int {
		a, b := &x.nodes[i], &x.nodes[j]
		return cmp.Or(cmp.Compare(a.parent, b.parent), cmp.Compare(a.seq, b.seq), cmp.Compare(i, j))
	})
	for i, n := range x.order {
		p := &x.nodes[x.nodes[n].parent]
		if p.count == 0 {
			p.first = uint32(i)
		}
		p.count++
	}
	return x
}

// inTarOrder returns the nodes but the root as they come in the tar.
func (x *Index) inTarOrder() []uint32 {
	all := slices.Clone(x.order)
	slices.SortFunc(all, func(i, j uint32) int {
		return cmp.Or(cmp.Compare(x.nodes[i].seq, x.nodes[j].seq), cmp.Compare(i, j))
	})
	return all
}

// table finds nodes by parent and name: open addressing, node number or 0.
type table struct {
	slots []uint32
	used  int
}

var seed = maphash.MakeSeed()

func hashOf(parent uint32, name string) uint32 {
	return uint32(maphash.String(seed, name)) ^ parent*0x9e3779b1
}

// find returns the node with a name in a directory.
func (t *table) find(x *Index, parent uint32, name string) (uint32, bool) {
	if len(t.slots) == 0 {
		return 0, false
	}
	mask := uint32(len(t.slots) - 1)
	for i := hashOf(parent, name) & mask; t.slots[i] != 0; i = (i + 1) & mask {
		n := t.slots[i]
		if x.nodes[n].parent == parent && string(x.name(n)) == name {
			return n, true
		}
	}
	return 0, false
}

// add enters a node that is not there yet.
func (t *table) add(x *Index, n uint32) {
	if (t.used+1)*2 > len(t.slots) {
		old := t.slots
		t.slots = make([]uint32, max(16, 2*len(old)))
		for _, o := range old {
			if o != 0 {
				t.place(x, o)
			}
		}
	}
	t.place(x, n)
	t.used++
}

func (t *table) place(x *Index, n uint32) {
	mask := uint32(len(t.slots) - 1)
	i := hashOf(x.nodes[n].parent, string(x.name(n))) & mask
	for t.slots[i] != 0 {
		i = (i + 1) & mask
	}
	t.slots[i] = n
}
