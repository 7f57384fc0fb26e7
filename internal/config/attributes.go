package config

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// WithAttributes returns c as one mount is to have it: with the options that a
// mount may set taken from attributes, whose names are those of YAML, and lists
// separated by commas. Options that only a node may set, unknown ones and
// values that cannot work are errors of type *[Error].
func (c Config) WithAttributes(attributes map[string]string) (Config, error) {
	r := Resolved{Config: c, sources: map[string]Source{}}
	for _, key := range slices.Sorted(maps.Keys(attributes)) {
		f, ok := byKey(key)
		if !ok {
			return c, &Error{What: fmt.Sprintf("unknown option %q", key), Do: suggest(key)}
		}
		if !f.in(ScopeMount, ScopeOrigin) {
			return c, &Error{What: fmt.Sprintf("option %q is the node's", key), Do: "set it where the node is started"}
		}
		if err := r.set(f, f.split(attributes[key]), Source{Kind: "attribute", Where: key}); err != nil {
			return c, err
		}
	}
	return r.Config, r.check()
}

// Attributes returns the options of the scopes that were set by something other
// than a default, as [Config.WithAttributes] takes them: what a command sends to
// the node that mounts for it.
func (r Resolved) Attributes() map[string]string {
	out := map[string]string{}
	for _, f := range fields() {
		if _, given := r.sources[f.name]; given && f.in(ScopeMount, ScopeOrigin) {
			out[f.key()] = strings.Join(f.texts(&r.Config), ",")
		}
	}
	return out
}

// MountAttributes returns all options of c that a mount may set, as
// [Config.WithAttributes] takes them, whether they were set or not: what a mount
// goes on with when its node is started with others.
func (c Config) MountAttributes() map[string]string {
	out := map[string]string{}
	for _, f := range fields() {
		if f.in(ScopeMount) {
			out[f.key()] = strings.Join(f.texts(&c), ",")
		}
	}
	return out
}
