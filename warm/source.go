package warm

import (
	"iter"
	"strings"
	"unicode/utf8"
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
	case !utf8.ValidString(s):
		return src, usagef("%q is not UTF-8: name it in a list (-f)", s)
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

// ParseLine reads a line of a list: the URI of an object, or of a directory if it ends in a slash, as it
// is, without templates and patterns. It returns nil for an empty line and one that begins with #.
func ParseLine(line string) (*Source, error) {
	line = strings.TrimRight(line, "\r")
	if strings.TrimSpace(line) == "" || line[0] == '#' {
		return nil, nil
	}
	scheme, rest, ok := strings.Cut(line, "://")
	bucket, name, _ := strings.Cut(rest, "/")
	if !ok || scheme != "s3" && scheme != "file" || (bucket == "") != (scheme == "file") || strings.ContainsRune(line, 0) {
		return nil, usagef("%q is not a URI: write s3://BUCKET/KEY or file:///PATH", line[:min(len(line), shownLineBytes)])
	}
	return &Source{text: line, base: scheme + "://" + bucket + "/", names: template{{text: escape.Replace(name)}}}, nil
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
	// Glob is a pattern of keys.
	Glob string
}

// Matcher returns what tells whether a key matches a pattern that [ParseSource] has taken, and what all
// that do begin with.
func Matcher(pattern string) (match func(key string) bool, prefix string) {
	g, err := parseGlob(pattern)
	return func(key string) bool { return err == nil && g.match(key) }, globPrefix(pattern)
}

// Wants yields what a source asks for, in the order in which it was written.
func (s Source) Wants() iter.Seq[Want] {
	return func(yield func(Want) bool) {
		if s.globs != nil {
			for _, g := range s.globs {
				w := Want{Glob: g}
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

// Expand returns what a template of names stands for, in its order: at most so many.
func Expand(s string, most int) ([]string, error) {
	t, err := parseTemplate(s)
	if err != nil {
		return nil, err
	}
	if t.count() > uint64(most) {
		return nil, usagef("%q stands for more than %d names", s, most)
	}
	var names []string
	for name := range t.all() {
		names = append(names, plain(name))
	}
	return names, nil
}
