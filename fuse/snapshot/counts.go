package snapshot

import "github.com/shardwell/shardwell/fuse/tree"

// Counts is how much there is.
type Counts struct {
	Files int64
	Dirs  int64 // without the root
	Bytes int64 // of the files
}

// add adds o, sign times.
func (c *Counts) add(o Counts, sign int64) {
	c.Files += sign * o.Files
	c.Dirs += sign * o.Dirs
	c.Bytes += sign * o.Bytes
}

// counts returns what v adds to what exists, as the newest record of its name.
func (v View) counts() Counts {
	switch v.Kind {
	case tree.File:
		return Counts{Files: 1, Bytes: v.Size}
	case tree.Dir:
		return Counts{Dirs: 1}
	}
	return Counts{} // gone
}

// count takes note that the newest record of a name in d is new instead of old, which
// had the node id oldID. A directory that vanishes takes along what lies below it, for
// good: one of the same name that comes later is another. s.mu is held.
func (s *Store) count(d *Dir, old, new Counts, oldID uint64) {
	new.add(old, -1)
	d.counts.add(new, 1)
	if !d.vanished {
		s.total.add(new, 1)
	}
	if old.Dirs == 0 {
		return
	}
	if below := s.byNode[oldID]; below != nil {
		s.vanish(below)
	}
}

// vanish takes a directory and all below it out of the counts. s.mu is held.
func (s *Store) vanish(d *Dir) {
	for below := []*Dir{d}; len(below) > 0; {
		d, below = below[len(below)-1], below[:len(below)-1]
		if d.vanished { // and all below it
			continue
		}
		d.vanished = true
		s.total.add(d.counts, -1)
		below = append(below, d.children...)
	}
}
