package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/shardwell/shardwell/internal/config"
	"github.com/shardwell/shardwell/internal/node"
)

// streams is what a command has of its process.
type streams struct {
	in   io.Reader
	out  io.Writer   // the result, and nothing else
	err  io.Writer   // everything that is said on the way
	last *lastResort // what to do when the process is forced to end; may be nil
}

// run executes one command line and returns its exit code.
func run(ctx context.Context, args []string, s streams) int {
	root := newRoot(s)
	root.SetArgs(args)
	cmd, err := root.ExecuteContextC(ctx)
	if err == nil {
		return exitDone
	}
	code := exitCode(ctx, err)
	if code == exitInterrupted { // what was under way then is of no use to the one who interrupted it
		err = usagef("interrupted")
	}
	if text := err.Error(); text != "" {
		fmt.Fprintf(s.err, "%s: %s\n", cmd.CommandPath(), oneLine(explain(err)))
	}
	return code
}

func newRoot(s streams) *cobra.Command {
	root := &cobra.Command{
		Use:   "shardwell",
		Short: "A dataset cache between GPUs and an object store",
		Long: `Shardwell pools the local disks of a cluster's nodes into one cache of datasets that lie in an object
store, and serves the bucket's own objects, unchanged, through a file system.

  shardwell demo                                     a cluster on this machine, in a minute
  shardwell mount s3://BUCKET/PREFIX DIR             read a dataset through a node of your own`,
		SilenceErrors: true,
		SilenceUsage:  true,
		// Letters by which a command may differ from the one that was meant.
		SuggestionsMinimumDistance: 2,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return nil
			}
			do := "see `shardwell --help`"
			if near := cmd.SuggestionsFor(args[0]); len(near) > 0 {
				do = "did you mean " + strings.Join(near, " or ") + "?"
			}
			return usagef("unknown command %q: %s", args[0], do)
		},
		RunE: func(cmd *cobra.Command, _ []string) error {
			cmd.SetOut(s.err)
			_ = cmd.Help()
			return usagef("")
		},
	}
	root.SetIn(s.in)
	root.SetOut(s.out)
	root.SetErr(s.err)
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return usagef("%v: see `%s --help`", flagError(err), cmd.CommandPath())
	})
	root.CompletionOptions.DisableDefaultCmd = true
	root.Version = node.Version // makes cobra know --version
	root.SetVersionTemplate(versionLine() + "\n")
	root.AddCommand(newDemo(s), newNode(s), newMount(s), newUmount(s), newLs(s), newGet(s), newWarm(s), newPlan(s), newRefresh(s), newStatus(s),
		newVerify(s), newDrain(s), newCSI(s), newKubernetes(s), newConfig(s), newVersion(s), newCompletion(s))
	return root
}

// flagError rewrites what the flag parser says into our form:
//
//	invalid argument "x" for "--memory" flag: is not a size → --memory: "x" is not a size
func flagError(err error) string {
	text := err.Error()
	if i := strings.Index(text, ": strconv."); i >= 0 { // of the standard kinds of flags
		text = text[:i] + ": is not a whole number"
	}
	rest, ok := strings.CutPrefix(text, "invalid argument ")
	if !ok {
		return text
	}
	value, rest, ok := strings.Cut(rest, " for ")
	flag, why, ok2 := strings.Cut(rest, " flag: ")
	if !ok || !ok2 {
		return text
	}
	return fmt.Sprintf("%s %s: %s", value, why, strings.Trim(flag, `"`))
}

// exactArgs wants the arguments that names tell, in words that a user sees.
func exactArgs(names ...string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		switch {
		case len(args) < len(names):
			verb := "is"
			if len(names)-len(args) > 1 {
				verb = "are"
			}
			return usagef("%s %s missing: write `%s`", strings.Join(names[len(args):], " and "), verb, cmd.UseLine())
		case len(args) > len(names):
			return usagef("%q is one argument too many: write `%s`", args[len(names)], cmd.UseLine())
		}
		return nil
	}
}

// options are the configuration options of one command.
type options struct {
	flags *config.Flags
	file  string // of --config
}

// configured adds the options of the scopes to a command.
func configured(cmd *cobra.Command, scopes ...config.Scope) *options {
	o := &options{flags: config.Bind(cmd.Flags(), scopes...)}
	cmd.Flags().StringVar(&o.file, "config", "", "YAML `FILE` with options, named as in volume attributes. Also SHARDWELL_CONFIG.")
	_ = cmd.MarkFlagFilename("config", "yaml", "yml")
	for name, values := range config.Completions() {
		if cmd.Flags().Lookup(name) != nil {
			_ = cmd.RegisterFlagCompletionFunc(name, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp))
		}
	}
	return o
}

// load reads all views of the configuration.
func (o *options) load() (config.Resolved, error) {
	return config.Load(config.Inputs{Flags: o.flags, Environ: os.Environ(), File: o.file})
}
