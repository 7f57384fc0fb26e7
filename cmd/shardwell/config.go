package main

import (
	"encoding/json"
	"fmt"
	"io"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/shardwell/shardwell/internal/config"
)

func newConfig(s streams) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "config",
		Short: "Print the configuration and where each value comes from",
		Long: `Prints every option with its value and its origin, as a YAML file that --config accepts. Flags outrank the
environment (SHARDWELL_CACHE_DIR for --cache-dir), which outranks the file, which outranks the defaults. Passwords
in URLs are masked.`,
		Args: exactArgs(),
	}
	opts := configured(cmd, config.ScopeNode, config.ScopeOrigin, config.ScopeMount, config.ScopeClient)
	asJSON := cmd.Flags().Bool("json", false, "Print one JSON document.")
	cmd.RunE = func(*cobra.Command, []string) error {
		cfg, err := opts.load()
		if err != nil {
			return err
		}
		for _, name := range cfg.Ignored {
			fmt.Fprintf(s.err, "%s is no option and is ignored\n", name)
		}
		if *asJSON {
			return configJSON(s.out, cfg)
		}
		return configYAML(s.out, cfg)
	}
	return cmd
}

// configYAML writes one option a line, with its origin as a comment.
func configYAML(out io.Writer, cfg config.Resolved) error {
	w := tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
	for _, o := range cfg.Settings() {
		value, err := yamlValue(o)
		if err != nil {
			return err
		}
		fmt.Fprintf(w, "%s: %s\t# %s\n", o.Key, value, o.Source)
	}
	return w.Flush()
}

// yamlValue writes a value in the part of YAML that is JSON where that is needed.
func yamlValue(o config.Setting) (string, error) {
	if o.List {
		doc, err := json.Marshal(o.Values)
		return string(doc), err
	}
	if plain(o.Values[0]) {
		return o.Values[0], nil
	}
	doc, err := json.Marshal(o.Values[0])
	return string(doc), err
}

// plain reports whether a text needs no quotes in YAML: one that has a letter
// or digit in front and nothing that YAML reads as structure.
func plain(s string) bool {
	if s == "" {
		return false
	}
	for i, r := range s {
		letter := r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9'
		if !letter && (i == 0 && r != '/' && r != '-' || r != '/' && r != '-' && r != '.' && r != '=' && r != '_') {
			return false
		}
	}
	return true
}

// configJSON writes one document: by key, the value and its origin.
func configJSON(out io.Writer, cfg config.Resolved) error {
	type entry struct {
		Value  any    `json:"value"`
		Kind   string `json:"kind"`
		Source string `json:"source"`
	}
	doc := map[string]entry{}
	for _, o := range cfg.Settings() {
		e := entry{Kind: o.Source.Kind, Source: o.Source.Where}
		if o.List {
			e.Value = o.Values
		} else {
			e.Value = o.Values[0]
		}
		doc[o.Key] = e
	}
	enc := json.NewEncoder(out)
	enc.SetIndent("", "  ")
	return enc.Encode(doc)
}
