package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/shardwell/shardwell/internal/config"
	"github.com/shardwell/shardwell/internal/control"
	"github.com/shardwell/shardwell/internal/node"
)

func newLs(s streams) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "ls URI",
		Short: "List objects, or the members of a tar",
		Long: `Lists objects and prefixes under a URI, one level deep: size in bytes, time, name. Of a tar that the URI names it
lists the members, in their order; those that cannot be read by themselves are named on standard error. The node that
runs on this machine answers from what the cluster knows; without one the origin is asked.`,
		Args:              exactArgs("URI"),
		ValidArgsFunction: completeURI,
	}
	opts := configured(cmd, config.ScopeOrigin, config.ScopeClient)
	asJSON := cmd.Flags().Bool("json", false, "Print one JSON document.")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		cfg, err := opts.load()
		if err != nil {
			return err
		}
		if _, err := config.ParseURI(args[0]); err != nil {
			return err
		}
		return runLs(cmd.Context(), s, cfg, args[0], *asJSON)
	}
	return cmd
}

func runLs(ctx context.Context, s streams, cfg config.Resolved, uri string, asJSON bool) error {
	list, closeList, err := lister(ctx, cfg)
	if err != nil {
		return err
	}
	defer closeList()
	w := bufio.NewWriter(s.out)
	print := printEntry
	if asJSON {
		print = jsonEntries()
	}
	count := 0
	err = list(ctx, control.ListRequest{URI: uri, Options: cfg.Attributes(), Members: true}, func(e control.Entry) error {
		if e.LeftOut != "" && !asJSON {
			_, err := fmt.Fprintf(s.err, "shardwell ls: left out: %s: %s\n", e.Name, e.LeftOut)
			return err
		}
		count++
		return print(w, e)
	})
	if err == nil && asJSON {
		err = closeJSON(w, count)
	}
	if flushErr := w.Flush(); err == nil {
		err = flushErr
	}
	return err
}

type listFunc func(context.Context, control.ListRequest, func(control.Entry) error) error

// lister lists through the running node, or by itself.
func lister(ctx context.Context, cfg config.Resolved) (listFunc, func(), error) {
	client, err := control.Dial(ctx, cfg.ControlSocket)
	if err == nil {
		return client.List, func() { _ = client.Close() }, nil
	}
	if !errors.Is(err, control.ErrNoNode) {
		return nil, nil, err
	}
	return func(ctx context.Context, req control.ListRequest, yield func(control.Entry) error) error {
		return node.ListOrigin(ctx, cfg.Config, req, yield)
	}, func() {}, nil
}

// printEntry writes a line; names that would upset a terminal are quoted.
func printEntry(w *bufio.Writer, e control.Entry) error {
	size, at := strconv.FormatInt(e.Size, 10), "-"
	if strings.HasSuffix(e.Name, "/") {
		size = "-"
	}
	if !e.ModTime.IsZero() { // members of tars may have none
		at = e.ModTime.UTC().Format(time.DateTime)
	}
	_, err := fmt.Fprintf(w, "%14s  %-19s  %s\n", size, at, printable(e.Name))
	return err
}

// printable quotes a name that is not plain text.
func printable(name string) string {
	if utf8.ValidString(name) && strconv.CanBackquote(name) {
		return name
	}
	return strconv.Quote(name)
}

// jsonEntry is one object in `shardwell ls --json`.
type jsonEntry struct {
	Name    string     `json:"name"`
	Size    int64      `json:"size"`
	ModTime *time.Time `json:"modTime"` // null for a prefix
	ETag    string     `json:"etag"`
	LeftOut string     `json:"leftOut,omitempty"` // of a tar's member that cannot be read by itself: why
}

// jsonEntries writes the entries of one array.
func jsonEntries() func(*bufio.Writer, control.Entry) error {
	separator := "["
	return func(w *bufio.Writer, e control.Entry) error {
		j := jsonEntry{Name: e.Name, Size: e.Size, ETag: e.ETag, LeftOut: e.LeftOut}
		if !e.ModTime.IsZero() {
			at := e.ModTime.UTC()
			j.ModTime = &at
		}
		doc, err := json.Marshal(j)
		if err != nil {
			return err
		}
		_, err = io.WriteString(w, separator+string(doc))
		separator = ",\n"
		return err
	}
}

func closeJSON(w *bufio.Writer, count int) error {
	end := "]\n"
	if count == 0 {
		end = "[]\n"
	}
	_, err := w.WriteString(end)
	return err
}
