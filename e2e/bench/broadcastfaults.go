package main

import (
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/shardwell/shardwell/e2e/cage"
	"github.com/shardwell/shardwell/e2e/cluster"
)

// at waits until a node has received so many bytes.
func at(progress func(int) int64, node int, bytes int64) error {
	deadline := time.Now().Add(10 * time.Minute)
	for progress(node) < bytes {
		if time.Now().After(deadline) {
			return errors.New("the broadcast does not get on")
		}
		time.Sleep(broadcastPoll)
	}
	return nil
}

// broadcastKill kills one of eight nodes at half.
func (b *bench) broadcastKill() error {
	var eff, copies []float64
	var casts []cast
	for range b.rounds {
		err := b.broadcastIn(8, cluster.Options{}, func(x *broadcaster) error {
			k, err := x.run(nodes(8), func(progress func(int) int64) error {
				if err := at(progress, 3, x.size/2); err != nil {
					return err
				}
				return x.c.Nodes[3].Kill()
			})
			casts = append(casts, k)
			eff = append(eff, k.efficiency(x.size))
			copies = append(copies, float64(k.Origin)/float64(x.size))
			return err
		})
		if err != nil {
			return err
		}
	}
	b.emit("broadcast_kill_one_efficiency", eff, casts, "one of 8 nodes killed at half; (S/B)/T of the others; reach 0.75")
	b.emit("broadcast_kill_one_origin_copies", copies, nil, "bytes of the origin / S in the same runs; reach at most 1.15")
	return nil
}

// broadcastLate has the last of eight nodes begin when the others are at half.
func (b *bench) broadcastLate() error {
	return b.broadcastIn(8, cluster.Options{}, func(x *broadcaster) error {
		var eff, bytes, others []float64
		var casts []cast
		for range b.rounds {
			var late time.Duration
			var before, after int64
			k, err := x.run(nodes(7), func(progress func(int) int64) (err error) {
				if err := at(progress, 0, x.size/2); err != nil {
					return err
				}
				n := x.c.Nodes[7]
				s, err := n.Status()
				if err != nil {
					return err
				}
				before = s.Bytes.FetchedFromOrigin
				if late, err = readFile(filepath.Join(x.lateDir, "ckpt"), x.size); err != nil {
					return err
				}
				if s, err = n.Status(); err != nil {
					return err
				}
				after = s.Bytes.FetchedFromOrigin
				return nil
			})
			if err != nil {
				return err
			}
			casts = append(casts, k)
			eff = append(eff, float64(x.size)/k.Goodput/late.Seconds())
			// What the origin sent beyond one copy was for it; what it fetched as an owner was for all.
			bytes = append(bytes, float64(k.Origin-x.size))
			others = append(others, k.efficiency(x.size))
			say("late joiner: %.1f s, fetched %d bytes from the origin as an owner", late.Seconds(), after-before)
		}
		b.emit("broadcast_late_joiner_efficiency", eff, map[string]any{"casts": casts, "efficiencyOfOthers": others}, "one of 8 begins when the others are at half: (S/B)/its T; reach 0.85")
		b.emit("broadcast_late_joiner_origin_bytes", bytes, nil, "bytes of the origin beyond one copy in the same runs; reach 0")
		return nil
	})
}

// broadcastSlow gives one of eight nodes a quarter of the rate.
func (b *bench) broadcastSlow() error {
	const slow = 3
	return b.broadcastIn(8, cluster.Options{}, func(x *broadcaster) error {
		if err := x.c.Nodes[slow].Host.Shape(cage.Link{RateMbit: b.mbit / 4, QueueMS: broadcastQueueMS}); err != nil {
			return err
		}
		var fast, own, copies []float64
		var casts []cast
		for range b.rounds {
			k, err := x.run(nodes(8), nil)
			if err != nil {
				return err
			}
			bound := float64(x.size) / k.Goodput
			var last time.Duration
			for i, d := range k.Each {
				if i != slow {
					last = max(last, d)
				}
			}
			casts = append(casts, k)
			fast = append(fast, bound/last.Seconds())
			own = append(own, bound*float64(b.mbit)/float64(b.mbit/4)/k.Each[slow].Seconds())
			copies = append(copies, float64(k.Origin)/float64(x.size))
			say("slow link: fast nodes %.3f, slow node %.3f of their bounds", fast[len(fast)-1], own[len(own)-1])
		}
		b.emit("broadcast_slow_link_fast_nodes", fast, casts, "one of 8 links at a quarter: (S/B)/T of the others; reach 0.87")
		b.emit("broadcast_slow_link_slow_node", own, nil, "its own bound / its T in the same runs; reach 0.90")
		b.emit("broadcast_slow_link_origin_copies", copies, nil, "bytes of the origin / S in the same runs")
		return nil
	})
}

// broadcastRacks has two racks of four, joined by a link of half the rate.
func (b *bench) broadcastRacks() error {
	return b.broadcastIn(0, cluster.Options{}, func(x *broadcaster) error {
		for i := range 8 {
			if i == 4 {
				if err := x.c.Cage.Rack(cage.Link{RateMbit: b.mbit / 2, QueueMS: broadcastQueueMS}); err != nil {
					return err
				}
			}
			if _, err := x.c.AddNode("--rack", fmt.Sprintf("rack%d", i/4)); err != nil {
				return err
			}
		}
		if err := x.c.WaitMembers(8); err != nil {
			return err
		}
		var worst, copies []float64
		var casts []cast
		for range b.rounds {
			in, out, err := x.c.Cage.RackBytes()
			if err != nil {
				return err
			}
			k, err := x.run(nodes(8), nil)
			if err != nil {
				return err
			}
			in2, out2, err := x.c.Cage.RackBytes()
			if err != nil {
				return err
			}
			casts = append(casts, k)
			worst = append(worst, float64(max(in2-in, out2-out))/float64(x.size))
			copies = append(copies, float64(k.Origin)/float64(x.size))
			say("racks: %.3f and %.3f copies crossed", float64(in2-in)/float64(x.size), float64(out2-out)/float64(x.size))
		}
		b.emit("broadcast_cross_rack_copies", worst, casts, "bytes over the link between two racks / S, the greater of both ways; reach at most 1.2")
		b.emit("broadcast_racks_origin_copies", copies, nil, "bytes of the origin / S in the same runs")
		return nil
	})
}
