package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/shardwell/shardwell/internal/config"
	"github.com/shardwell/shardwell/internal/control"
)

func newDrain(s streams) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "drain",
		Short: "Hand on what this node holds, then leave",
		Long: `Takes the running node out of the ring, hands to their new owners the chunks that it owned, and ends it. What
other nodes hold already is not sent. Ends with 3 when some chunks found no room or could not be read: the origin has them.`,
		Args: exactArgs(),
	}
	opts := configured(cmd, config.ScopeClient)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		cfg, err := opts.load()
		if err != nil {
			return err
		}
		client, err := control.Dial(cmd.Context(), cfg.ControlSocket)
		if err != nil {
			return err
		}
		defer client.Close()
		var last control.DrainProgress
		shown := newMeter(s.err, "handed on")
		err = client.Drain(cmd.Context(), func(p control.DrainProgress) error {
			last = p
			shown.set(p.DoneBytes, max(p.DoneBytes, p.TotalBytes-p.FailedBytes))
			return nil
		})
		shown.stop()
		if err != nil {
			return err
		}
		fmt.Fprintf(s.err, "handed on %s; the node ends\n", size(last.DoneBytes))
		if last.FailedBytes > 0 {
			return partly{fmt.Errorf("%s were not handed on: their new owners had no room, or a cache disk cannot be read", size(last.FailedBytes))}
		}
		return nil
	}
	return cmd
}
