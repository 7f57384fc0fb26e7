package warm

import (
	"path"
	"slices"
	"strings"
)

// hasGlob reports whether text that has been expanded has characters of patterns that are
// not behind a backslash.
func hasGlob(s string) bool {
	for i := 0; i < len(s); i++ {
		switch s[i] {
		case '\\':
			i++
		case '*', '?', '[':
			return true
		}
	}
	return false
}

// hasGlob reports whether some of what a template expands to has.
func (t template) hasGlob() bool {
	for _, p := range t {
		if hasGlob(p.text) || slices.ContainsFunc(p.choice, template.hasGlob) {
			return true
		}
	}
	return false
}

// plain takes the backslashes away from text without patterns.
func plain(s string) string {
	if !strings.Contains(s, `\`) {
		return s
	}
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+1 < len(s) {
			i++
		}
		b.WriteByte(s[i])
	}
	return b.String()
}

// globPrefix returns the text that everything which matches a pattern begins with.
func globPrefix(s string) string {
	for i := 0; i < len(s); i++ {
		switch s[i] {
		case '\\':
			i++
		case '*', '?', '[':
			return plain(s[:i])
		}
	}
	return plain(s)
}

// glob is a pattern, by the elements of its path.
type glob []string

// parseGlob reads a pattern: * ? and [a-z] stay within one element of the path, an element **
// stands for any number of them. One that ends in a slash means all below.
func parseGlob(s string) (glob, error) {
	if strings.HasSuffix(s, "/") {
		s += "**"
	}
	g := glob(strings.Split(s, "/"))
	for i, element := range g {
		g[i] = strings.ReplaceAll(element, "[!", "[^")
		if _, err := path.Match(g[i], ""); err != nil {
			return nil, usagef("pattern %q: a [ without its ]: write \\[ for the character", s)
		}
	}
	if g[len(g)-1] == "**" { // at least one: the directory itself is none of what is below it
		g = append(g, "*")
	}
	return g, nil
}

// match reports whether a key matches. When an element does not fit, the last ** takes one more:
// what earlier ones took need not be looked at again.
func (g glob) match(key string) bool {
	elements := strings.Split(key, "/")
	at, star, from := 0, -1, 0 // in g; the last ** in it; where that one ends in elements
	for i := 0; i < len(elements); {
		switch {
		case at < len(g) && g[at] == "**":
			star, from = at, i
			at++
		case at < len(g) && fits(g[at], elements[i]):
			at, i = at+1, i+1
		case star >= 0:
			from++
			at, i = star+1, from
		default:
			return false
		}
	}
	for at < len(g) && g[at] == "**" {
		at++
	}
	return at == len(g)
}

func fits(pattern, element string) bool {
	ok, err := path.Match(pattern, element)
	return ok && err == nil
}
