package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/shardwell/shardwell/internal/config"
	"github.com/shardwell/shardwell/internal/control"
)

func newRefresh(s streams) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "refresh URI",
		Short: "Make the cluster forget names and versions",
		Long: `Makes all nodes forget which objects lie under a URI and which versions they have, so that the next open sees
what the origin has now. Data that is cached stays, for those versions that are still current.`,
		Args:              exactArgs("URI"),
		ValidArgsFunction: completeURI,
	}
	opts := configured(cmd, config.ScopeClient)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		cfg, err := opts.load()
		if err != nil {
			return err
		}
		if _, err := config.ParseURI(args[0]); err != nil {
			return err
		}
		client, err := control.Dial(cmd.Context(), cfg.ControlSocket)
		if err != nil {
			return err
		}
		defer client.Close()
		n, err := client.Refresh(cmd.Context(), args[0])
		if err != nil {
			return err
		}
		where := "the nodes"
		if st, err := client.Status(cmd.Context()); err == nil {
			alive := 0
			for _, m := range st.Members {
				if m.State == "alive" {
					alive++
				}
			}
			where = count(alive, "node")
		}
		fmt.Fprintf(s.err, "forgot %d names and listings of %s, added up over %s\n", n, args[0], where)
		return nil
	}
	return cmd
}
