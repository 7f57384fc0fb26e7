package warm

import (
	"iter"
	"strings"
)

// Source is one argument of a warm-up: objects of one bucket or directory.
type Source struct {
	text  string
	base  string // scheme and bucket: "s3://bucket/" or "file:///"
	names template
	globs []string // instead of names: what they expand to, when that has patterns
}

// ParseSource reads s3://BUCKET/… or file:///… whose rest is a template of names, patterns and
// prefixes. Errors are for the user.
func ParseSource(s string) (Source, error) {
	src := Source{text: s}
	scheme, rest, ok := strings.Cut(s, "://")
	switch {
	case strings.ContainsAny(s, "\x00\n\r"):
		return src, usagef("%q contains a control character", s)
	case !ok || scheme != "s3" && scheme != "file":
		return src, usagef("%q is not a URI: write s3://BUCKET/PREFIX or file:///DIR", s)
	}
	bucket, names, _ := strings.Cut(rest, "/")
	if (bucket == "") != (scheme == "file") || strings.ContainsAny(bucket, "{}*?[]\\") {
		return src, usagef("%q: the bucket is to be named as it is: write s3://BUCKET/PREFIX or file:///DIR", s)
	}
	src.base = scheme + "://" + bucket + "/"
	var err error
	if src.names, err = parseTemplate(names); err != nil {
		return src, err
	}
	n := src.names.count()
	if n > MaxObjects {
		return src, usagef("%q stands for more than %d names", s, MaxObjects)
	}
	if !src.names.hasGlob() {
		return src, nil
	}
	if n > MaxGlobs {
		return src, usagef("%q stands for %d patterns, each of them a listing: %d are the most", s, n, MaxGlobs)
	}
	for name := range src.names.all() {
		if _, err := parseGlob(name); err != nil {
			return src, err
		}
		src.globs = append(src.globs, name)
	}
	return src, nil
}

// Exact returns a source that stands for one name as it is written: a line of a list.
func Exact(base, name string) Source {
	return Source{text: base + name, base: base, names: template{{text: escape.Replace(name)}}}
}

var escape = strings.NewReplacer(`\`, `\\`, "{", `\{`, "}", `\}`, "*", `\*`, "?", `\?`, "[", `\[`, ",", `\,`)

// String returns what the user wrote.
func (s Source) String() string { return s.text }

// Base returns the URI of the bucket or directory.
func (s Source) Base() string { return s.base }

// Want is what one expansion of a source asks for.
type Want struct {
	// Name is the key of an object, or of a directory, which may end in a slash; without Glob.
	Name string
	// Glob is a pattern of keys; Prefix is what all of them begin with.
	Glob, Prefix string
}

// Matcher is Match for many keys.
func (w Want) Matcher() func(key string) bool {
	g, err := parseGlob(w.Glob)
	return func(key string) bool { return err == nil && g.match(key) }
}

// Wants yields what a source asks for, in the order in which it was written.
func (s Source) Wants() iter.Seq[Want] {
	return func(yield func(Want) bool) {
		if s.globs != nil {
			for _, g := range s.globs {
				w := Want{Glob: g, Prefix: globPrefix(g)}
				if !hasGlob(g) {
					w = Want{Name: plain(g)}
				}
				if !yield(w) {
					return
				}
			}
			return
		}
		for name := range s.names.all() {
			if !yield(Want{Name: plain(name)}) {
				return
			}
		}
	}
}
