// Command shardwell is the whole product in one program: the daemon, the
// commands that talk to it, and a demonstration of both.
//
// It promises that every error is one line that says what is wrong, where, and
// what to do, and that exit codes mean: 0 done, 1 failed, 2 bad usage, 3 partly
// done, 130 interrupted. What the commands do is left to internal/node and the
// packages below it. Each subcommand is a file: its options, then its run.
package main

import "os"

func main() {
	last := &lastResort{}
	ctx, stop := interruptible(last, os.Stderr)
	code := run(ctx, os.Args[1:], streams{in: os.Stdin, out: os.Stdout, err: os.Stderr, last: last})
	stop()
	os.Exit(code)
}
