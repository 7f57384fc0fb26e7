package main

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/spf13/cobra"

	"github.com/shardwell/shardwell/fuse/handover"
	"github.com/shardwell/shardwell/internal/config"
	"github.com/shardwell/shardwell/internal/node"
)

func newNode(s streams) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "node --cache-dir DIR[=SIZE] [--join HOST[,HOST]] [flags]",
		Short: "Run the daemon of this machine",
		Long: `Runs the daemon that shares this machine's disk with the cluster, until SIGTERM or SIGINT. A node that is
stopped keeps its share of the data for --restart-grace; what it has cached is there when it starts again.`,
		Example: `  shardwell node --cache-dir /nvme/shardwell=2Ti --bind 0.0.0.0:7946 --peer-bind 0.0.0.0:7947 \
      --join shardwell.example.internal --secret-file /etc/shardwell/secret --endpoint https://s3.example.com`,
		Args: exactArgs(),
	}
	opts := configured(cmd, config.ScopeNode)
	takeOver := cmd.Flags().String("take-over", string(node.TakeOverWait), "With --keeper-socket, while another node has the mounts: wait until it ends, tell it to end `now`, or only check whether this one could go on with them.")
	_ = cmd.RegisterFlagCompletionFunc("take-over", cobra.FixedCompletions([]string{"wait", "now", "check"}, cobra.ShellCompDirectiveNoFileComp))
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		cfg, err := opts.load()
		if err != nil {
			return err
		}
		return runNode(cmd.Context(), s, cfg, node.TakeOver(*takeOver))
	}
	return cmd
}

func runNode(ctx context.Context, s streams, cfg config.Resolved, how node.TakeOver) error {
	switch how {
	case node.TakeOverWait, node.TakeOverNow, node.TakeOverCheck:
	default:
		return usagef("--take-over: %q is none of wait, now and check", how)
	}
	if len(cfg.CacheDirs) == 0 {
		return usagef("no cache directory: give --cache-dir DIR[=SIZE] on a local disk")
	}
	log := newLogger(s, cfg.Config)
	for _, name := range cfg.Ignored {
		log.Warn("config: variable is no option", "name", name)
	}
	turn, err := node.AwaitTurn(ctx, cfg.Config, how, log)
	if err != nil {
		if ctx.Err() != nil {
			return nil // stopped while it waited
		}
		return err
	}
	if how == node.TakeOverCheck {
		fmt.Fprintln(s.err, "this program can go on with the mounts of the keeper")
		return nil
	}
	d, err := startDaemon(ctx, s, cfg.Config, turn, log)
	if err != nil {
		return err
	}
	if err := handover.Notify("READY=1"); err != nil {
		log.Warn("start: not told", "error", err)
	}
	log.Info("control: listening", "socket", cfg.ControlSocket)
	handover.KeepNotifying(d.stopped)
	return d.err
}

// newLogger writes log lines to standard error.
func newLogger(s streams, cfg config.Config) *slog.Logger {
	var level slog.Level
	if err := level.UnmarshalText([]byte(cfg.LogLevel)); err != nil {
		panic(fmt.Sprintf("log level %q was validated: %v", cfg.LogLevel, err))
	}
	o := &slog.HandlerOptions{Level: level}
	if cfg.LogFormat == "json" {
		return slog.New(slog.NewJSONHandler(s.err, o))
	}
	return slog.New(slog.NewTextHandler(s.err, o))
}
