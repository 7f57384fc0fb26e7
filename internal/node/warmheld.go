package node

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/shardwell/shardwell/cache/disk"
	"github.com/shardwell/shardwell/peer"
	"github.com/shardwell/shardwell/warm"
)

// How a node looks for what it holds, and gives it up.
const (
	dropPatience  = 10 * time.Second // for what was dropped to be gone
	dropPoll      = 20 * time.Millisecond
	brokenDetails = "the cache does not answer"
)

// check says what of a part is held.
func (br *bringer) check(i int, p peer.Part) {
	out := peer.Outcome{Part: i}
	chunks := br.chunksOf(p)
	if len(chunks) == 0 {
		br.say(&out, 0, 0)
		return
	}
	var held int64
	f, err := br.n.disks.Find(p.Object.ID())
	if err != nil {
		out.Missing, out.Reason = chunks, string(warm.NotCached)
		if !errors.Is(err, disk.ErrNotPresent) && !errors.Is(err, errNoDisk) {
			out.Reason, out.Detail = string(warm.DiskFailed), brokenDetails
		}
		br.say(&out, 0, 0)
		return
	}
	defer f.Release()
	for _, c := range chunks {
		if f.HasAll(br.n.geometry.ChunkSpan(p.Object.Size, c)) {
			held += br.bytesOf(p.Object, c)
		} else {
			out.Missing, out.Reason = append(out.Missing, c), string(warm.NotCached)
		}
	}
	br.say(&out, held, 0)
}

// drop has all parts gone, those that are in use as soon as they are not. It waits for all of these at once.
func (br *bringer) drop(ctx context.Context) {
	var open []int
	for i, p := range br.b.Parts {
		br.n.cache.Forget(p.Object)
		n, err := br.heldOf(p)
		switch {
		case err != nil:
			br.say(&peer.Outcome{Part: i, Reason: string(warm.DiskFailed), Detail: brokenDetails}, 0, 0)
		case n == 0:
			br.say(&peer.Outcome{Part: i}, 0, 0)
		default:
			br.say(nil, n, 0)
			br.n.drop(p.Object.ID())
			open = append(open, i)
		}
	}
	for end := time.Now().Add(dropPatience); ; {
		open = slices.DeleteFunc(open, func(i int) bool {
			if n, err := br.heldOf(br.b.Parts[i]); n > 0 || err != nil {
				br.n.drop(br.b.Parts[i].Object.ID())
				return false
			}
			br.say(&peer.Outcome{Part: i}, 0, 0)
			return true
		})
		if len(open) == 0 || time.Now().After(end) || pause(ctx, dropPoll) != nil {
			break
		}
	}
	for _, i := range open {
		br.say(&peer.Outcome{Part: i, Reason: string(warm.Other), Detail: "in use: it goes when its last reader closes it"}, 0, 0)
	}
}

// heldOf returns how much of a part's object this node holds on its disks.
func (br *bringer) heldOf(p peer.Part) (int64, error) {
	f, err := br.n.disks.Find(p.Object.ID())
	switch {
	case errors.Is(err, disk.ErrNotPresent), errors.Is(err, errNoDisk):
		return 0, nil
	case err != nil:
		return 0, err
	}
	defer f.Release()
	return f.CachedBytes(), nil
}
