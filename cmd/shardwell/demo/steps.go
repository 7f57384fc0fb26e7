package demo

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/shardwell/shardwell/internal/control"
)

// step is what one step read, and from where.
type step struct {
	name     string
	duration time.Duration
	unique   int64 // bytes that were asked for, each counted once
	read     int64 // by all nodes
	origin   int64 // bytes that left the origin, counted there
	gets     int64 // requests for them
	sources  control.Bytes
	sent     []int64             // to peers, by node
	casts    []control.Broadcast // of the checkpoint, as the status shows them
}

// passthrough is what readers got and no daemon gave: the kernel read it from a
// file of the cache by itself.
func (s step) passthrough() int64 {
	if s.sources.PassthroughOpens == 0 {
		return 0
	}
	b := s.sources
	return max(0, s.read-b.Origin-b.Peer-b.Disk-b.Memory)
}

// show runs the steps. Those that are done are returned with an error too.
func (d *demo) show(ctx context.Context) ([]step, error) {
	var steps []step
	for _, s := range []struct {
		name string
		// files returns what a node reads, in its order.
		files func(node int) []sourceFile
	}{
		{"epoch 1", d.rotated},
		{"epoch 2", d.rotated},
		{"checkpoint", func(int) []sourceFile { return []sourceFile{d.source.checkpoint} }},
	} {
		done, err := d.step(ctx, s.name, s.files)
		if err != nil {
			return steps, fmt.Errorf("%s: %w", s.name, err)
		}
		if s.name == "checkpoint" {
			st, err := d.nodes.all[0].client.Status(ctx)
			if err != nil {
				return steps, d.nodes.all[0].blame(ctx, "status", err)
			}
			for _, b := range st.Broadcasts {
				if strings.HasSuffix(b.Object, d.source.checkpoint.key) {
					done.casts = append(done.casts, b)
				}
			}
		}
		steps = append(steps, done)
	}
	return steps, nil
}

// rotated returns all shards, from another one on for every node, as ranks
// of a training job have them.
func (d *demo) rotated(node int) []sourceFile {
	first := node * shardCount / d.Options.Nodes
	return append(append([]sourceFile{}, d.source.shards[first:]...), d.source.shards[:first]...)
}

// step lets all nodes read at once and compares what they get.
func (d *demo) step(ctx context.Context, name string, files func(node int) []sourceFile) (step, error) {
	s := step{name: name}
	for _, f := range files(0) {
		s.unique += int64(len(f.data))
	}
	before, err := d.counters(ctx)
	if err != nil {
		return s, err
	}
	gets, sent := d.origin.Counter.Gets.Load(), d.origin.Counter.Bytes.Load()
	started := time.Now()
	if err := d.readAll(ctx, files); err != nil {
		return s, err
	}
	s.duration = time.Since(started)
	s.read = s.unique * int64(len(d.nodes.all))
	s.origin, s.gets = d.origin.Counter.Bytes.Load()-sent, d.origin.Counter.Gets.Load()-gets
	after, err := d.counters(ctx)
	if err != nil {
		return s, err
	}
	for i := range after {
		delta := minus(after[i], before[i])
		s.sent = append(s.sent, delta.SentToPeers)
		s.sources = plus(s.sources, delta)
	}
	return s, nil
}

// readAll returns when all readers have ended, at the first error or the end of
// ctx. A reader that waits in the kernel is then freed by the end of its node.
func (d *demo) readAll(ctx context.Context, files func(node int) []sourceFile) error {
	group, ctx := errgroup.WithContext(ctx)
	for i, m := range d.nodes.all {
		group.Go(func() error {
			for _, f := range files(i) {
				if err := compare(ctx, filepath.Join(m.mount, f.key), f.data); err != nil {
					return fmt.Errorf("%s: %w", m.name, err)
				}
			}
			return nil
		})
	}
	done := make(chan error, 1)
	go func() { done <- group.Wait() }()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
	}
	select {
	case err := <-done:
		return err
	case <-time.After(stopTimeout / 5): // stuck in the kernel
		_ = d.nodes.end()
		return errors.Join(context.Cause(ctx), <-done)
	}
}

const readBytes = 1 << 20 // of one read

// compare reads a file from a mount, once and in order, and compares every byte.
func compare(ctx context.Context, path string, want []byte) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	// What the kernel kept of an earlier step would hide where bytes come from.
	_ = unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED)
	st, err := f.Stat()
	if err != nil {
		return err
	}
	if st.Size() != int64(len(want)) {
		return fmt.Errorf("%s: %d bytes long instead of %d: %w", path, st.Size(), len(want), ErrDiffers)
	}
	buf := make([]byte, readBytes)
	for off := 0; ; {
		if err := ctx.Err(); err != nil {
			return context.Cause(ctx)
		}
		n, err := f.Read(buf)
		if off+n > len(want) || !bytes.Equal(buf[:n], want[off:off+n]) {
			return fmt.Errorf("%s: at byte %d: %w", path, off+firstDifference(buf[:n], want[off:]), ErrDiffers)
		}
		off += n
		if errors.Is(err, io.EOF) {
			if off != len(want) {
				return fmt.Errorf("%s: ends at byte %d of %d: %w", path, off, len(want), ErrDiffers)
			}
			return nil
		}
		if err != nil {
			return err
		}
	}
}

func firstDifference(a, b []byte) int {
	for i := range a {
		if i >= len(b) || a[i] != b[i] {
			return i
		}
	}
	return len(a)
}

// counters asks all nodes what they have counted.
func (d *demo) counters(ctx context.Context) ([]control.Bytes, error) {
	var out []control.Bytes
	for _, m := range d.nodes.all {
		st, err := m.client.Status(ctx)
		if err != nil {
			return nil, m.blame(ctx, "status", err)
		}
		out = append(out, st.Bytes)
	}
	return out, nil
}

func minus(a, b control.Bytes) control.Bytes {
	return control.Bytes{
		Origin: a.Origin - b.Origin, Peer: a.Peer - b.Peer, Disk: a.Disk - b.Disk, Memory: a.Memory - b.Memory,
		PassthroughOpens: a.PassthroughOpens - b.PassthroughOpens, SentToPeers: a.SentToPeers - b.SentToPeers,
		FetchedFromOrigin: a.FetchedFromOrigin - b.FetchedFromOrigin, FetchedFromPeers: a.FetchedFromPeers - b.FetchedFromPeers,
	}
}

func plus(a, b control.Bytes) control.Bytes { return minus(a, minus(control.Bytes{}, b)) }
