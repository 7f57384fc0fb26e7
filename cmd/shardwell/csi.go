package main

import (
	"context"
	"slices"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/shardwell/shardwell/deploy/csi"
	"github.com/shardwell/shardwell/deploy/kube"
	"github.com/shardwell/shardwell/internal/config"
	"github.com/shardwell/shardwell/internal/node"
)

func newCSI(s streams) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "csi [--endpoint unix:///csi/csi.sock] [--node-id NAME] [flags]",
		Short: "Serve Kubernetes volumes",
		Long: `Runs the CSI driver csi.shardwell.io of this machine until SIGTERM or SIGINT. It has the node that runs here mount
datasets, and shows them to Pods. Volumes stay when it ends; the next one takes them over.`,
		Example: `  shardwell csi --endpoint unix:///csi/csi.sock --node-id "$NODE_NAME" --self-register \
      --registration-path /var/lib/kubelet/plugins/csi.shardwell.io/csi.sock`,
		Args: exactArgs(),
	}
	opts := configured(cmd, config.ScopeCSI)
	// The endpoint of the schema is that of the object store; a driver of CSI calls its socket so.
	endpoint := cmd.Flags().String("endpoint", "unix:///csi/csi.sock", "Unix `SOCKET` on which the kubelet calls the driver.")
	untaint := cmd.Flags().Bool("startup-taint", false, "Take the taint "+kube.StartupTaint+" off this node once Pods can have volumes. Needs a service account that may get and patch nodes.")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		cfg, err := opts.load()
		if err != nil {
			return err
		}
		return runCSI(cmd.Context(), s, cfg, *endpoint, *untaint)
	}
	return cmd
}

func runCSI(ctx context.Context, s streams, cfg config.Resolved, endpoint string, untaint bool) error {
	log := newLogger(s, cfg.Config)
	id := cfg.NodeID
	if id == "" {
		id = csi.Hostname()
	}
	daemon := csi.Socket(cfg.ControlSocket)
	endpoints := cfg.AllowEndpoints
	if cfg.Endpoint != "" { // of a configuration that the driver shares with the node
		endpoints = append(slices.Clone(endpoints), cfg.Endpoint)
	}
	d, err := csi.New(csi.Config{
		Endpoint: endpoint, NodeID: id, KubeletDir: cfg.KubeletDir, Daemon: daemon, Version: node.Version,
		SelfRegister: cfg.SelfRegister, RegistrationPath: cfg.RegistrationPath, MaxVolumes: cfg.MaxVolumes,
		Policy: csi.Policy{
			Sources: cfg.AuthSources, AllowEndpoints: endpoints, AllowLocal: cfg.AllowLocalEndpoints,
			TokenAudience: cfg.TokenAudience, STSEndpoint: cfg.STSEndpoint,
		},
		Logger: log,
	})
	if err != nil {
		return err
	}
	if !untaint {
		return d.Run(ctx)
	}
	api, err := kube.InCluster("")
	if err != nil {
		return usagef("%v: --startup-taint: is for Pods whose service account may get and patch nodes", err)
	}
	group, run := errgroup.WithContext(ctx)
	group.Go(func() error {
		if err := d.Run(run); err != nil {
			return err
		}
		return context.Cause(run) // as it was told to end, so does the other
	})
	group.Go(func() error {
		ready := func(ctx context.Context) error {
			_, err := daemon.Version(ctx)
			return err
		}
		return kube.Untaint(run, api, id, csi.DriverName, ready, log)
	})
	err = group.Wait()
	if stoppedBy(ctx, err) {
		return nil
	}
	return err
}
