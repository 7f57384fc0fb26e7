// Package secret reads a cluster's secret file and derives from it the keys that
// gossip and requests between peers are protected with. It is a part of peer.
//
// It promises that the keys for different uses tell nothing of each other or of the
// secret, that a weak or damaged file is refused in words that do not quote it, and
// that no way of printing a [Set] shows it. Where the file comes from and when it is read again is
// left to others.
//
// The file holds one secret a line, 32 to 1024 printable characters each, as
// `head -c 32 /dev/urandom | base64` makes them; its spelling is the secret, nothing
// is decoded. Empty lines and lines that begin with # do not count. The
// first secret signs and encrypts, all of them verify and decrypt. So a secret is changed in
// three steps: append the new one on all nodes, move it to the top, remove the old one.
package secret

import (
	"bytes"
	"crypto/hkdf"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
)

// Limits of a secret file.
const (
	MinSecretBytes = 32
	MaxSecretBytes = 1024
	MaxSecrets     = 8
	MaxFileBytes   = 64 << 10

	// minDistinctBytes refuses placeholders such as a row of one letter; 32
	// random hexadecimal digits have some 14 different ones.
	minDistinctBytes = 8
)

// KeyBytes is the length of derived keys: AES-256 for gossip, HMAC-SHA256 for requests.
const KeyBytes = 32

// The info strings of HKDF, which keep the uses apart.
const (
	infoGossip  = "shardwell gossip key, version 1"
	infoRequest = "shardwell request key, version 1"
)

// Set holds the keys of one secret file. The zero value has none.
type Set struct {
	gossip  [][]byte
	request [][]byte
}

// ReadFile parses the secret file at path.
func ReadFile(path string) (Set, error) {
	f, err := os.Open(path)
	if err != nil {
		return Set{}, fmt.Errorf("read secret file: %w", err)
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, MaxFileBytes+1))
	if err != nil {
		return Set{}, fmt.Errorf("read secret file: %w", err)
	}
	s, err := Parse(data)
	if err != nil {
		return Set{}, fmt.Errorf("secret file %s: %w", path, err)
	}
	return s, nil
}

// Parse derives the keys of a secret file's contents. Its errors name lines by number only.
func Parse(data []byte) (Set, error) {
	if len(data) > MaxFileBytes {
		return Set{}, fmt.Errorf("larger than %d bytes", MaxFileBytes)
	}
	var secrets [][]byte
	number := 0
	for line := range bytes.Lines(data) {
		number++
		line = bytes.TrimSpace(line)
		if len(line) == 0 || line[0] == '#' {
			continue
		}
		if err := check(line); err != nil {
			return Set{}, fmt.Errorf("line %d: %w", number, err)
		}
		for _, other := range secrets {
			if bytes.Equal(other, line) {
				return Set{}, fmt.Errorf("line %d: the same secret is there twice", number)
			}
		}
		if secrets = append(secrets, line); len(secrets) > MaxSecrets {
			return Set{}, fmt.Errorf("line %d: more than %d secrets", number, MaxSecrets)
		}
	}
	if len(secrets) == 0 {
		return Set{}, errors.New("no secret in it")
	}
	return derive(secrets)
}

// check reports why a line cannot be a secret, without quoting it.
func check(line []byte) error {
	if len(line) < MinSecretBytes || len(line) > MaxSecretBytes {
		return fmt.Errorf("secret of %d characters: must have %d to %d", len(line), MinSecretBytes, MaxSecretBytes)
	}
	var seen [256]bool
	distinct := 0
	for _, c := range line {
		if c < ' ' || c > '~' {
			return errors.New("secret has a character that is not printable ASCII")
		}
		if !seen[c] {
			seen[c] = true
			distinct++
		}
	}
	if distinct < minDistinctBytes {
		return fmt.Errorf("secret of only %d different characters: use a random one", distinct)
	}
	return nil
}

func derive(secrets [][]byte) (Set, error) {
	var s Set
	for _, sec := range secrets {
		for _, use := range []struct {
			info string
			keys *[][]byte
		}{{infoGossip, &s.gossip}, {infoRequest, &s.request}} {
			key, err := hkdf.Key(sha256.New, sec, nil, use.info, KeyBytes)
			if err != nil {
				return Set{}, fmt.Errorf("derive key: %w", err)
			}
			*use.keys = append(*use.keys, key)
		}
	}
	return s, nil
}

// GossipKeys returns the keys for memberlist, the encrypting one first. Do not change them.
func (s Set) GossipKeys() [][]byte { return s.gossip }

// RequestKeys returns the keys for signatures of requests between peers, the signing one
// first. Do not change them.
func (s Set) RequestKeys() [][]byte { return s.request }

// Len returns the number of secrets.
func (s Set) Len() int { return len(s.request) }

// String tells the number of secrets and nothing of them.
func (s Set) String() string { return fmt.Sprintf("%d secrets", s.Len()) }

// Format prints what String does, whatever the verb, so that %+v and %x do not
// reach into the set.
func (s Set) Format(f fmt.State, _ rune) { io.WriteString(f, s.String()) }

// LogValue makes slog print what String does.
func (s Set) LogValue() slog.Value { return slog.StringValue(s.String()) }
