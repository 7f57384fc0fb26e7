package node

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/shardwell/shardwell/internal/chunk"
	"github.com/shardwell/shardwell/objstore/s3"
)

// Bounds of the identities that a node has credentials of.
const (
	maxIdentities = 2 * maxMounts
	// keepIdentity is for how long credentials stay that no mount has any more: fetches may be
	// under way on its behalf, and a Pod that comes again finds its connections.
	keepIdentity = 10 * time.Minute
)

// identities are the credentials, beside its own, on whose behalf a node asks origins. What
// names them is a keyed hash: nobody can work back from it, and who does not know a secret
// key does not get its identity, and what that one was allowed, by naming the access key alone.
type identities struct {
	mu  sync.Mutex
	key []byte
	all map[chunk.Identity]*holder
}

// holder are the credentials of one identity. All but id is under identities.mu.
type holder struct {
	id     chunk.Identity
	creds  s3.Credentials
	proven [sha256.Size]byte // of the token that an STS took last
	users  int
	idle   time.Time // since when there are none
}

func newIdentities() *identities {
	// Of a cluster without a secret the names are equal on all nodes as well.
	return &identities{key: []byte("shardwell identity"), all: make(map[chunk.Identity]*holder)}
}

// setKey has the names depend on the cluster's secret. It comes before the first name is made.
func (is *identities) setKey(secret []byte) {
	is.mu.Lock()
	defer is.mu.Unlock()
	mac := hmac.New(sha256.New, secret)
	mac.Write([]byte("shardwell identity v1"))
	is.key = mac.Sum(nil)
}

// name returns the identity that stands for a list of texts.
func (is *identities) name(texts ...string) chunk.Identity {
	is.mu.Lock()
	mac := hmac.New(sha256.New, is.key)
	is.mu.Unlock()
	var n [4]byte
	for _, t := range texts {
		binary.LittleEndian.PutUint32(n[:], uint32(len(t)))
		mac.Write(n[:])
		mac.Write([]byte(t))
	}
	return chunk.Identity(texts[0] + "-" + hex.EncodeToString(mac.Sum(nil)[:16]))
}

// ofKeys names the holder of keys.
func (is *identities) ofKeys(c s3.Credentials) chunk.Identity {
	if c.Source == s3.SourceAnonymous {
		return chunk.Anonymous
	}
	return is.name("keys", c.AccessKey, c.SecretKey, c.SessionToken)
}

// ofToken names whom a web identity token is for: the role, and the issuer and subject that
// it states, so that all of a service account's tokens are one identity. The caller makes
// sure that the STS believes the token before anybody is taken for who it states.
func (is *identities) ofToken(c s3.Credentials, token string) chunk.Identity {
	issuer, subject, ok := claimsOf(token)
	if !ok {
		return is.name("token", c.STSEndpoint, c.RoleARN, token)
	}
	return is.name("web", c.STSEndpoint, c.RoleARN, issuer, subject)
}

// claimsOf returns what a web identity token states of whom it is for. One that states it twice, by the same name
// or one that differs in its case only, may mean another to the STS than here: it counts as opaque.
func claimsOf(token string) (issuer, subject string, ok bool) {
	parts := strings.Split(token, ".")
	if len(parts) != 3 {
		return "", "", false
	}
	body, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil || !json.Valid(body) {
		return "", "", false
	}
	d := json.NewDecoder(bytes.NewReader(body))
	if open, err := d.Token(); err != nil || open != json.Delim('{') {
		return "", "", false
	}
	seen := make(map[string]bool)
	for d.More() {
		name, _ := d.Token() // the text is valid: a name, and then a value
		var value json.RawMessage
		if err := d.Decode(&value); err != nil {
			return "", "", false
		}
		claim, _ := name.(string)
		into := map[string]*string{"iss": &issuer, "sub": &subject}[strings.ToLower(claim)]
		if into == nil {
			continue
		}
		if claim != strings.ToLower(claim) || seen[claim] || json.Unmarshal(value, into) != nil {
			return "", "", false
		}
		seen[claim] = true
	}
	return issuer, subject, issuer != "" && subject != ""
}

// acquire adds a user of credentials, to whom token is the newest that an STS took. dropped
// are identities that had to make room or were not used for long.
func (is *identities) acquire(id chunk.Identity, c s3.Credentials, token string) (h *holder, dropped []chunk.Identity, err error) {
	is.mu.Lock()
	defer is.mu.Unlock()
	h = is.all[id]
	if h == nil {
		if dropped = is.makeRoom(time.Now()); len(is.all) >= maxIdentities {
			return nil, dropped, fmt.Errorf("%d identities are in use, the most a node has: unmount what you can spare", maxIdentities)
		}
		h = &holder{id: id, creds: c}
		is.all[id] = h
	}
	if token != "" {
		if h.creds.Token != nil {
			h.creds.Token.Set(token)
		}
		h.proven = sha256.Sum256([]byte(token))
	}
	h.users++
	return h, dropped, nil
}

// again adds a user of h.
func (is *identities) again(h *holder) *holder {
	is.mu.Lock()
	defer is.mu.Unlock()
	h.users++
	return h
}

func (is *identities) release(h *holder) {
	is.mu.Lock()
	defer is.mu.Unlock()
	if h.users--; h.users == 0 {
		h.idle = time.Now()
	}
}

// makeRoom drops what has not been used for long, and more when there are too many. Callers hold mu.
func (is *identities) makeRoom(now time.Time) (dropped []chunk.Identity) {
	var oldest *holder
	for id, h := range is.all {
		switch {
		case h.users > 0:
		case now.Sub(h.idle) > keepIdentity:
			delete(is.all, id)
			dropped = append(dropped, id)
		case oldest == nil || h.idle.Before(oldest.idle):
			oldest = h
		}
	}
	if len(is.all) >= maxIdentities && oldest != nil {
		delete(is.all, oldest.id)
		dropped = append(dropped, oldest.id)
	}
	return dropped
}

// credentials returns those of an identity, if this node has them.
func (is *identities) credentials(id chunk.Identity) (s3.Credentials, bool) {
	if id == chunk.Anonymous {
		return s3.Credentials{Source: s3.SourceAnonymous}, true
	}
	is.mu.Lock()
	defer is.mu.Unlock()
	h := is.all[id]
	if h == nil {
		return s3.Credentials{}, false
	}
	return h.creds, true
}

// believes reports whether an STS took this very token of an identity already.
func (is *identities) believes(id chunk.Identity, token string) bool {
	is.mu.Lock()
	defer is.mu.Unlock()
	h := is.all[id]
	return h != nil && h.proven == sha256.Sum256([]byte(token))
}
