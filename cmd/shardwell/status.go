package main

import (
	"encoding/json"
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"

	"github.com/shardwell/shardwell/internal/config"
	"github.com/shardwell/shardwell/internal/control"
)

func newStatus(s streams) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show members, disks, datasets and bytes by source",
		Long:  `Shows what the node on this machine knows of itself and the cluster. The names in --json are a promise.`,
		Args:  exactArgs(),
	}
	opts := configured(cmd, config.ScopeClient)
	asJSON := cmd.Flags().Bool("json", false, "Print one JSON document.")
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
		st, err := client.Status(cmd.Context())
		if err != nil {
			return err
		}
		if *asJSON {
			enc := json.NewEncoder(s.out)
			enc.SetIndent("", "  ")
			return enc.Encode(st)
		}
		return statusTables(s.out, st)
	}
	return cmd
}

// statusTables writes a table for each list that is not empty.
func statusTables(out io.Writer, st control.Status) error {
	w := tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
	fmt.Fprintf(w, "node %s (%s), version %s\n", printable(st.Node), st.ID, st.Version)
	switch {
	case st.Seeds.Alone():
		fmt.Fprintf(w, "joined none of %s (unreachable, or another secret)\n", count(st.Seeds.Asked, "seed"))
	case st.Seeds.Asked > 0:
		fmt.Fprintf(w, "%d of %s answered\n", st.Seeds.Answered, count(st.Seeds.Asked, "seed"))
	}
	memberTable(w, st)
	switch {
	case st.TakingOver > 0:
		fmt.Fprintf(w, "\ntaking over: %s left that nobody serves yet\n", count(st.TakingOver, "mount"))
	case st.Keeper == "absent":
		fmt.Fprintf(w, "\nno keeper answers: mounts end with this node until one does\n")
	}
	datasetTable(w, st)
	b := st.Bytes
	fmt.Fprintf(w, "\nBYTES READ\torigin\tpeer\tdisk\tmemory\tpassthrough opens\n")
	fmt.Fprintf(w, "\t%s\t%s\t%s\t%s\t%d\n", size(b.Origin), size(b.Peer), size(b.Disk), size(b.Memory), b.PassthroughOpens)
	fmt.Fprintf(w, "\nBYTES MOVED\tfrom origin\tfrom peers\tto peers\n")
	fmt.Fprintf(w, "\t%s\t%s\t%s\n", size(b.FetchedFromOrigin), size(b.FetchedFromPeers), size(b.SentToPeers))
	if len(st.Disks) > 0 {
		fmt.Fprintf(w, "\nDISK\tstate\tused\tbudget\n")
	}
	for _, d := range st.Disks {
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", printable(d.Path), d.State, size(d.UsedBytes), size(d.BudgetBytes))
	}
	if st.SkippedTotal > 0 { // the reason first: a key may be long
		fmt.Fprintf(w, "\nSKIPPED (%d)\tkey\n", st.SkippedTotal)
	}
	for _, k := range st.SkippedKeys {
		fmt.Fprintf(w, "%s\t%s\n", k.Reason, printable(k.Key))
	}
	return w.Flush()
}

func memberTable(w io.Writer, st control.Status) {
	fmt.Fprintf(w, "\nMEMBER\taddress\tzone\track\tstate\towned share\n")
	for _, m := range st.Members {
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%.1f %%\n", printable(m.Name), m.Address, dash(m.Zone), dash(m.Rack), m.State, 100*m.OwnedShare)
	}
	if len(st.Refused) > 0 {
		fmt.Fprintf(w, "\nREFUSED\taddress\treason\n")
	}
	for _, r := range st.Refused {
		fmt.Fprintf(w, "%s\t%s\t%s\n", printable(r.Name), r.Address, oneLine(r.Reason))
	}
}

func datasetTable(w io.Writer, st control.Status) {
	if len(st.Mounts) > 0 {
		fmt.Fprintf(w, "\nMOUNT\ton\n")
	}
	for _, m := range st.Mounts {
		fmt.Fprintf(w, "%s\t%s\n", printable(m.URI), printable(m.Dir))
	}
	if len(st.Datasets) > 0 {
		fmt.Fprintf(w, "\nDATASET\tobjects\tbytes\tcached\tof that here\n")
	}
	for _, d := range st.Datasets {
		fmt.Fprintf(w, "%s\t%d\t%s\t%s\t%s\n", printable(d.URI), d.Objects, size(d.Bytes), size(d.CachedBytes), size(d.LocalBytes))
	}
	if len(st.Pins) > 0 {
		fmt.Fprintf(w, "\nPINNED\tbytes\tuntil\n")
	}
	for _, p := range st.Pins {
		fmt.Fprintf(w, "%s\t%s\t%s\n", printable(p.URI), size(p.Bytes), p.Until.Format(time.DateTime))
	}
	if len(st.Broadcasts) > 0 {
		fmt.Fprintf(w, "\nBROADCAST\tdone\treceiving\trate\torigin copies\tmax/mean sent\n")
	}
	for _, b := range st.Broadcasts {
		fmt.Fprintf(w, "%s\t%d\t%d\t%s/s\t%.2f\t%.2f\n", printable(b.Object), b.NodesDone, b.NodesReceiving, size(int64(b.BytesPerSecond)), b.OriginCopies, b.MaxOverMeanSent)
	}
}

func size(n int64) string { return humanize.IBytes(uint64(max(0, n))) }

// count says how many there are of something.
func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

func dash(s string) string {
	if s == "" {
		return "-"
	}
	return printable(s)
}
