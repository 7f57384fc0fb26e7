package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shardwell/shardwell/e2e/cluster"
	"github.com/shardwell/shardwell/e2e/load"
)

// Figures of a run, without flags.
const (
	killWithin  = 300 * time.Millisecond // of the daemon before it, at a random moment
	giveUpAfter = 5 * time.Second
	keptMounts  = 100
)

// handover ends the daemon of a node, and upgrades it, while readers of every kind use its mounts.
func (b *bench) handover() (err error) {
	dir, err := os.MkdirTemp("", "shardwell-bench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	s, err := load.Begin(seed)
	defer func() {
		if err != nil && s.C != nil {
			say("logs:\n%s", s.C.Logs(15))
		}
		err = errors.Join(err, s.Close())
	}()
	if err != nil {
		return err
	}
	for i := range b.kills {
		if err := s.Kill(killWithin); err != nil {
			return fmt.Errorf("kill %d: %w", i, err)
		}
		if i%50 == 49 {
			say("%d kills", i+1)
		}
	}
	killed := s.Kills
	s.Kills = nil
	next, ours := filepath.Join(dir, "shardwell"), s.C.Tools.Shardwell
	if err := load.BuildNext(s.C.Tools, next); err != nil {
		return err
	}
	for i := range b.upgrades {
		if err := s.Upgrade([]string{next, ours}[i%2], i%4 >= 2); err != nil {
			return fmt.Errorf("upgrade %d: %w", i, err)
		}
	}
	upgraded := s.Kills
	r, err := s.End()
	if err != nil {
		return err
	}
	b.judgeHandover(s, r, killed, upgraded)
	return nil
}

// judgeHandover prints what readers saw. What failed after the last kill is of the upgrades.
func (b *bench) judgeHandover(s *load.Scene, r load.Report, killed, upgraded []load.Moment) {
	evidence := map[string]any{"calls": r.Ops, "errors": r.Errors, "wrongBytes": r.Wrong, "failed": r.Failed, "kills": len(killed), "upgrades": len(upgraded)}
	b.emit("kill9_errors", []float64{float64(r.Failed) - float64(len(r.Wrong))}, evidence, "calls that failed over %d kills -9 at a random moment within %v and %d upgrades, of readers of every kind on two mounts with bytes from disk, peer and origin; reach 0", len(killed), killWithin, len(upgraded))
	b.emit("kill9_wrong_bytes", []float64{float64(len(r.Wrong))}, evidence, "the same run: reads with a wrong byte, and listings with a wrong name (at most 40 are counted); reach 0")
	b.emit("upgrade_errors", []float64{float64(r.Failed)}, evidence, "the same run: %d upgrades back and forth between two builds, half of them by a restarted service, half by a successor that stands by; reach 0", len(upgraded))
	s.Kills = killed
	b.stalls("kill9_stall_ms", s, r, "kills")
	s.Kills = upgraded
	b.stalls("upgrade_stall_ms", s, r, "upgrades")
}

// stalls prints how long readers waited.
func (b *bench) stalls(measure string, s *load.Scene, r load.Report, what string) {
	if len(s.Kills) == 0 {
		return
	}
	var ms, away []float64
	kinds := make(map[string]int)
	for i, c := range s.Stalls(r) {
		ms = append(ms, float64(time.Duration(c.Took).Milliseconds()))
		kinds[c.What]++
		away = append(away, float64(s.Kills[i].Served.Sub(s.Kills[i].Ended).Milliseconds()))
	}
	slices.Sort(ms)
	slices.Sort(away)
	at := func(all []float64, p float64) float64 { return all[min(len(all)-1, int(p*float64(len(all))))] }
	b.emit(measure+"_p99", []float64{at(ms, 0.99)}, map[string]any{"p50": at(ms, 0.5), "p90": at(ms, 0.9), "p99": at(ms, 0.99), "max": ms[len(ms)-1], "awayP50": at(away, 0.5), "awayMax": away[len(away)-1], "longest": kinds},
		"the longest call that was under way at each of %d %s, those aside that ask the origin; awayP50 and awayMax are from the kill to the next answer of both mounts; reach 500, max 2000", len(ms), what)
}

// giveUp measures how long readers of a mount wait that nobody serves any more, and what a keeper
// with many mounts takes.
func (b *bench) giveUp() error {
	return with(cluster.Options{Nodes: 1, Keeper: true}, func(c *cluster.Cluster) error {
		n := c.Nodes[0]
		if err := n.Stop(); err != nil {
			return err
		}
		if err := n.Keeper.Kill(); err != nil {
			return err
		}
		if err := n.StartKeeper("--give-up", giveUpAfter.String()); err != nil {
			return err
		}
		if err := n.Start(); err != nil {
			return err
		}
		var mounts []string
		for i := range keptMounts {
			key := fmt.Sprintf("g/%03d/f", i)
			if err := put(c, key, load.Spec{Size: 1 << 10}.Content(i).Reader(), 1<<10); err != nil {
				return err
			}
			dir, err := n.Mount(fmt.Sprintf("s3://%s/g/%03d", bucket, i))
			if err != nil {
				return err
			}
			mounts = append(mounts, dir)
		}
		rss, _, err := n.Keeper.Memory()
		if err != nil {
			return err
		}
		b.emit("keeper_rss_mib", []float64{float64(rss) / (1 << 20)}, map[string]any{"bytes": rss, "mounts": keptMounts}, "resident memory of the keeper with %d mounts; reach 16", keptMounts)
		began := time.Now()
		if err := n.End(); err != nil {
			return err
		}
		took := make([]float64, len(mounts))
		_, err = atOnce(len(mounts), func(i int) error {
			var st unix.Stat_t
			err := unix.Stat(filepath.Join(mounts[i], "f"), &st)
			took[i] = time.Since(began).Seconds()
			if err == nil {
				return errors.New("a call was answered by nobody")
			}
			return nil
		})
		if err != nil {
			return err
		}
		b.emit("giveup_s", []float64{slices.Max(took)}, map[string]any{"seconds": took, "stuck": load.Stuck([]int{os.Getpid()})}, "from the kill of a daemon that does not come back until the last of %d readers had an error, with --give-up %v; reach that + 5 s, and none stuck", len(mounts), giveUpAfter)
		return nil
	})
}
