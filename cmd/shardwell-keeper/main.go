// Command shardwell-keeper holds the mounts of this machine's Shardwell node while that is
// restarted, upgraded or killed.
//
// It promises to be small, to look into no mount, and to let go of those that nobody has
// served for --give-up, so that readers get errors rather than wait for ever. What it
// holds, and how servers come and go, is left to fuse/handover; serving is left to
// `shardwell node --keeper-socket`.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	o, code, done := parse(os.Args[1:], os.Stdout, os.Stderr)
	if done {
		os.Exit(code)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, o, os.Stderr)
	stop()
	if err != nil {
		fmt.Fprintf(os.Stderr, "shardwell-keeper: %v\n", err)
		os.Exit(1)
	}
}
