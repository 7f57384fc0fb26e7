package main

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/shardwell/shardwell/internal/config"
	"github.com/shardwell/shardwell/internal/control"
	"github.com/shardwell/shardwell/warm"
)

// Defaults of `shardwell warm`.
const (
	defaultPin    = "168h"          // of --pin without a value: a week
	cancelTimeout = 5 * time.Second // to tell the cluster, after Ctrl-C
	startTries    = 3               // of a warm-up that the cluster forgets
	backPatience  = 2 * time.Minute // with a node that went away
	backPoll      = time.Second
)

// warmOptions are the flags of the command.
type warmOptions struct {
	lists                                  []string
	nodes                                  []string
	pin, rate, interrupt                   string
	attach, cancel                         string
	parallel                               int
	dryRun, check, evict, force, everyNode bool
	list, wait, asJSON, perNode            bool
	spec                                   warm.Spec
	names                                  []byte
	unpin                                  bool
	options                                map[string]string // of origins, from the environment or a file
}

func newWarm(s streams) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "warm URI… [flags]",
		Short: "Bring datasets into the caches, and say what is there",
		Long: `Has each node fetch its share of what the URIs name, from the origin once for the whole cluster, and checks at the end
that every byte is where it should be: only then it ends with 0. It ends with 3 when something is missing, and prints what, where and
why. The work goes on in the cluster when this command ends, and when the node that runs it does.

A URI may be an object, a prefix that ends in a slash, a directory, a template as shells have them ({000..127}, {a,b}, nested) or a
pattern (* ? [a-z] within a name, ** for any directories). A backslash takes their meaning from { } , * ? [.`,
		Example: `  shardwell warm 's3://datasets/imagenet/train-{000000..001023}.tar' --pin=72h
  shardwell warm s3://models/llama/ckpt-4000/ --every-node
  shardwell warm -f shards.txt --check`,
		ValidArgsFunction: completeURI,
	}
	opts := configured(cmd, config.ScopeClient)
	o := &warmOptions{}
	o.bind(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		cfg, err := opts.load()
		if err != nil {
			return err
		}
		if err := o.prepare(s, args, cmd.Flags().Changed("pin")); err != nil {
			return err
		}
		o.options = cfg.Attributes()
		client, err := control.Dial(cmd.Context(), cfg.ControlSocket)
		if err != nil {
			return err
		}
		defer client.Close()
		return o.run(cmd.Context(), s, client)
	}
	return cmd
}

func (o *warmOptions) bind(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringArrayVarP(&o.lists, "file", "f", nil, "`LIST` of names: one URI of an object a line, taken as it is; - is the standard input.")
	f.BoolVar(&o.dryRun, "dry-run", false, "Say how much it is, where it would go and whether it fits.")
	f.BoolVar(&o.check, "check", false, "Only check whether everything is where it should be.")
	f.BoolVar(&o.evict, "evict", false, "Have it gone from all caches, and take its pins back.")
	f.BoolVar(&o.everyNode, "every-node", false, "Put a copy on each node, which they pass on to each other.")
	f.StringSliceVar(&o.nodes, "nodes", nil, "Only on these `NODES`, by name or ring id, separated by commas: copies of all with --every-node, else their share.")
	f.StringVar(&o.pin, "pin", "", "Protect it above everything else for `TTL` after the end, a week if none is given; 0 takes pins back.")
	f.Lookup("pin").NoOptDefVal = defaultPin
	f.BoolVar(&o.force, "force", false, "Go on although it does not fit.")
	f.IntVarP(&o.parallel, "parallel", "p", 0, "Chunks that each node fetches at once. Default (0): 16, and 6 with --every-node.")
	f.StringVar(&o.rate, "max-origin-rate", "", "Most `BYTES` a second that the warm-up takes from the origin, beside the limit of the nodes.")
	f.BoolVar(&o.wait, "wait", true, "Wait until it has ended and show how far it is. --wait=false ends with 0 when it has begun.")
	f.StringVar(&o.interrupt, "on-interrupt", "detach", "What Ctrl-C does: detach (it goes on) or cancel.")
	f.BoolVar(&o.list, "list", false, "List the warm-ups that the cluster knows of.")
	f.StringVar(&o.attach, "attach", "", "Wait for the warm-up `ID`.")
	f.StringVar(&o.cancel, "cancel", "", "End the warm-up `ID`. What it has brought stays.")
	f.BoolVar(&o.perNode, "per-node", false, "Show how far each node is.")
	f.BoolVar(&o.asJSON, "json", false, "Print one JSON document a line for each event.")
	_ = cmd.RegisterFlagCompletionFunc("on-interrupt", cobra.FixedCompletions([]string{"detach", "cancel"}, cobra.ShellCompDirectiveNoFileComp))
}

