package config

import (
	"errors"
	"fmt"
	"math"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
)

// Bytes is a size, written as a Kubernetes quantity: 512Mi, 100Gi, 5G, 1024.
type Bytes int64

// UnmarshalText reads a quantity. Negative ones, fractions of a byte and those
// beyond int64 are errors.
func (b *Bytes) UnmarshalText(text []byte) error {
	if !quantity.Match(text) {
		return errors.New("is not a size; write it like 512Mi, 100Gi or 5G")
	}
	q, err := resource.ParseQuantity(string(text))
	if err != nil {
		return errors.New("is not a size; write it like 512Mi, 100Gi or 5G")
	}
	switch {
	case q.Sign() < 0:
		return errors.New("is negative")
	case q.CmpInt64(math.MaxInt64) > 0, q.CmpInt64(q.Value()) != 0:
		return errors.New("is not a whole number of bytes that fits 64 bits")
	}
	*b = Bytes(q.Value())
	return nil
}

// quantity bounds what is given to the parser of quantities, which works with
// arbitrary precision: 1e999999999 keeps it busy for hours.
var quantity = regexp.MustCompile(`^[+-]?[0-9]{1,19}(\.[0-9]{0,9})?([numkMGTPE]|[KMGTPE]i|[eE][+-]?[0-9]{1,2})?$`)

// MarshalText writes the shortest quantity with binary suffixes.
func (b Bytes) MarshalText() ([]byte, error) { return []byte(b.String()), nil }

func (b Bytes) String() string {
	return resource.NewQuantity(int64(b), resource.BinarySI).String()
}

// Duration is a time span, written as Go does: 90s, 5m, 1h30m.
type Duration time.Duration

// UnmarshalText reads a duration. Negative ones are errors.
func (d *Duration) UnmarshalText(text []byte) error {
	v, err := time.ParseDuration(string(text))
	if err != nil {
		return errors.New("is not a duration; write it like 90s, 5m or 1h30m")
	}
	if v < 0 {
		return errors.New("is negative")
	}
	*d = Duration(v)
	return nil
}

// MarshalText writes the duration as Go does.
func (d Duration) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

func (d Duration) String() string { return shortDuration(time.Duration(d)) }

// shortDuration writes 5m0s as 5m, as a user would.
func shortDuration(d time.Duration) string {
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}

// CacheDir is a directory for cached data and how much of it may be used.
type CacheDir struct {
	Path   string
	Budget Bytes // 0: what the file system offers
}

// UnmarshalText reads DIR or DIR=SIZE. The text behind the last "=" is the
// size, so that a path may contain the sign when a size follows.
func (c *CacheDir) UnmarshalText(text []byte) error {
	path, size, found := string(text), "", false
	if i := strings.LastIndexByte(path, '='); i >= 0 {
		path, size, found = path[:i], path[i+1:], true
	}
	if path == "" {
		return errors.New("names no directory; write DIR or DIR=SIZE")
	}
	if strings.ContainsRune(path, 0) {
		return errors.New("contains a NUL byte")
	}
	out := CacheDir{Path: filepath.Clean(path)}
	if found {
		if err := out.Budget.UnmarshalText([]byte(size)); err != nil {
			return fmt.Errorf("has the size %q, which %w", size, err)
		}
		if out.Budget == 0 {
			return errors.New("has the size 0; leave =SIZE out to use what the file system offers")
		}
	}
	*c = out
	return nil
}

// MarshalText writes DIR or DIR=SIZE.
func (c CacheDir) MarshalText() ([]byte, error) { return []byte(c.String()), nil }

func (c CacheDir) String() string {
	if c.Budget == 0 {
		if strings.Contains(c.Path, "=") { // would be read as a size
			return c.Path + "=" + Bytes(math.MaxInt64).String()
		}
		return c.Path
	}
	return c.Path + "=" + c.Budget.String()
}

// The modes of [Consistency].
const (
	ConsistencyTTL       = "ttl"
	ConsistencyOpen      = "open"
	ConsistencyImmutable = "immutable"
)

// Consistency is how old an answer about a name may be.
type Consistency struct {
	Mode string        // one of the modes above
	TTL  time.Duration // of [ConsistencyTTL]
}

// UnmarshalText reads ttl=DURATION, open or immutable.
func (c *Consistency) UnmarshalText(text []byte) error {
	mode, ttl, found := strings.Cut(string(text), "=")
	out := Consistency{Mode: mode}
	switch {
	case mode == ConsistencyTTL && found:
		var d Duration
		if err := d.UnmarshalText([]byte(ttl)); err != nil {
			return fmt.Errorf("has the time %q, which %w", ttl, err)
		}
		out.TTL = time.Duration(d)
	case (mode == ConsistencyOpen || mode == ConsistencyImmutable) && !found:
	default:
		return errors.New("is none of ttl=DURATION, open, immutable")
	}
	*c = out
	return nil
}

// MarshalText writes what UnmarshalText reads.
func (c Consistency) MarshalText() ([]byte, error) { return []byte(c.String()), nil }

func (c Consistency) String() string {
	if c.Mode == ConsistencyTTL {
		return c.Mode + "=" + shortDuration(c.TTL)
	}
	return c.Mode
}

// MaxAge returns the age that an answer about a name may have when it is
// looked up, and when a file is opened.
func (c Consistency) MaxAge() (lookup, open time.Duration) {
	switch c.Mode {
	case ConsistencyImmutable:
		return math.MaxInt64, math.MaxInt64
	case ConsistencyOpen:
		return time.Minute, 0
	default:
		return c.TTL, c.TTL
	}
}

// Mode is a set of permission bits, written in octal.
type Mode uint32

// UnmarshalText reads octal digits. Bits that let somebody write are errors:
// mounts are read-only.
func (m *Mode) UnmarshalText(text []byte) error {
	v, err := strconv.ParseUint(strings.TrimPrefix(string(text), "0o"), 8, 32)
	if err != nil || v > 0o777 {
		return errors.New("is not a set of permissions; write it in octal, like 0444")
	}
	if v&0o222 != 0 {
		return errors.New("allows to write, but mounts are read-only; write it like 0444 or 0555")
	}
	*m = Mode(v)
	return nil
}

// MarshalText writes four octal digits.
func (m Mode) MarshalText() ([]byte, error) { return []byte(m.String()), nil }

func (m Mode) String() string { return fmt.Sprintf("%04o", uint32(m)) }
