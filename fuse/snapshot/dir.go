package snapshot

import (
	"encoding/binary"
	"encoding/hex"
	"hash/maphash"
	"sync"
	"time"

	"github.com/shardwell/shardwell/fuse/tree"
)

// Dir holds the entries of one directory that were seen so far. It is safe for
// concurrent use.
type Dir struct {
	Serial uint32 // in the node ids of its entries
	ID     uint64 // its own node id
	Prefix string // of its keys: "" or ending with "/"
	Aside  bool   // it is below [Store.Aside]

	store *Store

	mu       sync.RWMutex
	offsets  []uint32 // by index: where the record is, in units of recordAlign
	verified []uint32 // by index: ticks since the store's epoch, plus 1; 0 = never
	table    []uint32 // open addressing: index+1 of the newest record of a name; 0 = free
	names    uint32   // slots of table in use
	replaced bool     // some record replaces another
	distrust Question // grows with each Distrust
	listed   int64    // offset of its kindListed; 0 = it has none

	// Under Store.mu:
	counts   Counts // of its newest records
	vanished bool   // it, or one above it, does not exist any more
	children []*Dir // that have a place
}

// Question says when a question about names of a directory was put, compared with
// its Distrusts.
type Question uint32

// Ask begins a question about names of the directory, for Put and Remove.
func (d *Dir) Ask() Question {
	d.mu.RLock()
	defer d.mu.RUnlock()
	return d.distrust
}

// tick is the step in which verification times are kept, rounded down so that
// nothing seems fresher than it is.
const tick = time.Second / 16

// View is one record. The byte slices lie in the log and are valid until the
// store is closed.
type View struct {
	Name    []byte
	Kind    tree.Kind
	Gone    bool // the name does not exist any more
	Size    int64
	ModTime int64 // nanoseconds since 1970, 0 = unknown
	ETag    string
	// NoETag says that this is a file whose version is not known.
	NoETag bool
	// Replaces says that an earlier record has the same name; a listing shows the
	// name at its first record.
	Replaces bool
}

// NodeID returns the node id of the entry with an index.
func (d *Dir) NodeID(index uint32) uint64 { return uint64(d.Serial)<<32 | uint64(index) }

// Len returns how many records the directory has; indices are below it.
func (d *Dir) Len() uint32 {
	d.mu.RLock()
	defer d.mu.RUnlock()
	return uint32(len(d.offsets))
}

// View returns the record with an index, which is below Len. ETag is left out
// unless wanted: it may need memory.
func (d *Dir) View(index uint32, etag bool) View {
	d.mu.RLock()
	off := d.offsets[index]
	d.mu.RUnlock()
	return d.store.view(off, etag)
}

// Entry returns the record with an index as an entry of its own memory.
func (d *Dir) Entry(index uint32) (e tree.Entry, gone bool) {
	v := d.View(index, true)
	e = tree.Entry{Name: string(v.Name), Kind: v.Kind, Size: v.Size, ETag: v.ETag}
	if v.ModTime != 0 {
		e.ModTime = time.Unix(0, v.ModTime)
	}
	return e, v.Gone
}

func (s *Store) view(off uint32, etag bool) View {
	b := s.at(int64(off) * recordAlign)
	name := int(binary.LittleEndian.Uint16(b[offName:]))
	v := View{
		Name:     b[headerBytes : headerBytes+name : headerBytes+name],
		Kind:     tree.Kind(b[offKind]),
		Gone:     b[offKind] == kindGone,
		Size:     int64(binary.LittleEndian.Uint64(b[offSize:])),
		ModTime:  int64(binary.LittleEndian.Uint64(b[offTime:])),
		Replaces: b[offFlags]&flagReplaces != 0,
	}
	n := int(binary.LittleEndian.Uint16(b[offETag:]))
	v.NoETag = v.Kind == tree.File && n == 0
	if etag && n > 0 {
		raw := b[headerBytes+name : headerBytes+name+n]
		if b[offFlags]&flagHexETag != 0 {
			v.ETag = hex.EncodeToString(raw)
		} else {
			v.ETag = string(raw)
		}
	}
	return v
}

// Find returns the newest record of a name. It may say that the name is gone.
func (d *Dir) Find(name string) (index uint32, ok bool) {
	d.mu.RLock()
	defer d.mu.RUnlock()
	slot, ok := d.slot(name)
	if !ok {
		return 0, false
	}
	return d.table[slot] - 1, true
}

// Current returns the newest record of the name that the record with an index has.
func (d *Dir) Current(index uint32) uint32 {
	d.mu.RLock()
	defer d.mu.RUnlock()
	return d.current(index)
}

// current is Current; mu is held.
func (d *Dir) current(index uint32) uint32 {
	if !d.replaced {
		return index
	}
	if slot, ok := d.slot(string(d.store.view(d.offsets[index], false).Name)); ok {
		return d.table[slot] - 1
	}
	return index
}

