package meta

import (
	"bytes"

	"github.com/shardwell/shardwell/objstore"
)

// compare tells what a new answer of the origin says is not current any more.
func (c *Cache) compare(a *answer) {
	if c.cfg.Replaced == nil {
		return
	}
	old := c.store.last(a.question)
	if old == nil || old.asked.After(a.asked) {
		return
	}
	if gone := replaced(old, a); len(gone) > 0 {
		c.cfg.Replaced(a.question.bucket, gone)
	}
}

// replaced returns the versions in an old answer that a new one to the same question shows
// to have another successor, or none. Names that may only have moved to another
// page are not among them.
func replaced(old, now *answer) (gone []objstore.Info) {
	if !old.question.list {
		if !old.missing && (now.missing || !sameVersion(old.info, now.info)) {
			gone = append(gone, old.info)
		}
		return gone
	}
	if bytes.Equal(old.page, now.page) {
		return nil
	}
	before, err := decodePage(old.page)
	if err != nil {
		return nil
	}
	after, err := decodePage(now.page)
	if err != nil {
		return nil
	}
	current := make(map[string]objstore.Info, len(after.Objects))
	for _, o := range after.Objects {
		current[o.Key] = o
	}
	whole := before.Next == "" && after.Next == ""
	for _, o := range before.Objects {
		if n, ok := current[o.Key]; ok && !sameVersion(o, n) || !ok && whole {
			gone = append(gone, o)
		}
	}
	return gone
}

func sameVersion(a, b objstore.Info) bool { return a.ETag == b.ETag && a.Size == b.Size }
