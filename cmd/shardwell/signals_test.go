package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/shardwell/shardwell/fuse"
	"github.com/shardwell/shardwell/objstore/s3/s3server"
)

// What a row of signals, each some time after the one before, does to a command that never ends.
func TestSignals(t *testing.T) {
	type sent struct {
		sig   os.Signal
		after time.Duration
	}
	const eternity = 10 * stopWithin
	for name, c := range map[string]struct {
		row  []sent
		when time.Duration // of the forced exit, after the first signal
		code int
	}{
		"one SIGTERM":                 {[]sent{{syscall.SIGTERM, 0}}, stopWithin, exitFailed},
		"SIGTERM again and again":     {[]sent{{syscall.SIGTERM, 0}, {syscall.SIGTERM, 0}, {syscall.SIGTERM, 5 * time.Second}}, stopWithin, exitFailed},
		"one SIGINT":                  {[]sent{{syscall.SIGINT, 0}}, stopWithin, exitFailed},
		"SIGINT twice at once":        {[]sent{{syscall.SIGINT, 0}, {syscall.SIGINT, insistAfter / 2}}, stopWithin, exitFailed},
		"SIGINT, and meant":           {[]sent{{syscall.SIGINT, 0}, {syscall.SIGINT, insistAfter}}, insistAfter, exitInterrupted},
		"SIGINT, and meant at last":   {[]sent{{syscall.SIGINT, 0}, {syscall.SIGINT, 1}, {syscall.SIGINT, 2 * insistAfter}}, 2*insistAfter + 1, exitInterrupted},
		"SIGTERM, then one SIGINT":    {[]sent{{syscall.SIGTERM, 0}, {syscall.SIGINT, 5 * time.Second}}, stopWithin, exitFailed},
		"SIGINT, then SIGTERM":        {[]sent{{syscall.SIGINT, 0}, {syscall.SIGTERM, 5 * time.Second}}, stopWithin, exitFailed},
		"the terminal is closed":      {[]sent{{syscall.SIGHUP, 0}}, stopWithin, exitFailed},
		"SIGTERM, then SIGINT, twice": {[]sent{{syscall.SIGTERM, 0}, {syscall.SIGINT, time.Second}, {syscall.SIGINT, insistAfter}}, time.Second + insistAfter, exitInterrupted},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				signals := make(chan os.Signal)
				forced := make(chan int, 1)
				ctx, cancel := context.WithCancelCause(t.Context())
				done, ended := make(chan struct{}), make(chan struct{})
				go func() {
					defer close(ended)
					stopper{signals, cancel, func(code int, _ string) { forced <- code }}.run(done)
				}()
				var began time.Time
				for _, s := range c.row {
					time.Sleep(s.after)
					if began.IsZero() {
						began = time.Now()
					}
					signals <- s.sig
				}
				select {
				case code := <-forced:
					if took := time.Since(began); took != c.when || code != c.code {
						t.Errorf("forced after %v with %d, want %v and %d", took, code, c.when, c.code)
					}
				case <-time.After(eternity):
					t.Error("never forced")
				}
				if cause := context.Cause(ctx); !errors.Is(cause, context.Canceled) || cause.Error() != c.row[0].sig.String() {
					t.Errorf("the context ended with %v", cause)
				}
				close(done)
				<-ended
			})
		})
	}
}

func TestACommandThatEndsIsNotForced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		signals, done := make(chan os.Signal, 1), make(chan struct{})
		signals <- syscall.SIGTERM
		ctx, cancel := context.WithCancelCause(t.Context())
		go stopper{signals, cancel, func(int, string) { t.Error("forced") }}.run(done)
		<-ctx.Done()
		close(done)
		time.Sleep(2 * stopWithin)
	})
}

func TestTheLastResortForgetsWhatIsDone(t *testing.T) {
	var l lastResort
	var did []string
	l.add(func() { did = append(did, "a") })
	l.add(func() { did = append(did, "b") })()
	l.run()
	if fmt.Sprint(did) != "[a]" {
		t.Errorf("done: %v", did)
	}
	(*lastResort)(nil).add(func() {})()
}

// A storm of SIGTERM, at each line that a mount in the foreground logs from its start on: it ends by
// itself each time, and no mount is left behind.
func TestAStormOfSignalsAtAnyStageLeavesNoMount(t *testing.T) {
	if ok, err := condition("mounts"); err != nil || !ok {
		t.Skip("mounts need root and /dev/fuse")
	}
	origin, err := s3server.New(s3server.Config{Dir: t.TempDir(), Buckets: []string{"data"}})
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, []byte("hello"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := origin.Put("data", "k", file); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- origin.Run(ctx) }()
	defer func() {
		cancel()
		<-served
	}()
	const mostLines = 60
	for line := range mostLines {
		if !storm(t, origin.URL(), line) {
			if line < 3 {
				t.Errorf("only %d lines in the log of a node", line)
			}
			return
		}
	}
}

// storm starts a mount and sends SIGTERM without a pause from the line with that number on. It
// reports false when the mount stood before there were so many.
func storm(t *testing.T, endpoint string, line int) bool {
	t.Helper()
	dir, err := os.MkdirTemp("", "sw") // short, for the socket
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	defer takeAway(dir)
	mnt := filepath.Join(dir, "mnt")
	if err := os.Mkdir(mnt, 0o700); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("shardwell", "mount", "s3://data/", mnt, "--foreground", "--log-level", "debug", "--cache-dir", filepath.Join(dir, "cache"),
		"--bind", "127.0.0.1:0", "--peer-bind", "127.0.0.1:0", "--metrics-bind", "off", "--control-socket", filepath.Join(dir, "c.sock"),
		"--endpoint", endpoint, "--region", "us-east-1", "--anonymous")
	stderr, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	log, reached, stands := "", false, false
	lines := bufio.NewScanner(stderr)
	for n := 0; !reached && lines.Scan(); n++ {
		log += lines.Text() + "\n"
		stands = stands || lines.Text() == "Ctrl-C unmounts"
		reached = n == line || stands
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for lines.Scan() {
			log += lines.Text() + "\n"
		}
	}()
	again := time.NewTicker(time.Millisecond)
	defer again.Stop()
	for sending := true; sending; {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		select {
		case <-ended: // it has closed its standard error
			sending = false
		case <-again.C:
		}
	}
	err = cmd.Wait()
	var exit *exec.ExitError
	if errors.As(err, &exit) && !exit.Exited() {
		t.Errorf("from line %d on: %v; its log:\n%s", line, err, log)
	}
	if e, ok := fuse.FindMount(mnt); ok {
		t.Errorf("from line %d on: left %v; its log:\n%s", line, e, log)
	}
	return !stands
}
