package chunk

import (
	"fmt"
	"io"
	"log/slog"
)

// Identity names on whose behalf an origin is asked. "" is the node itself, with the
// credentials of its own configuration. It is no secret, and means the same on every
// node of a cluster: those who share it share what the origin told and allowed them.
type Identity string

// Anonymous is the identity of those who ask without credentials, where the node has some.
const Anonymous Identity = "anonymous"

// MaxIdentityBytes bounds an [Identity].
const MaxIdentityBytes = 64

// Valid reports whether an identity is one that can travel: short, and of letters,
// digits and hyphens.
func (i Identity) Valid() bool {
	if len(i) > MaxIdentityBytes {
		return false
	}
	for _, c := range []byte(i) {
		if (c < '0' || c > '9') && (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && c != '-' {
			return false
		}
	}
	return true
}

// MaxGrantBytes bounds a [Grant].
const MaxGrantBytes = 8192

// Grant is a presigned URL: with it a node that lacks the credentials of an identity may
// put one question to the origin on its behalf, for a short time. It is a secret. Only
// [Grant.Secret] shows it: whatever prints or logs a Grant prints a placeholder.
type Grant struct{ url string }

// NewGrant returns the grant that a presigned URL is; "" is none.
func NewGrant(url string) Grant { return Grant{url} }

// Secret returns the URL, "" for none.
func (g Grant) Secret() string { return g.url }

// String says whether there is one.
func (g Grant) String() string {
	if g.url == "" {
		return "no grant"
	}
	return "a grant"
}

// Format prints what String does, whatever the verb.
func (g Grant) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, g.String()) }

// LogValue makes slog print what String does.
func (g Grant) LogValue() slog.Value { return slog.StringValue(g.String()) }

// Access is on whose behalf, and on what strength, an origin is asked. The zero value
// is the node itself.
type Access struct {
	Identity Identity
	// Grant serves a node that lacks the credentials of Identity.
	Grant Grant
}
