package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/shardwell/shardwell/fuse/handover"
)

// Version is the version of the program; the linker sets it.
var Version = "0.1.0-dev"

// options are the command line.
type options struct {
	socket      string
	giveUp      time.Duration
	startWithin time.Duration
}

const usage = `Usage: shardwell-keeper [flags]

Holds the mounts of this machine's node over its restarts, upgrades and crashes. It needs the right to mount
(CAP_SYS_ADMIN), /dev/fuse, and to see the directories that are mounted on under the same paths as the node.
Start it before the node, which is told of it by --keeper-socket, and leave it alone: it may be restarted only
while the node runs.

Flags:
`

// parse reads the command line; done says that there is nothing more to do.
func parse(args []string, out, errs io.Writer) (o options, code int, done bool) {
	f := flag.NewFlagSet("shardwell-keeper", flag.ContinueOnError)
	f.SetOutput(io.Discard)
	f.StringVar(&o.socket, "socket", "/run/shardwell/keeper.sock", "Unix `PATH` on which the node comes")
	f.DurationVar(&o.giveUp, "give-up", handover.DefaultGiveUp, "after so long without a node the readers of a mount get errors")
	f.DurationVar(&o.startWithin, "start-within", handover.DefaultStartWithin, "how long a node that has come may take until it serves")
	version := f.Bool("version", false, "print the version and end")
	err := f.Parse(args)
	switch {
	case errors.Is(err, flag.ErrHelp):
		fmt.Fprint(out, usage)
		f.SetOutput(out)
		f.PrintDefaults()
		return o, 0, true
	case err == nil && f.NArg() > 0:
		err = fmt.Errorf("%q: takes no arguments", f.Arg(0))
	case err == nil && (o.giveUp <= 0 || o.startWithin <= 0):
		err = errors.New("--give-up and --start-within must be longer than 0")
	case err == nil && o.socket == "":
		err = errors.New("--socket: the path is empty")
	}
	if err != nil {
		fmt.Fprintf(errs, "shardwell-keeper: %v: see `shardwell-keeper --help`\n", err)
		return o, 2, true
	}
	if *version {
		fmt.Fprintf(out, "shardwell-keeper %s\n", Version)
		return o, 0, true
	}
	return o, 0, false
}

// run keeps until ctx ends.
func run(ctx context.Context, o options, errs io.Writer) error {
	spare(errs)
	socket, err := handover.Listen(o.socket)
	if err != nil {
		return err
	}
	k := &handover.Keeper{GiveUp: o.giveUp, StartWithin: o.startWithin, Logf: func(format string, args ...any) {
		fmt.Fprintf(errs, "shardwell-keeper: "+format+"\n", args...)
	}}
	k.Logf("version %s, listening on %s, gives up after %v", Version, o.socket, o.giveUp)
	if err := handover.Notify("READY=1"); err != nil {
		k.Logf("%v", err)
	}
	return k.Run(ctx, socket)
}

// spare asks the kernel to end others first when memory is short: with this process all mounts
// would go. It needs a right that containers may not have.
func spare(errs io.Writer) {
	if err := os.WriteFile("/proc/self/oom_score_adj", []byte("-1000"), 0); err != nil {
		fmt.Fprintf(errs, "shardwell-keeper: not spared when memory is short: %v\n", err)
	}
}