// Put records what was true of a name at a time, as the answer to q said. It returns
// the index of the name's newest record, and true when that is a new one: the entry is
// new, or differs from the one before. What is older than what is known changes
// nothing; an answer to what was asked before a Distrust verifies nothing.
func (d *Dir) Put(e tree.Entry, at time.Time, q Question) (index uint32, changed bool, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	slot, known := d.slot(e.Name)
	r := record{serial: d.Serial, kind: uint8(e.Kind), size: uint64(e.Size), name: e.Name, etag: e.ETag}
	if !e.ModTime.IsZero() {
		r.time = e.ModTime.UnixNano()
	}
	if known {
		index = d.table[slot] - 1
		old := d.store.view(d.offsets[index], true)
		same := tree.Entry{Kind: old.Kind, Size: old.Size, ETag: old.ETag}.SameVersion(e)
		if t := d.ticks(at, q); t < d.verified[index] || !old.Gone && same {
			d.verified[index] = max(d.verified[index], t)
			return index, false, nil
		}
		r.flags = flagReplaces
	}
	index, err = d.add(r, slot, known, d.ticks(at, q))
	return index, err == nil, err
}

// Remove records that a name does not exist at a time, as Put does.
func (d *Dir) Remove(name string, at time.Time, q Question) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	slot, known := d.slot(name)
	if !known {
		return nil
	}
	index := d.table[slot] - 1
	old := d.store.view(d.offsets[index], false)
	if t := d.ticks(at, q); t < d.verified[index] || old.Gone {
		d.verified[index] = max(d.verified[index], t)
		return nil
	}
	_, err := d.add(record{serial: d.Serial, kind: kindGone, flags: flagReplaces, name: name}, slot, true, d.ticks(at, q))
	return err
}

// add appends a record that was verified at a tick and points its name to it; mu is held.
func (d *Dir) add(r record, slot uint32, known bool, verified uint32) (uint32, error) {
	if verified == 0 {
		r.flags |= flagDoubtful
	}
	d.store.mu.Lock()
	defer d.store.mu.Unlock()
	off, err := d.store.appendLocked(r)
	if err != nil {
		return 0, err
	}
	index := d.index(uint32(off/recordAlign), r.name, r.flags&flagReplaces != 0, slot, known)
	d.verified[index] = verified
	return index, nil
}

// index takes a record into the arrays and the counts; mu and store.mu are held, or
// nobody else has the store.
func (d *Dir) index(off uint32, name string, replaces bool, slot uint32, known bool) uint32 {
	d.replaced = d.replaced || replaces
	was, wasID := Counts{}, uint64(0)
	if known {
		last := d.table[slot] - 1
		was, wasID = d.store.view(d.offsets[last], false).counts(), d.NodeID(last)
	}
	d.store.count(d, was, d.store.view(off, false).counts(), wasID)
	i := uint32(len(d.offsets))
	d.offsets = append(d.offsets, off)
	d.verified = append(d.verified, 0)
	d.store.records.Add(1)
	if known {
		d.table[slot] = i + 1
		return i
	}
	if uint64(d.names+1)*5 > uint64(len(d.table))*4 { // at most four fifths full
		d.rehash()
		slot, _ = d.slot(name)
	}
	d.table[slot] = i + 1
	d.names++
	return i
}

var seed = maphash.MakeSeed()

// slot returns where a name is in the table, or the free slot where it belongs
// (0 when there is no table yet); mu is held.
func (d *Dir) slot(name string) (uint32, bool) {
	if len(d.table) == 0 {
		return 0, false
	}
	mask := uint32(len(d.table) - 1)
	for i := uint32(maphash.String(seed, name)) & mask; ; i = (i + 1) & mask {
		v := d.table[i]
		if v == 0 {
			return i, false
		}
		if string(d.store.view(d.offsets[v-1], false).Name) == name {
			return i, true
		}
	}
}

// rehash doubles the table; mu is held.
func (d *Dir) rehash() {
	old := d.table
	d.table = make([]uint32, max(8, 2*len(old)))
	mask := uint32(len(d.table) - 1)
	for _, v := range old {
		if v == 0 {
			continue
		}
		i := uint32(maphash.Bytes(seed, d.store.view(d.offsets[v-1], false).Name)) & mask
		for d.table[i] != 0 {
			i = (i + 1) & mask
		}
		d.table[i] = v
	}
}

// packHex packs an ETag of 32 lower-case hexadecimal digits, an MD5, into half.
func packHex(to *[16]byte, etag string) bool {
	if len(etag) != 2*len(to) {
		return false
	}
	for i := range len(etag) {
		if c := etag[i]; (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return false
		}
	}
	_, err := hex.Decode(to[:], []byte(etag))
	return err == nil
}
