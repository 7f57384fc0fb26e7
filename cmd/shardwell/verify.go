package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/shardwell/shardwell/cache/disk"
)

func newVerify(s streams) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "verify DIR [--repair]",
		Short: "Check a cache directory",
		Long: `Reads every block in a cache directory and checks it, beside a running node if there is one. Names what is
damaged and ends with 1 if anything is. With --repair, which needs the directory for itself, damaged blocks are dropped, so
that they are fetched again.`,
		Args: exactArgs("DIR"),
	}
	var o verifyOptions
	cmd.Flags().BoolVar(&o.repair, "repair", false, "Drop what is damaged. No node may be using the directory.")
	cmd.Flags().BoolVar(&o.json, "json", false, "Print one JSON document.")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		dir, err := filepath.Abs(args[0])
		if err != nil {
			return fmt.Errorf("%s: %w", args[0], err)
		}
		return runVerify(cmd.Context(), s, dir, o)
	}
	return cmd
}

type verifyOptions struct{ repair, json bool }

func runVerify(ctx context.Context, s streams, dir string, o verifyOptions) error {
	shown := newMeter(s.err, "checked")
	report, err := disk.VerifyDir(ctx, dir, disk.VerifyOptions{Repair: o.repair, Progress: func(p disk.Progress) { shown.set(p.Bytes, p.TotalBytes) }})
	shown.stop()
	if err != nil {
		return err
	}
	if o.json {
		err = verifyJSON(s.out, report)
	} else {
		err = verifyText(s.out, report)
	}
	if err != nil {
		return err
	}
	switch {
	case report.Damaged == 0:
		return nil
	case o.repair:
		return fmt.Errorf("%s: %d damaged: dropped, and fetched again when they are read", dir, report.Damaged)
	}
	return fmt.Errorf("%s: %d damaged: stop the node and run again with --repair; until then the kernel may show them to readers of complete files", dir, report.Damaged)
}

func verifyText(out io.Writer, r disk.Report) error {
	for _, d := range r.Damage {
		fmt.Fprintln(out, oneLine(d.String()))
	}
	if more := r.Damaged - int64(len(r.Damage)); more > 0 {
		fmt.Fprintf(out, "and %d more\n", more)
	}
	_, err := fmt.Fprintf(out, "%d objects, %d blocks, %s checked, %d damaged\n", r.Objects, r.Blocks, size(r.Bytes), r.Damaged)
	return err
}

// damageEntry is one finding in `shardwell verify --json`.
type damageEntry struct {
	ID     string  `json:"id"`
	Object string  `json:"object"` // URI, "" when it is not known
	Block  *uint32 `json:"block"`  // null: the whole object
	File   string  `json:"file"`
	Offset int64   `json:"offset"`
	Reason string  `json:"reason"`
}

func verifyJSON(out io.Writer, r disk.Report) error {
	doc := struct {
		Objects int64         `json:"objects"`
		Blocks  int64         `json:"blocks"`
		Bytes   int64         `json:"bytes"`
		Damaged int64         `json:"damaged"`
		Damage  []damageEntry `json:"damage"` // at most 1000
	}{r.Objects, r.Blocks, r.Bytes, r.Damaged, []damageEntry{}}
	for _, d := range r.Damage {
		e := damageEntry{ID: d.ID.String(), Object: d.Object, File: d.File, Offset: d.Offset, Reason: d.Reason.String()}
		if d.Block != disk.WholeObject {
			e.Block = &d.Block
		}
		doc.Damage = append(doc.Damage, e)
	}
	enc := json.NewEncoder(out)
	enc.SetIndent("", "  ")
	return enc.Encode(doc)
}
