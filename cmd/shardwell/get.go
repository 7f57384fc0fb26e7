package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/shardwell/shardwell/internal/config"
	"github.com/shardwell/shardwell/internal/control"
	"github.com/shardwell/shardwell/objstore"
)

// Limits of `shardwell get`.
const (
	getFilesAtOnce = 2 // each has a window of chunks under way, in every node that gets the same
	getProgress    = 2 * time.Second
	maxGetFailures = 10 // told one by one
	partSuffix     = ".shardwell-part"
)

func newGet(s streams) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "get URI DIR [flags]",
		Short: "Copy a dataset into a directory, through the cluster",
		Long: `Copies what lies under s3://BUCKET/PREFIX, or one object, into DIR: checked bytes of one version each, by the
way that reads of a mount take, so that many nodes which get the same at once pass it on to each other. No mount is
needed. The node that runs on this machine does it; without one, this command is a node itself while it works.`,
		Example:           `  shardwell get s3://models/llama/ckpt-4000 /local/ckpt`,
		Args:              exactArgs("URI", "DIR"),
		ValidArgsFunction: completeURI,
	}
	opts := configured(cmd, config.ScopeNode, config.ScopeOrigin, config.ScopeClient)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		cfg, err := opts.load()
		if err != nil {
			return err
		}
		if _, err := config.ParseURI(args[0]); err != nil {
			return err
		}
		return runGet(cmd.Context(), s, cfg, args[0], args[1])
	}
	return cmd
}

// source is who lists and reads.
type source interface {
	List(ctx context.Context, req control.ListRequest, yield func(control.Entry) error) error
	Read(ctx context.Context, req control.ReadRequest, begin func(control.Entry) error, write func([]byte) error) error
}

func runGet(ctx context.Context, s streams, cfg config.Resolved, uri, dir string) error {
	client, err := control.Dial(ctx, cfg.ControlSocket)
	switch {
	case err == nil:
		defer client.Close()
		if err := onlyMountOptions(cfg); err != nil {
			return err
		}
		return (&getter{from: client, s: s, options: cfg.Attributes()}).all(ctx, uri, dir)
	case !errors.Is(err, control.ErrNoNode):
		return err
	}
	if err := ownCache(s, &cfg.Config); err != nil {
		return err
	}
	if u, err := config.ParseURI(uri); err == nil && u.Dir != "" {
		cfg.OriginDirs = append(cfg.OriginDirs, u.Dir) // the user named it, and nobody else asks
	}
	if cfg.Source("log-level").Kind == "default" {
		cfg.LogLevel = "warn"
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	d, err := startDaemon(ctx, s, cfg.Config, nil, newLogger(s, cfg.Config))
	if err != nil {
		return err
	}
	err = (&getter{from: d.node, s: s}).all(ctx, uri, dir)
	stop()
	<-d.stopped
	return errors.Join(err, d.err)
}

// getter is one run of the command.
type getter struct {
	from    source
	s       streams
	options map[string]string
	root    *os.Root

	bytes, total atomic.Int64
	files        atomic.Int64

	mu       sync.Mutex
	failures []error
	failed   int
}

// all copies everything under a URI.
func (g *getter) all(ctx context.Context, uri, dir string) (err error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("directory %s: %w", dir, errors.Unwrap(err))
	}
	if g.root, err = os.OpenRoot(dir); err != nil {
		return fmt.Errorf("directory %s: %w", dir, err)
	}
	defer g.root.Close()
	begin := time.Now()
	stop := g.progress(begin)
	defer stop()
	var work errgroup.Group
	work.SetLimit(getFilesAtOnce)
	found, err := g.under(ctx, &work, uri, "")
	if waitErr := work.Wait(); err == nil {
		err = waitErr
	}
	if found == 0 && (err == nil || errors.Is(err, objstore.ErrNotExist)) { // the URI is an object
		err = g.file(ctx, uri, "", path.Base(strings.TrimSuffix(uri, "/")))
	}
	stop()
	switch {
	case err != nil:
		return err
	case g.failed == 0:
		fmt.Fprintf(g.s.err, "%d files, %s in %v\n", g.files.Load(), sizeOf(g.bytes.Load()), time.Since(begin).Round(10*time.Millisecond))
		return nil
	}
	err = errors.Join(g.failures...)
	if more := g.failed - len(g.failures); more > 0 {
		err = fmt.Errorf("%w; and %d more", err, more)
	}
	if g.files.Load() > 0 {
		return partly{err}
	}
	return err
}