// prepare checks the command line and makes the spec of it.
func (o *warmOptions) prepare(s streams, args []string, pinned bool) error {
	modes := 0
	for _, set := range []bool{o.dryRun, o.check, o.evict, o.list, o.attach != "", o.cancel != ""} {
		if set {
			modes++
		}
	}
	jobs := o.list || o.attach != "" || o.cancel != ""
	switch {
	case modes > 1:
		return usagef("--dry-run, --check, --evict, --list, --attach and --cancel exclude each other")
	case o.interrupt != "detach" && o.interrupt != "cancel":
		return usagef("--on-interrupt: %q is neither detach nor cancel", o.interrupt)
	case jobs && (len(args) > 0 || len(o.lists) > 0):
		return usagef("--list, --attach and --cancel take no URI")
	case jobs:
		return nil
	case len(args) == 0 && len(o.lists) == 0:
		return usagef("nothing is named: write `shardwell warm URI…` or give a list (-f)")
	case len(args) > warm.MaxSources:
		return usagef("%d URIs are more than %d: put the template in quotes, so that the shell leaves it alone, or give a list (-f)", len(args), warm.MaxSources)
	case pinned && o.pin != "0" && (o.check || o.evict):
		return usagef("--pin protects what is warmed up: --check and --evict pin nothing")
	case o.parallel < 0:
		return usagef("--parallel: %d is less than 1", o.parallel)
	}
	for _, a := range args {
		if _, err := warm.ParseSource(a); err != nil {
			var d config.Duration
			if pinned && o.pin == defaultPin && d.UnmarshalText([]byte(a)) == nil {
				return usagef("--pin takes its time behind a =: write --pin=%s", a)
			}
			return usagef("%v", err)
		}
	}
	o.spec = warm.Spec{Sources: args, EveryNode: o.everyNode, Nodes: o.nodes, Force: o.force, Parallel: o.parallel}
	if err := o.quantities(pinned); err != nil {
		return err
	}
	return o.readLists(s.in)
}

// quantities reads --pin and --max-origin-rate.
func (o *warmOptions) quantities(pinned bool) error {
	if pinned {
		var d config.Duration
		if err := d.UnmarshalText([]byte(o.pin)); err != nil && o.pin != "0" {
			return usagef("--pin: %q %v", o.pin, err)
		}
		if time.Duration(d) < 0 {
			return usagef("--pin: %v is negative", d)
		}
		o.spec.Pin, o.unpin = time.Duration(d), d == 0
	}
	if o.rate != "" {
		var b config.Bytes
		if err := b.UnmarshalText([]byte(o.rate)); err != nil {
			return usagef("--max-origin-rate: %q %v", o.rate, err)
		}
		if o.spec.OriginRate = int64(b); b <= 0 {
			return usagef("--max-origin-rate: %q is no rate: leave it out for none", o.rate)
		}
	}
	return nil
}

