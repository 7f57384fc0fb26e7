// Command shardwell is the whole product in one program: the daemon, the
// commands that talk to it, and a demonstration of both.
//
// It promises that every error is one line that says what is wrong, where, and
// what to do, and that exit codes mean: 0 done, 1 failed, 2 bad usage, 3 partly
// done, 130 interrupted. What the commands do is left to internal/node and the
// packages below it. Each subcommand is a file: its options, then its run.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	ctx, stop := interruptible()
	code := run(ctx, os.Args[1:], streams{in: os.Stdin, out: os.Stdout, err: os.Stderr})
	stop()
	os.Exit(code)
}

// interruptible returns a context that ends at the first SIGINT or SIGTERM. The
// second of them kills at once, as it would any program.
func interruptible() (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(context.Background())
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	done := make(chan struct{})
	go func() {
		defer close(done)
		select {
		case s := <-signals:
			signal.Stop(signals)
			cancel(stopSignal{s})
		case <-ctx.Done():
		}
	}()
	return ctx, func() {
		signal.Stop(signals)
		cancel(nil)
		<-done
	}
}
