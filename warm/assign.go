package warm

import (
	"cmp"

	"github.com/shardwell/shardwell/internal/chunk"
)

// Whole stands for all chunks of an object.
const Whole = ^uint32(0)

// Item is a part of a warm-up that one node holds: an object of a manifest or a chunk of it.
type Item struct {
	Object uint32 // number in the manifest
	Chunk  uint32 // or Whole
}

// Load is what is for one node.
type Load struct {
	Items []Item
	Bytes int64
}

// Assign gives each chunk of a manifest to its owner, in the order of the manifest. Objects up to
// placeWhole bytes have one. Nobody owns what owner calls "": that load is under "".
func Assign(m *Manifest, g chunk.Geometry, placeWhole int64, owner func(id chunk.ObjectID, size int64, index uint32) string) map[string]*Load {
	loads := make(map[string]*Load)
	give := func(node string, it Item, bytes int64) {
		l := loads[node]
		if l == nil {
			l = &Load{}
			loads[node] = l
		}
		l.Items = append(l.Items, it)
		l.Bytes += bytes
	}
	for i, o := range m.All() {
		id := o.ID()
		if o.Size <= placeWhole {
			give(owner(id, o.Size, 0), Item{uint32(i), Whole}, o.Size)
			continue
		}
		for c := range g.Chunks(o.Size) {
			_, n := g.Bytes(o.Size, g.ChunkSpan(o.Size, c))
			give(owner(id, o.Size, c), Item{uint32(i), c}, n)
		}
	}
	return loads
}

// Everywhere gives each node all of a manifest. The loads share one list of items.
func Everywhere(m *Manifest, nodes []string) map[string]*Load {
	items := make([]Item, m.Len())
	for i := range items {
		items[i] = Item{uint32(i), Whole}
	}
	loads := make(map[string]*Load, len(nodes))
	for _, n := range nodes {
		loads[n] = &Load{Items: items, Bytes: m.Bytes()}
	}
	return loads
}

// BytesOf returns the length of an item of an object.
func (it Item) BytesOf(g chunk.Geometry, o chunk.Object) int64 {
	if it.Chunk == Whole {
		return o.Size
	}
	_, n := g.Bytes(o.Size, g.ChunkSpan(o.Size, it.Chunk))
	return n
}

// Room is what the caches of one node have for a warm-up.
type Room struct {
	LimitBytes int64 // that what is kept may take
	TakenBytes int64 // by what must not go for it: mounted or pinned, and not of the warm-up
}

// Short is what a node lacks.
type Short struct {
	Node      string `json:"node"`
	NeedBytes int64  `json:"needBytes"`
	RoomBytes int64  `json:"roomBytes"`
}

// Fit returns the nodes whose load is larger than their room, those with the
// greatest lack first. A node without a room has none.
func Fit(loads map[string]*Load, rooms map[string]Room) []Short {
	var short []Short
	for node, l := range loads {
		free := max(0, rooms[node].LimitBytes-rooms[node].TakenBytes)
		if l.Bytes > free {
			short = append(short, Short{node, l.Bytes, free})
		}
	}
	sortShort(short)
	return short
}

// Compare puts items in the order of their manifest.
func (it Item) Compare(other Item) int {
	return cmp.Or(cmp.Compare(it.Object, other.Object), cmp.Compare(it.Chunk, other.Chunk))
}
