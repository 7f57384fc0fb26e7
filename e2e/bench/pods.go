package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/shardwell/shardwell/e2e/cluster"
	"github.com/shardwell/shardwell/e2e/csi"
	"github.com/shardwell/shardwell/e2e/origin"
)

// What Pods are measured with.
const (
	podsAtOnce   = 50
	idleVolumes  = 100
	podFileBytes = 1 << 20
	podTimeout   = 2 * time.Minute // of one call, as the kubelet's
)

// pods publishes volumes as a kubelet does.
func (b *bench) pods() error {
	if err := b.sanity(); err != nil {
		return err
	}
	m := origin.NewMemory()
	for i := range idleVolumes {
		m.Put(fmt.Sprintf("d%03d/a", i), make([]byte, podFileBytes))
	}
	opts := cluster.Options{Nodes: 1, Origin: origin.Options{Store: m}, CacheSize: "4Gi"}
	return with(opts, func(c *cluster.Cluster) error {
		d, err := csi.Start(c, c.Nodes[0])
		if err != nil {
			return err
		}
		err = b.publishes(c, d)
		if err == nil {
			err = b.idle(c, d)
		}
		if closed := d.Close(); err == nil {
			err = closed
		}
		return err
	})
}

// publishes measures 50 publishes at once of a dataset that one Pod has already.
func (b *bench) publishes(c *cluster.Cluster, d *csi.Driver) error {
	attributes := map[string]string{"bucketName": bucket, "prefix": "d000"}
	ctx, cancel := context.WithTimeout(context.Background(), time.Duration(b.rounds)*podTimeout)
	defer cancel()
	if _, err := d.Publish(ctx, "first", attributes); err != nil {
		return err
	}
	var p99, calls []float64
	var evidence []map[string]any
	for range b.rounds {
		c.Origin.Reset()
		took := make([]float64, podsAtOnce)
		if err := eachPod(func(i int, pod string) error {
			began := time.Now()
			_, err := d.Publish(ctx, pod, attributes)
			took[i] = float64(time.Since(began)) / 1e6
			return err
		}); err != nil {
			return err
		}
		requests := len(c.Origin.Requests())
		mounts := len(d.Mounts())
		if err := eachPod(func(_ int, pod string) error { return d.Unpublish(ctx, pod) }); err != nil {
			return err
		}
		slices.Sort(took)
		p99 = append(p99, took[podsAtOnce*99/100])
		calls = append(calls, float64(requests)/podsAtOnce)
		evidence = append(evidence, map[string]any{"medianMs": took[podsAtOnce/2], "requests": requests, "mounts": mounts})
	}
	b.emit("publish_ms_p99", p99, map[string]any{"rounds": evidence}, "99th percentile of NodePublishVolume in milliseconds, %d at once of a dataset that one Pod has; reach at most 500", podsAtOnce)
	b.emit("origin_calls_per_publish", calls, map[string]any{"rounds": evidence}, "requests at the origin for each of %d more Pods of one dataset and identity; reach 0", podsAtOnce)
	return d.Unpublish(ctx, "first")
}

// eachPod does something for all Pods at once.
func eachPod(do func(i int, pod string) error) error {
	errs := make([]error, podsAtOnce)
	var wg sync.WaitGroup
	for i := range podsAtOnce {
		wg.Go(func() { errs[i] = do(i, fmt.Sprintf("pod-%d", i)) })
	}
	wg.Wait()
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// idle measures the memory of a node with volumes that nobody reads, each of another dataset, so that each is a mount of its own.
func (b *bench) idle(c *cluster.Cluster, d *csi.Driver) error {
	ctx, cancel := context.WithTimeout(context.Background(), podTimeout)
	defer cancel()
	before, _, err := c.Nodes[0].Proc.Memory()
	if err != nil {
		return err
	}
	for i := range idleVolumes {
		dir, err := d.Publish(ctx, fmt.Sprintf("idle-%d", i), map[string]string{"bucketName": bucket, "prefix": fmt.Sprintf("d%03d", i)})
		if err != nil {
			return err
		}
		if _, err := os.ReadDir(dir); err != nil {
			return err
		}
	}
	after, peak, err := c.Nodes[0].Proc.Memory()
	if err != nil {
		return err
	}
	driver, _, err := d.Proc.Memory()
	if err != nil {
		return err
	}
	mounts := len(d.Mounts())
	for i := range idleVolumes {
		if err := d.Unpublish(ctx, fmt.Sprintf("idle-%d", i)); err != nil {
			return err
		}
	}
	b.emit("node_rss_100_mounts_mib", []float64{float64(after) / (1 << 20)},
		map[string]any{"before": before, "after": after, "peak": peak, "driver": driver, "mounts": mounts},
		"resident memory of the daemon with %d published idle volumes of as many datasets, each listed once; reach at most 256", idleVolumes)
	return nil
}

// ran is what the suite says in the end.
var ran = regexp.MustCompile(`(?s)Ran (\d+) of (\d+) Specs.*?(\d+) Passed.*?(\d+) Failed.*?(\d+) Pending.*?(\d+) Skipped`)

// sanity runs csi-sanity as the tests do, and counts what failed.
func (b *bench) sanity() error {
	tools, err := cluster.Prepare()
	if err != nil {
		return err
	}
	cmd := exec.Command("go", "test", "-count=1", "-v", "-run", "TestSanity", "./csi")
	cmd.Dir = filepath.Join(tools.Root, "e2e")
	cmd.Env = append(os.Environ(), "SHARDWELL_BIN="+tools.Shardwell)
	out, err := cmd.CombinedOutput()
	plain := regexp.MustCompile(`\x1b\[[0-9;]*m`).ReplaceAll(out, nil)
	m := ran.FindSubmatch(plain)
	if m == nil {
		return fmt.Errorf("csi-sanity: %w: %s", err, plain[max(0, len(plain)-2000):])
	}
	counts := make([]int, len(m)-1)
	for i := range counts {
		counts[i], _ = strconv.Atoi(string(m[i+1]))
	}
	b.emit("sanity_failures", []float64{float64(counts[3])},
		map[string]any{"ran": counts[0], "of": counts[1], "passed": counts[2], "failed": counts[3], "pending": counts[4], "skipped": counts[5]},
		"specs of csi-sanity that failed; skipped are those of services and capabilities that the driver does not have; reach 0")
	return nil
}
