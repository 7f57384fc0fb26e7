package transfer

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// MinKeyBytes is the shortest key that a [Signer] takes.
const MinKeyBytes = 16

// maxKeys bounds how many keys one signature is tried with.
const maxKeys = 8

// ClockWindow is how far the clocks of two members may differ.
const ClockWindow = 5 * time.Minute

// Errors about the right to ask.
var (
	// ErrUnauthorized says that a signature is missing, wrong, or for another member.
	ErrUnauthorized = errors.New("peer does not accept our signature: do both have the same secret?")
	// ErrClock says that a signature is right and its time is not.
	ErrClock = errors.New("clocks of the two nodes differ by more than 5 minutes")
	// ErrReplay says that a signature was used before.
	ErrReplay = errors.New("signature was used before")
	// ErrImpostor says that an answer does not prove knowledge of the secret.
	ErrImpostor = errors.New("answer is not signed by a member of this cluster")
)

// Signer signs requests and answers under keys derived from the cluster's secret.
// The first key signs, every key verifies, so that a secret can be replaced
// without a pause. A nil Signer signs nothing: for clusters without a secret.
type Signer struct {
	keys [][]byte
}

// NewSigner returns a Signer over 1 to 8 keys of at least [MinKeyBytes].
func NewSigner(keys [][]byte) (*Signer, error) {
	if len(keys) == 0 || len(keys) > maxKeys {
		return nil, fmt.Errorf("peer signing: %d keys: must be between 1 and %d", len(keys), maxKeys)
	}
	s := &Signer{}
	for i, k := range keys {
		if len(k) < MinKeyBytes {
			return nil, fmt.Errorf("peer signing: key %d has %d bytes: must be at least %d", i, len(k), MinKeyBytes)
		}
		s.keys = append(s.keys, append([]byte(nil), k...))
	}
	return s, nil
}

const (
	scheme     = "Shardwell-HMAC-SHA256"
	nonceBytes = 16
	tagBytes   = sha256.Size
)

var b64 = base64.RawURLEncoding.Strict()

type tag [tagBytes]byte

// mac computes the code over a purpose and fields, each behind its length, so
// that no two lists of fields run into the same bytes.
func mac(key []byte, purpose string, fields ...string) tag {
	h := hmac.New(sha256.New, key)
	var n [4]byte
	write := func(s string) {
		binary.LittleEndian.PutUint32(n[:], uint32(len(s)))
		h.Write(n[:])
		h.Write([]byte(s))
	}
	write(purpose)
	for _, f := range fields {
		write(f)
	}
	var t tag
	h.Sum(t[:0])
	return t
}

const (
	purposeRequest = "shardwell peer request v1"
	purposeAnswer  = "shardwell peer answer v1"
)

// sign returns the value of an Authorization header over fields, and the tag that
// the answer has to be bound to.
func (s *Signer) sign(now time.Time, fields ...string) (string, tag) {
	var nonce [nonceBytes]byte
	rand.Read(nonce[:])
	a := authorization{millis: now.UnixMilli(), nonce: nonce}
	a.tag = a.compute(s.keys[0], fields)
	return a.String(), a.tag
}

// prove returns the header by which an answer shows that its sender knows the
// key under which the request was signed.
func prove(key []byte, request tag, fields ...string) string {
	t := mac(key, purposeAnswer, append([]string{string(request[:])}, fields...)...)
	return b64.EncodeToString(t[:])
}

// checkProof is the inverse of prove, on the side that signed the request.
func (s *Signer) checkProof(header string, request tag, fields ...string) error {
	got, err := b64.DecodeString(header)
	if err != nil || len(got) != tagBytes {
		return ErrImpostor
	}
	want := mac(s.keys[0], purposeAnswer, append([]string{string(request[:])}, fields...)...)
	if subtle.ConstantTimeCompare(got, want[:]) != 1 {
		return ErrImpostor
	}
	return nil
}

// authorization is the parsed value of an Authorization header.
type authorization struct {
	millis int64 // Unix time
	nonce  [nonceBytes]byte
	tag    tag
}

func (a authorization) String() string {
	return scheme + " t=" + strconv.FormatInt(a.millis, 10) + ",n=" + b64.EncodeToString(a.nonce[:]) +
		",s=" + b64.EncodeToString(a.tag[:])
}

func (a authorization) compute(key []byte, fields []string) tag {
	all := make([]string, 0, len(fields)+2)
	all = append(all, strconv.FormatInt(a.millis, 10), string(a.nonce[:]))
	return mac(key, purposeRequest, append(all, fields...)...)
}

// maxAuthorizationBytes is longer than any header that String writes.
const maxAuthorizationBytes = 160

// parseAuthorization is the strict inverse of authorization.String.
func parseAuthorization(h string) (authorization, error) {
	var a authorization
	if h == "" {
		return a, fmt.Errorf("%w (no signature)", ErrUnauthorized)
	}
	malformed := fmt.Errorf("%w (malformed signature)", ErrUnauthorized)
	rest, ok := strings.CutPrefix(h, scheme+" t=")
	if !ok || len(h) > maxAuthorizationBytes {
		return a, malformed
	}
	millis, rest, ok1 := strings.Cut(rest, ",n=")
	nonce, sig, ok2 := strings.Cut(rest, ",s=")
	if !ok1 || !ok2 {
		return a, malformed
	}
	t, err := strconv.ParseInt(millis, 10, 64)
	if err != nil || t < 0 {
		return a, malformed
	}
	a.millis = t
	if !decodeInto(a.nonce[:], nonce) || !decodeInto(a.tag[:], sig) || a.String() != h {
		return authorization{}, malformed
	}
	return a, nil
}

func decodeInto(to []byte, s string) bool {
	b, err := b64.DecodeString(s)
	return err == nil && copy(to, b) == len(b) && len(b) == len(to)
}

// Verifier checks signatures made by other members' Signers and remembers them,
// so that none counts twice. A nil Verifier accepts everything: for clusters
// without a secret. Safe for concurrent use.
type Verifier struct {
	signer *Signer
	seen   *nonces
}

// NewVerifier returns a Verifier over the keys of s, or nil when s is nil.
func NewVerifier(s *Signer) *Verifier {
	if s == nil {
		return nil
	}
	return &Verifier{signer: s, seen: newNonces(maxNonces)}
}

// verified is the outcome of a check: what the answer is bound to.
type verified struct {
	key []byte // under which the request was signed
	tag tag
}

// prove is nothing without a secret.
func (v verified) prove(fields ...string) string {
	if v.key == nil {
		return ""
	}
	return prove(v.key, v.tag, fields...)
}

// verify checks the header against fields. The outcome is valid also with ErrClock and
// ErrReplay, when the sender is known and only its time or its repetition is wrong.
func (v *Verifier) verify(header string, now time.Time, fields ...string) (verified, error) {
	if v == nil {
		return verified{}, nil
	}
	a, err := parseAuthorization(header)
	if err != nil {
		return verified{}, err
	}
	var out verified
	for _, k := range v.signer.keys {
		want := a.compute(k, fields)
		if subtle.ConstantTimeCompare(want[:], a.tag[:]) == 1 {
			out = verified{key: k, tag: a.tag}
			break
		}
	}
	if out.key == nil {
		return out, ErrUnauthorized
	}
	sent := time.UnixMilli(a.millis)
	if d := sent.Sub(now); d > ClockWindow || d < -ClockWindow {
		return out, fmt.Errorf("%w: by %v", ErrClock, d.Round(time.Second))
	}
	return out, v.seen.add(a.tag, sent, now)
}