// under copies the objects of one directory and below, and returns how many there are.
func (g *getter) under(ctx context.Context, work *errgroup.Group, uri, prefix string) (found int, err error) {
	var dirs []string
	base := strings.TrimSuffix(uri, "/") + "/"
	err = g.from.List(ctx, control.ListRequest{URI: base + prefix, Options: g.options}, func(e control.Entry) error {
		if strings.HasSuffix(e.Name, "/") {
			dirs = append(dirs, prefix+e.Name)
			return nil
		}
		found++
		name := prefix + e.Name
		if !fs.ValidPath(name) {
			g.fail(fmt.Errorf("%s: cannot be a path", printable(name)))
			return nil
		}
		g.total.Add(e.Size)
		work.Go(func() error {
			if err := g.file(ctx, uri, name, name); err != nil {
				if ctx.Err() != nil {
					return ctx.Err()
				}
				g.fail(err)
			}
			return nil
		})
		return ctx.Err()
	})
	for _, d := range dirs {
		if err != nil {
			break
		}
		var n int
		n, err = g.under(ctx, work, uri, d)
		found += n
	}
	return found, err
}

func (g *getter) fail(err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.failed++; len(g.failures) < maxGetFailures {
		g.failures = append(g.failures, err)
	}
}

// file copies one object. Its name appears when all of its bytes are there.
func (g *getter) file(ctx context.Context, uri, name, to string) (err error) {
	if dir := path.Dir(to); dir != "." {
		if err := g.root.MkdirAll(dir, 0o755); err != nil {
			return fmt.Errorf("%s: %w", to, err)
		}
	}
	part := to + partSuffix
	f, err := g.root.OpenFile(part, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o644)
	if err != nil {
		return fmt.Errorf("%s: %w", to, err)
	}
	defer func() {
		if err != nil {
			_ = g.root.Remove(part)
		}
	}()
	err = g.from.Read(ctx, control.ReadRequest{URI: uri, Name: name, Options: g.options},
		func(e control.Entry) error {
			if name == "" {
				g.total.Add(e.Size)
			}
			return nil
		},
		func(p []byte) error {
			n, err := f.Write(p)
			g.bytes.Add(int64(n))
			return err
		})
	if closeErr := f.Close(); err == nil {
		err = closeErr
	}
	if err == nil {
		err = g.root.Rename(part, to)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", printable(to), err)
	}
	g.files.Add(1)
	return nil
}

// progress tells now and then how far it is, until stop is called.
func (g *getter) progress(begin time.Time) (stop func()) {
	done := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		tick := time.NewTicker(getProgress)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
			case <-done:
				return
			}
			bytes, total := g.bytes.Load(), g.total.Load()
			rate := float64(bytes) / time.Since(begin).Seconds()
			left := "?"
			if rate > 0 {
				left = time.Duration(float64(total-bytes) / rate * float64(time.Second)).Round(time.Second).String()
			}
			fmt.Fprintf(g.s.err, "%s of %s, %s/s, %s left\n", sizeOf(bytes), sizeOf(total), sizeOf(int64(rate)), left)
		}
	})
	return sync.OnceFunc(func() { close(done); wg.Wait() })
}

// sizeOf writes bytes for people.
func sizeOf(n int64) string {
	const units = "KMGTP"
	if n < 1<<10 {
		return fmt.Sprintf("%d B", n)
	}
	f, i := float64(n)/(1<<10), 0
	for f >= 1<<10 && i < len(units)-1 {
		f, i = f/(1<<10), i+1
	}
	return fmt.Sprintf("%.1f %ciB", f, units[i])
}
