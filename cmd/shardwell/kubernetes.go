package main

import (
	"errors"
	"log/slog"
	"time"

	"github.com/spf13/cobra"

	"github.com/shardwell/shardwell/deploy/kube"
)

func newKubernetes(s streams) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "kubernetes COMMAND",
		Short: "What Pods of the chart ask the API server of Kubernetes",
		Args:  cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return usagef("unknown command %q: see `%s --help`", args[0], cmd.CommandPath())
			}
			cmd.SetOut(s.err)
			_ = cmd.Help()
			return usagef("")
		},
	}
	cmd.AddCommand(newLabels(s))
	return cmd
}

// labelsOptions are the flags of `shardwell kubernetes labels`.
type labelsOptions struct {
	node, in, out, account string
	place                  kube.Place
	wait                   time.Duration
}

func newLabels(s streams) *cobra.Command {
	var o labelsOptions
	cmd := &cobra.Command{
		Use:   "labels --node-id NAME --in FILE --out FILE [flags]",
		Short: "Add zone and rack from a node's labels to a configuration file",
		Long: `Copies a configuration file of a node and adds its zone and rack from labels that the node has in Kubernetes.
Where the API server does not answer, or refuses, the file is copied as it is. It runs in an init container of
the chart, before ` + "`shardwell node --config FILE`" + `.`,
		Args: exactArgs(),
	}
	f := cmd.Flags()
	f.StringVar(&o.node, "node-id", "", "`NAME` of the node in Kubernetes.")
	f.StringVar(&o.in, "in", "", "Configuration `FILE` to copy.")
	f.StringVar(&o.out, "out", "", "`FILE` to write.")
	f.StringVar(&o.place.ZoneLabel, "zone-label", "topology.kubernetes.io/zone", "`LABEL` that is the zone. Empty: none.")
	f.StringVar(&o.place.RackLabel, "rack-label", "", "`LABEL` that is the rack. Empty: none.")
	f.DurationVar(&o.wait, "wait", 30*time.Second, "How long to wait for an answer.")
	f.StringVar(&o.account, "service-account", "", "`DIR` with the service account's files. Default: where Kubernetes mounts them.")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return runLabels(cmd, s, o)
	}
	return cmd
}

func runLabels(cmd *cobra.Command, s streams, o labelsOptions) error {
	for _, need := range [...]struct{ flag, value string }{{"node-id", o.node}, {"in", o.in}, {"out", o.out}} {
		if need.value == "" {
			return usagef("--%s is missing: write `%s`", need.flag, cmd.UseLine())
		}
	}
	client, err := kube.InCluster(o.account)
	if errors.Is(err, kube.ErrNotInCluster) {
		return usagef("%v: this command is for Pods whose service account may get nodes", err)
	}
	if err != nil {
		return err
	}
	return o.place.Config(cmd.Context(), client, o.node, o.in, o.out, o.wait, slog.New(slog.NewTextHandler(s.err, nil)))
}
