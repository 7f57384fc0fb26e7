package node

import (
	"context"
	"encoding/json"
	"path"
	"sync"
	"time"

	"github.com/shardwell/shardwell/cache/disk"
	"github.com/shardwell/shardwell/internal/chunk"
	"github.com/shardwell/shardwell/objstore"
	"github.com/shardwell/shardwell/peer/ring"
)

// Bounds of what a node tells about its cache.
const (
	maxUsageDirs = 1024             // directories told apart; beyond them their parents are
	usageMaxAge  = 10 * time.Second // a walk over sidecars is not for every question
)

// share is what a node holds of the objects directly in one directory of a bucket.
type share struct {
	Origin     string `json:"origin"`
	Bucket     string `json:"bucket"`
	Dir        string `json:"dir"`        // "" or with a slash at its end
	LocalBytes int64  `json:"localBytes"` // held here
	OwnedBytes int64  `json:"ownedBytes"` // of these, those that belong here by the ring
}

// usage is the last answer to what the disks hold.
type usage struct {
	mu     sync.Mutex
	at     time.Time
	shares []share
}

// shares returns what this node holds, by directory, at most usageMaxAge old.
func (n *Node) shares(ctx context.Context) ([]share, error) {
	n.usage.mu.Lock()
	defer n.usage.mu.Unlock()
	if !n.usage.at.IsZero() && time.Since(n.usage.at) < usageMaxAge {
		return n.usage.shares, nil
	}
	t := newTally()
	for _, d := range n.disks.dirs {
		err := d.Each(ctx, func(e disk.Entry) error {
			local := min(int64(e.Present)*n.geometry.BlockBytes, e.Object.Size)
			t.add(e.Object, local, n.ownedBytes(e, local))
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	n.usage.at, n.usage.shares = time.Now(), t.list()
	return n.usage.shares, nil
}

// ownedBytes returns how many of the local bytes of an object belong here: all or
// none of one that has one owner, those of its chunks otherwise.
func (n *Node) ownedBytes(e disk.Entry, local int64) int64 {
	mine := func(index uint32) bool {
		m := n.cluster.ring.history.Current().Owner(ring.KeyOf(e.ID, e.Object.Size, int64(n.cfg.PlaceWhole), index))
		return m != nil && m.ID == n.id
	}
	if e.Object.Size <= int64(n.cfg.PlaceWhole) {
		if mine(0) {
			return local
		}
		return 0
	}
	f, err := n.disks.Find(e.ID)
	if err != nil {
		return 0 // gone meanwhile
	}
	defer f.Release()
	var owned int64
	for i := range n.geometry.Chunks(e.Object.Size) {
		if !mine(i) {
			continue
		}
		for s, b := n.geometry.ChunkSpan(e.Object.Size, i), uint32(0); b < s.Count; b++ {
			if f.Has(s.First + b) {
				owned += int64(n.geometry.BlockLen(e.Object.Size, s.First+b))
			}
		}
	}
	return owned
}

// tally adds up bytes by directory, and by ever shorter paths when there are too many.
type tally struct {
	depth int // path elements told apart
	byDir map[share]*share
}

func newTally() *tally { return &tally{depth: 64, byDir: make(map[share]*share)} }

func (t *tally) add(o chunk.Object, local, owned int64) {
	s := share{Origin: o.Origin, Bucket: o.Bucket, Dir: dirOf(o.Key, t.depth)}
	for {
		sum := t.byDir[s]
		if sum == nil && len(t.byDir) >= maxUsageDirs && t.depth > 0 {
			t.shorten()
			s.Dir = dirOf(o.Key, t.depth)
			continue
		}
		if sum == nil {
			sum = &share{Origin: s.Origin, Bucket: s.Bucket, Dir: s.Dir}
			t.byDir[s] = sum
		}
		sum.LocalBytes += local
		sum.OwnedBytes += owned
		return
	}
}

// shorten merges directories until they are half as many as are allowed.
func (t *tally) shorten() {
	for t.depth > 0 && len(t.byDir) > maxUsageDirs/2 {
		t.depth--
		merged := make(map[share]*share)
		for key, sum := range t.byDir {
			key.Dir = dirOf(key.Dir, t.depth)
			if have := merged[key]; have != nil {
				have.LocalBytes += sum.LocalBytes
				have.OwnedBytes += sum.OwnedBytes
			} else {
				sum.Dir = key.Dir
				merged[key] = sum
			}
		}
		t.byDir = merged
	}
}

func (t *tally) list() []share {
	list := make([]share, 0, len(t.byDir))
	for _, s := range t.byDir {
		list = append(list, *s)
	}
	return list
}

// dirOf returns the directory of a key, cut to at most depth elements: "" or with a
// slash at its end.
func dirOf(key string, depth int) string {
	end := 0
	for i := 0; i < len(key) && depth > 0; i++ {
		if key[i] == '/' {
			end = i + 1
			depth--
		}
	}
	return key[:end]
}

// report is what a member tells the others of itself.
type report struct {
	Shares []share `json:"shares"`
}

// statusHere is this node's answer to the status question of others.
func (n *Node) statusHere(ctx context.Context) ([]byte, error) {
	shares, err := n.shares(ctx)
	if err != nil {
		return nil, err
	}
	return json.Marshal(report{Shares: shares})
}

// under adds up what shares hold of the objects under a prefix.
func under(shares []share, b objstore.Bucket, prefix string) (local, owned int64) {
	for _, s := range shares {
		o := chunk.Object{Origin: s.Origin, Bucket: s.Bucket, Key: s.Dir}
		if objectIn(o, b, prefix) {
			local += s.LocalBytes
			owned += s.OwnedBytes
		}
	}
	return local, owned
}

// within returns the path of dir relative to root, with "" for root itself.
func within(root, dir string) (string, bool) {
	root = path.Clean(root)
	if dir == root {
		return "", true
	}
	if root != "/" {
		root += "/"
	}
	if len(dir) > len(root) && dir[:len(root)] == root {
		return dir[len(root):], true
	}
	return "", false
}
