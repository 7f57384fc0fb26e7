package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
	"golang.org/x/sys/unix"

	"github.com/shardwell/shardwell/fuse"
	"github.com/shardwell/shardwell/objstore/s3/s3server"
)

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){"shardwell": main})
}

// TestScripts runs testdata/*.txtar, which read like a manual. Besides the
// commands of testscript they know
//
//	origin PREFIX=FILE...   an S3 server with the bucket "data"; sets $ENDPOINT
//	free-port NAME          sets $NAME to a free address on loopback
//	ready SOCKET            waits until a node answers
//	mounted PATTERN         waits until something is mounted on such a directory
//	code N PROGRAM ARGS...  runs a program that must end with this code
//
// and the condition [mounts].
func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata",
		RequireExplicitExec: true,
		Setup:               setupScript,
		Condition:           condition,
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"origin":    cmdOrigin,
			"free-port": cmdFreePort,
			"ready":     cmdReady,
			"mounted":   cmdMounted,
			"code":      cmdCode,
		},
	})
}

func setupScript(e *testscript.Env) error {
	// Paths of sockets are at most 107 bytes long; those of test folders are near it.
	short, err := os.MkdirTemp("", "sw")
	if err != nil {
		return err
	}
	e.Setenv("RUN", short)
	e.Setenv("HOME", e.WorkDir)
	e.Setenv("SHARDWELL_CONTROL_SOCKET", filepath.Join(short, "c.sock"))
	e.Setenv("AWS_EC2_METADATA_DISABLED", "true")
	e.Defer(func() {
		for _, root := range []string{e.WorkDir, short} {
			takeAway(root)
		}
		_ = os.RemoveAll(short)
	})
	return nil
}

// takeAway ends mounts that a failed script left.
func takeAway(root string) {
	all, _ := fuse.Mounts()
	for _, m := range all {
		if strings.HasPrefix(m.Dir, root+"/") {
			_ = unix.Unmount(m.Dir, unix.MNT_DETACH)
		}
	}
}

// cmdCode runs a program that must end with a code: code 2 shardwell status.
func cmdCode(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: code N program [args...]")
	}
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	err = ts.Exec(args[1], args[2:]...)
	got := 0
	var exit interface{ ExitCode() int }
	if errors.As(err, &exit) {
		got = exit.ExitCode()
	} else {
		ts.Check(err)
	}
	if got != want {
		ts.Fatalf("exit code %d, want %d", got, want)
	}
}

func cmdOrigin(ts *testscript.TestScript, neg bool, args []string) {
	dir := ts.MkAbs("origin-files")
	ts.Check(os.MkdirAll(dir, 0o700))
	s, err := s3server.New(s3server.Config{Dir: dir, Buckets: []string{"data"}})
	ts.Check(err)
	for _, a := range args {
		key, file, _ := strings.Cut(a, "=")
		_, err := s.Put("data", key, ts.MkAbs(file))
		ts.Check(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	ts.Defer(func() {
		cancel()
		<-done
	})
	ts.Setenv("ENDPOINT", s.URL())
}

func cmdFreePort(ts *testscript.TestScript, neg bool, args []string) {
	for _, name := range args {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		ts.Check(err)
		defer l.Close() // when all are found, so that none comes twice
		ts.Setenv(name, l.Addr().String())
	}
}

const readyTimeout = 20 * time.Second

func cmdReady(ts *testscript.TestScript, neg bool, args []string) {
	socket := ts.Getenv("SHARDWELL_CONTROL_SOCKET")
	if len(args) > 0 {
		socket = args[0]
	}
	await(ts, func() error {
		c, err := net.Dial("unix", socket)
		if err == nil {
			_ = c.Close()
		}
		return err
	})
}

// cmdMounted waits until something is mounted on a directory that a pattern fits.
func cmdMounted(ts *testscript.TestScript, neg bool, args []string) {
	pattern := ts.MkAbs(args[0])
	await(ts, func() error {
		all, err := fuse.Mounts()
		for _, m := range all {
			if ok, _ := filepath.Match(pattern, m.Dir); ok {
				return nil
			}
		}
		return errors.Join(err, fmt.Errorf("nothing is mounted on %s", pattern))
	})
}

// await asks until there is no error, for another process gives no sign.
func await(ts *testscript.TestScript, ask func() error) {
	deadline := time.NewTimer(readyTimeout)
	tick := time.NewTicker(10 * time.Millisecond)
	defer deadline.Stop()
	defer tick.Stop()
	for {
		err := ask()
		if err == nil {
			return
		}
		select {
		case <-tick.C:
		case <-deadline.C:
			ts.Fatalf("not within %v: %v", readyTimeout, err)
		}
	}
}

// condition knows [mounts]: whether FUSE mounts can be made. Where everything is to
// be tested it says yes, so that a script fails rather than be left out.
func condition(name string) (bool, error) {
	if name != "mounts" {
		return false, fmt.Errorf("unknown condition %q", name)
	}
	if os.Getenv("CI") == "true" {
		return true, nil
	}
	f, err := os.OpenFile("/dev/fuse", os.O_RDWR, 0)
	if err != nil {
		return false, nil
	}
	return os.Geteuid() == 0, f.Close()
}