// readLists compresses the lists of names.
func (o *warmOptions) readLists(in io.Reader) error {
	if len(o.lists) == 0 {
		return nil
	}
	var names bytes.Buffer
	z := gzip.NewWriter(&names)
	found := len(o.spec.Sources)
	for _, path := range o.lists {
		n, err := copyList(z, path, in)
		found += n
		if err == nil && names.Len() > warm.MaxListBytes {
			err = fmt.Errorf("takes more than %d MiB, compressed: give it in several parts", warm.MaxListBytes>>20)
		}
		if err != nil {
			return &config.Error{What: fmt.Sprintf("list %s: %s", nameOfList(path), oneLine(err.Error())), Where: "-f"}
		}
	}
	if found == 0 {
		return &config.Error{What: fmt.Sprintf("list %s names nothing", strings.Join(o.lists, ", ")), Where: "-f"}
	}
	if err := z.Close(); err != nil {
		return err
	}
	o.names = names.Bytes()
	sum := sha256.Sum256(o.names)
	o.spec.ListSum, o.spec.ListBytes = hex.EncodeToString(sum[:]), int64(len(o.names))
	return nil
}

// nameOfList is what a list is called in messages.
func nameOfList(path string) string {
	if path == "-" {
		return "on the standard input"
	}
	return path
}

// copyList writes the names of a list, a line each.
func copyList(to io.Writer, path string, in io.Reader) (names int, err error) {
	if path != "-" {
		f, err := os.Open(path)
		if err != nil {
			return 0, errors.Unwrap(err)
		}
		defer f.Close()
		in = f
	}
	err = warm.ReadList(in, func(src warm.Source) error {
		names++
		_, err := io.WriteString(to, src.String()+"\n")
		return err
	})
	return names, err
}

func (o *warmOptions) run(ctx context.Context, s streams, w control.Warmer) error {
	req := control.WarmRequest{Spec: o.spec, List: o.names, Options: o.options}
	switch {
	case o.list:
		recs, err := w.WarmJobs(ctx)
		if err != nil {
			return err
		}
		return printJobs(s.out, recs, o.asJSON)
	case o.cancel != "":
		if err := w.CancelWarm(ctx, o.cancel); err != nil {
			return err
		}
		fmt.Fprintf(s.err, "warm-up %s has ended: what it has brought stays\n", o.cancel)
		return nil
	case o.dryRun:
		return o.look(ctx, s, w, req, control.WarmPlan)
	case o.check:
		return o.look(ctx, s, w, req, control.WarmCheck)
	case o.evict:
		return o.look(ctx, s, w, req, control.WarmEvict)
	case o.unpin:
		return o.look(ctx, s, w, req, control.WarmUnpin)
	}
	return o.stay(ctx, s, w, req)
}

// stay begins the warm-up, or joins it, and waits for its end. A node that goes away meanwhile, because it is upgraded
// perhaps, is waited for: the warm-up goes on without it.
func (o *warmOptions) stay(ctx context.Context, s streams, w control.Warmer, req control.WarmRequest) error {
	id := o.attach
	var away time.Time
	for failures := 0; ; {
		begun, err := o.once(ctx, s, w, req)
		id = cmp.Or(begun, id)
		var lost lostSight
		if id == "" || !errors.As(err, &lost) {
			return err
		}
		if ctx.Err() != nil {
			return o.interrupted(s, w, id, context.Cause(ctx))
		}
		if lost.told {
			away = time.Time{}
		}
		switch {
		case errors.Is(err, control.ErrNoNode) && away.IsZero():
			away = time.Now()
			fmt.Fprintf(s.err, "the node does not answer: warm-up %s goes on; waiting up to %v for the node\n", id, backPatience)
		case errors.Is(err, control.ErrNoNode) && time.Since(away) < backPatience:
		case errors.Is(err, control.ErrNoNode), o.attach != "" && !lost.told:
			return err
		default:
			if failures++; failures == startTries {
				return err
			}
		}
		select {
		case <-time.After(backPoll):
		case <-ctx.Done():
			return o.interrupted(s, w, id, context.Cause(ctx))
		}
	}
}

// once begins or joins, and waits as long as the node tells something.
func (o *warmOptions) once(ctx context.Context, s streams, w control.Warmer, req control.WarmRequest) (id string, err error) {
	if o.attach != "" {
		return "", o.follow(ctx, s, w, o.attach, 0)
	}
	rec, joined, err := w.StartWarm(ctx, req)
	if err != nil {
		return "", lostSight{err, false}
	}
	o.shower(s).begun(rec, joined)
	if !o.wait {
		return rec.ID, nil
	}
	return rec.ID, o.follow(ctx, s, w, rec.ID, rec.Started)
}

