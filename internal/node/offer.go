package node

import (
	"context"
	"math/bits"
	"strconv"
	"time"

	"github.com/shardwell/shardwell/cache"
	"github.com/shardwell/shardwell/cache/disk"
)

// How a node tells the others how much it has room for, which makes its share of the ring.
const (
	offerEvery   = 30 * time.Second // between looks
	offerSettle  = 10 * time.Minute // another capacity must hold so long before it is told
	offerDiffers = 8                // and differ by more than one part in this many
	offerBits    = 5                // told are the first five bits, so that equal machines tell the same

	capacityName     = "capacity" // file in the first cache directory: what was told last
	maxCapacityBytes = 32         // of that file
)

// offer is what this node has told, and how long another figure has been true. A ring that followed
// each measurement would move data whenever a disk is slow for a moment or others fill it for a
// day's work; it is to change for good or not at all.
type offer struct {
	told    int64     // bytes; 0: nothing yet
	differs time.Time // since when what is measured differs; zero while it does not
}

// look compares what is measured with what was told, and reports whether the new figure is to be told.
func (o *offer) look(now time.Time, bytes int64) bool {
	bytes = roundCapacity(bytes)
	gap := max(bytes, o.told) - min(bytes, o.told)
	switch {
	case o.told == 0: // nobody relies on anything yet
	case gap <= o.told/offerDiffers:
		o.differs = time.Time{}
		return false
	case o.differs.IsZero():
		o.differs = now
		return false
	case now.Sub(o.differs) < offerSettle:
		return false
	}
	o.told, o.differs = bytes, time.Time{}
	return true
}

// roundCapacity keeps the first bits of a capacity, and at least one byte of it.
func roundCapacity(bytes int64) int64 {
	if drop := bits.Len64(uint64(max(1, bytes))) - offerBits; drop > 0 {
		return bytes >> drop << drop
	}
	return max(1, bytes)
}

// recallOffer reads what an earlier process told: a restart changes nothing. Without that, what is
// measured now is told.
func (n *Node) recallOffer() {
	text, err := n.disks.readNote(capacityName, maxCapacityBytes)
	if told, bad := strconv.ParseInt(string(text), 10, 64); err == nil && bad == nil && told > 0 {
		n.offer.told = roundCapacity(told)
		return
	}
	n.offer.look(time.Now(), n.capacityHere())
	n.noteOffer()
}

func (n *Node) noteOffer() {
	if err := n.disks.writeNote(capacityName, strconv.AppendInt(nil, n.offer.told, 10)); err != nil {
		n.log.Debug("write down the capacity that was told", "error", err)
	}
}

// keepOffering tells the others when what the disks really offer has changed for good, until ctx ends.
func (n *Node) keepOffering(ctx context.Context) error {
	tick := time.NewTicker(offerEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case now := <-tick.C:
			before := n.offer.told
			if !n.offer.look(now, n.capacityHere()) {
				continue
			}
			n.log.Info("room for what this node owns has changed for good", "bytes", n.offer.told, "before", before)
			n.noteOffer()
			if err := n.cluster.group.Offer(ctx, n.offer.told); err != nil && ctx.Err() == nil {
				n.log.Warn("some members may hear late of this node's capacity", "error", err)
			}
		}
	}
}

// capacityHere is how many bytes this node keeps of what it owns: on the disks that work, or in memory
// where it has none.
func (n *Node) capacityHere() (sum int64) {
	if len(n.disks.dirs) == 0 {
		return int64(cache.KeptBlocks(n.arena)) * n.geometry.BlockBytes
	}
	for _, d := range n.disks.dirs {
		if d.State() != disk.Down {
			_, limit := d.Capacity()
			sum += max(0, limit)
		}
	}
	return sum
}
