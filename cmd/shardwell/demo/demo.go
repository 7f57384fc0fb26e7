// Package demo shows the whole of Shardwell on one machine: an S3 server, nodes
// as processes of their own, mounts, two epochs over a small dataset and one
// simultaneous restore of a large file.
//
// It promises that every byte that it reads is compared with the source, that
// what it says of the origin was counted at the origin, and that nothing is
// left behind: no process, no mount, no file, whether it ends by itself, by an
// error or by Ctrl-C. It takes no part in how nodes work: it speaks to them as
// any user does, by flags, control socket and files. It is a part.
package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/shardwell/shardwell/objstore/s3/s3server"
)

// Options say what to show.
type Options struct {
	Nodes      int
	Keep       bool      // leave it running until ctx ends
	Progress   io.Writer // lines on what happens
	Result     io.Writer // the table
	Executable string    // the program that has the node command
}

// Limits of a demonstration.
const (
	MaxNodes = 9 // processes on one machine; more show nothing else

	bucketName     = "demo"
	shardCount     = 12
	samplesInShard = 40
	checkpointSize = 256 << 20 // bytes
	seed           = 1         // of pictures and checkpoint: the same bytes every time
)

// ErrDiffers says that a reader saw other bytes than the source has.
var ErrDiffers = errors.New("bytes differ from the source")

// Run shows it. It returns an error when a step cannot be done or bytes differ,
// and otherwise what else is not as promised, one sentence each.
func Run(ctx context.Context, o Options) (complaints []string, err error) {
	if o.Nodes < 1 || o.Nodes > MaxNodes {
		return nil, fmt.Errorf("%d nodes: must be 1 to %d", o.Nodes, MaxNodes)
	}
	if err := checkMounts(); err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "shardwell-demo-")
	if err != nil {
		return nil, err
	}
	d := &demo{Options: o, dir: dir}
	defer func() {
		cleanErr := d.clean()
		if err == nil {
			err = cleanErr
		}
		if cleanErr == nil && (o.Keep || err != nil) {
			d.say("ended the nodes and removed %s", d.dir)
		}
	}()
	if err := d.prepare(ctx); err != nil {
		return nil, err
	}
	steps, err := d.show(ctx)
	if len(steps) > 0 {
		d.table(steps)
	}
	if err != nil {
		return nil, err
	}
	complaints = d.judge(steps)
	if o.Keep {
		d.invite()
		<-ctx.Done()
	}
	return complaints, nil
}

// checkMounts says what keeps this user from mounting, before any work is done in vain.
func checkMounts() error {
	if os.Geteuid() != 0 {
		return errors.New("it mounts file systems, which only root may: run it with sudo")
	}
	f, err := os.OpenFile("/dev/fuse", os.O_RDWR, 0)
	if err != nil {
		return fmt.Errorf("it mounts file systems by FUSE, which this machine lacks: %w", err)
	}
	return f.Close()
}

func nodes(n int) string {
	if n == 1 {
		return "1 node"
	}
	return fmt.Sprintf("%d nodes", n)
}

// demo is a demonstration that runs.
type demo struct {
	Options
	dir     string // everything lies in it
	source  *dataset
	origin  *s3server.Server
	stop    context.CancelFunc // of the origin
	stopped chan struct{}      // closed when the origin has ended
	nodes   *cluster
}

func (d *demo) say(format string, args ...any) { fmt.Fprintf(d.Progress, format+"\n", args...) }

// prepare makes the dataset and starts origin, nodes and mounts.
func (d *demo) prepare(ctx context.Context) (err error) {
	started := time.Now()
	d.say("making %d shards of JPEG pictures and a checkpoint of %d MiB in %s", shardCount, checkpointSize>>20, d.dir)
	if d.source, err = makeDataset(ctx, filepath.Join(d.dir, "source")); err != nil {
		return fmt.Errorf("make the dataset: %w", err)
	}
	if err := d.startOrigin(); err != nil {
		return fmt.Errorf("start the S3 server: %w", err)
	}
	d.say("%s MB behind %s; starting %s", megabytes(d.source.bytes()), d.origin.URL(), nodes(d.Options.Nodes))
	d.nodes = newCluster(d.Executable, d.dir, d.origin.URL())
	if err := d.nodes.start(ctx, d.Options.Nodes); err != nil {
		return err
	}
	d.say("mounted on %s; ready after %.1f s", d.nodes.all[0].mount, time.Since(started).Seconds())
	return nil
}

// startOrigin serves the dataset from a folder of its own.
func (d *demo) startOrigin() error {
	dir := filepath.Join(d.dir, "origin")
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	s, err := s3server.New(s3server.Config{Dir: dir, Buckets: []string{bucketName}})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background()) // ends after the nodes, not before
	d.origin, d.stop, d.stopped = s, cancel, make(chan struct{})
	go func() {
		defer close(d.stopped)
		if err := s.Run(ctx); err != nil {
			d.say("%v", err)
		}
	}()
	for _, f := range d.source.files() {
		if _, err := s.Put(bucketName, f.key, f.path); err != nil {
			return err
		}
	}
	return nil
}

// clean ends everything, in the reverse order of its start.
func (d *demo) clean() error {
	var errs []error
	if d.nodes != nil {
		errs = append(errs, d.nodes.end())
	}
	if d.stop != nil {
		d.stop()
		<-d.stopped
	}
	if d.source != nil {
		d.source.close()
	}
	if left := takeAwayMounts(d.dir); len(left) > 0 {
		errs = append(errs, fmt.Errorf("mounts are left: %v", left))
		return errors.Join(errs...) // never remove through a mount
	}
	return errors.Join(append(errs, os.RemoveAll(d.dir))...)
}

// invite tells the user what there is to look at.
func (d *demo) invite() {
	d.say("\nIt is all still there, until Ctrl-C, which removes it:")
	for _, n := range d.nodes.all {
		d.say("  %s  mount %s  log %s", n.name, n.mount, n.log)
		d.say("          %s status --control-socket %s", d.Executable, n.socket)
		d.say("          curl http://%s/metrics", n.metrics)
	}
	d.say("  origin  %s ls s3://%s/ --anonymous --endpoint %s --region us-east-1 --control-socket %s", d.Executable, bucketName, d.origin.URL(), filepath.Join(d.dir, "none"))
	d.say("  secret  %s", d.nodes.secret)
}