// lostSight is the error of a warm-up of which nobody tells any more, though it has not ended: the node went away, or who
// knew of it was lost before it had told others.
type lostSight struct {
	error
	told bool // something, before
}

func (l lostSight) Unwrap() error { return l.error }

// errEarlier says that the cluster knows of an earlier warm-up with the same ID only.
var errEarlier = errors.New("the node that took the warm-up on was lost with it: start it again")

// follow waits for a job that was started at a time, or later.
func (o *warmOptions) follow(ctx context.Context, s streams, w control.Warmer, id string, started int64) error {
	show := o.shower(s)
	var last warm.Record
	err := w.FollowWarm(ctx, id, func(rec warm.Record) error {
		if rec.Started < started {
			return errEarlier
		}
		last = rec
		show.at(rec)
		return nil
	})
	show.stop()
	switch {
	case ctx.Err() != nil:
		return o.interrupted(s, w, id, context.Cause(ctx))
	case err != nil:
		return lostSight{err, last.ID != ""}
	}
	if err := show.ended(last); err != nil {
		return err
	}
	switch last.State {
	case warm.Done:
		return nil
	case warm.Partly:
		return partly{fmt.Errorf("%s missing: %s", areParts(last.Lost()), reasons(last.Counts))}
	case warm.Canceled:
		return fmt.Errorf("warm-up %s was canceled", id)
	case warm.Failed:
		return fmt.Errorf("warm-up %s: %s", id, last.Why)
	}
	return lostSight{fmt.Errorf("warm-up %s: the node that was asked ended before it did: see `shardwell warm --attach %s`", id, id), true}
}

// interrupted does what Ctrl-C is to do.
func (o *warmOptions) interrupted(s streams, w control.Warmer, id string, cause error) error {
	if o.interrupt == "detach" {
		fmt.Fprintf(s.err, "warm-up %s goes on: `shardwell warm --attach %s` waits for it, --cancel %s ends it\n", id, id, id)
		return cause
	}
	ctx, cancel := context.WithTimeout(context.Background(), cancelTimeout)
	defer cancel()
	if err := w.CancelWarm(ctx, id); err != nil {
		fmt.Fprintf(s.err, "warm-up %s was not canceled: %v\n", id, oneLine(err.Error()))
	}
	return cause
}

// look does what needs no job.
func (o *warmOptions) look(ctx context.Context, s streams, w control.Warmer, req control.WarmRequest, do control.WarmLook) error {
	show := o.shower(s)
	var sum control.WarmSum
	err := w.LookWarm(ctx, req, do, func(f control.WarmFound) error {
		if f.Missing != nil {
			return show.missing(*f.Missing)
		}
		sum = *f.Sum
		return nil
	})
	if err != nil {
		return err
	}
	if err := show.found(sum, do); err != nil {
		return err
	}
	switch {
	case sum.Missing > 0 && do == control.WarmEvict:
		return partly{fmt.Errorf("%d objects are not gone: %s", sum.Missing, reasons(sum.Counts))}
	case sum.Missing > 0:
		return partly{fmt.Errorf("%s missing: %s", areParts(sum.Missing), reasons(sum.Counts))}
	case len(sum.Short) > 0:
		return partly{errors.New("it does not fit")}
	}
	return nil
}

// areParts says how many parts there are, with the verb.
func areParts(n int64) string {
	if n == 1 {
		return "1 object or part of one is"
	}
	return fmt.Sprintf("%d objects or parts of them are", n)
}

// reasons says how often there was which reason.
func reasons(counts map[warm.Reason]int64) string {
	var all []string
	for r, n := range counts {
		all = append(all, fmt.Sprintf("%d %s", n, r))
	}
	slices.Sort(all)
	text := strings.Join(all, ", ")
	if counts[warm.Forbidden] > 0 {
		text += ": nodes read with their own credentials, whatever this command has"
	}
	return text
}
