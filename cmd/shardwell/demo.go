package main

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/shardwell/shardwell/cmd/shardwell/demo"
)

func newDemo(s streams) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "demo [--nodes 3] [--check] [--keep]",
		Short: "Show a cluster on this machine",
		Long: `Runs an S3 server and some nodes on this machine, lets all of them read a small dataset for two epochs and restore
one large checkpoint at once, compares every byte with the source, and prints who sent what. It needs root for the
mounts, takes a minute at most, and leaves nothing behind. With --keep it waits for Ctrl-C before it removes everything.`,
		Args: exactArgs(),
	}
	o := demo.Options{Progress: s.err, Result: s.out}
	cmd.Flags().IntVar(&o.Nodes, "nodes", 3, fmt.Sprintf("How many nodes, up to %d.", demo.MaxNodes))
	cmd.Flags().BoolVar(&o.Keep, "keep", false, "Leave it running until Ctrl-C, and print what there is to look at.")
	check := cmd.Flags().Bool("check", false, "Fail when the origin sent more than one copy, or anything in the second epoch.")
	cmd.RunE = func(cmd *cobra.Command, _ []string) (err error) {
		if o.Nodes < 1 || o.Nodes > demo.MaxNodes {
			return usagef("--nodes %d: must be 1 to %d", o.Nodes, demo.MaxNodes)
		}
		if o.Executable, err = os.Executable(); err != nil {
			return err
		}
		complaints, err := demo.Run(cmd.Context(), o)
		if err != nil {
			return err
		}
		if *check && len(complaints) > 0 {
			return errors.New(strings.Join(complaints, "; "))
		}
		for _, c := range complaints {
			fmt.Fprintln(s.err, c)
		}
		return nil
	}
	return cmd
}
