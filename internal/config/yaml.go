package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"

	"go.yaml.in/yaml/v3"
)

// maxFileBytes bounds a configuration file.
const maxFileBytes = 1 << 20

// loadYAML reads a flat mapping from option to value or list of values. Nodes
// of the document are read rather than decoded into a struct, so that each value
// remembers its line, sizes need no quotes, and nothing is guessed.
func (r *Resolved) loadYAML(text []byte, path string) error {
	if len(text) > maxFileBytes {
		return &Error{What: fmt.Sprintf("larger than %d bytes", maxFileBytes), Where: path}
	}
	dec := yaml.NewDecoder(bytes.NewReader(text))
	var doc yaml.Node
	switch err := dec.Decode(&doc); {
	case errors.Is(err, io.EOF):
		return nil // empty
	case err != nil:
		return &Error{What: "not YAML: " + oneLine(err), Where: path}
	}
	if err := dec.Decode(new(yaml.Node)); !errors.Is(err, io.EOF) {
		return &Error{What: "more than one document", Where: path, Do: "keep one"}
	}
	root := doc.Content[0]
	if root.Kind == yaml.ScalarNode && root.Tag == "!!null" {
		return nil // comments only
	}
	if root.Kind != yaml.MappingNode {
		return &Error{What: "not a mapping", Where: lineOf(path, root), Do: "write one option a line, like cacheDir: [/data=100Gi]"}
	}
	seen := map[string]int{}
	for i := 0; i+1 < len(root.Content); i += 2 {
		if err := r.loadEntry(root.Content[i], root.Content[i+1], path, seen); err != nil {
			return err
		}
	}
	return nil
}

func (r *Resolved) loadEntry(key, value *yaml.Node, path string, seen map[string]int) error {
	where := lineOf(path, key)
	f, ok := byKey(key.Value)
	if !ok || key.Kind != yaml.ScalarNode {
		return &Error{What: fmt.Sprintf("unknown option %q", key.Value), Where: where, Do: suggest(key.Value)}
	}
	if first, twice := seen[f.name]; twice {
		return &Error{What: fmt.Sprintf("option %q given twice", key.Value), Where: where, Do: fmt.Sprintf("keep this one or that of line %d", first)}
	}
	seen[f.name] = key.Line
	texts, err := yamlTexts(f, value)
	if err != nil {
		return &Error{What: fmt.Sprintf("option %q %v", key.Value, err), Where: where}
	}
	return r.set(f, texts, Source{Kind: "file", Where: where})
}

// yamlTexts returns the scalars of a value. A list may be written as a single
// scalar, with commas or without.
func yamlTexts(f field, value *yaml.Node) ([]string, error) {
	switch {
	case value.Kind == yaml.ScalarNode && value.Tag == "!!null":
		return nil, errors.New("has no value; leave it out to have the default")
	case value.Kind == yaml.ScalarNode:
		return f.split(value.Value), nil
	case value.Kind == yaml.SequenceNode && f.isList():
		var out []string
		for _, n := range value.Content {
			if n.Kind != yaml.ScalarNode || n.Tag == "!!null" {
				return nil, errors.New("takes a list of plain values")
			}
			out = append(out, n.Value)
		}
		return out, nil
	case f.isList():
		return nil, errors.New("takes a list of plain values")
	default:
		return nil, errors.New("takes one plain value")
	}
}

func lineOf(path string, n *yaml.Node) string { return fmt.Sprintf("%s:%d", path, n.Line) }

func oneLine(err error) string {
	return strings.Join(strings.Fields(strings.TrimPrefix(err.Error(), "yaml: ")), " ")
}

// byKey finds an option by its name in YAML and volume attributes.
func byKey(key string) (field, bool) {
	for _, f := range fields() {
		if f.key() == key {
			return f, true
		}
	}
	return field{}, false
}

// suggest names the option that was probably meant.
func suggest(key string) string {
	plain := func(s string) string { return strings.ToLower(strings.NewReplacer("-", "", "_", "").Replace(s)) }
	best, bestDistance := "", 3
	for _, f := range fields() {
		if d := distance(plain(key), plain(f.key())); d < bestDistance {
			best, bestDistance = f.key(), d
		}
	}
	if best == "" {
		return "`shardwell config` lists the options"
	}
	return fmt.Sprintf("did you mean %q?", best)
}

// distance is how many letters must be added, dropped or changed to make b of a.
// Words of more than 64 bytes are far from everything.
func distance(a, b string) int {
	if len(a) > 64 || len(b) > 64 {
		return 64
	}
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			change := diagonal
			if a[i] != b[j] {
				change++
			}
			diagonal = row[j+1]
			row[j+1] = min(change, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}
