package transfer

import (
	"errors"
	"net/http"
	"time"

	"github.com/shardwell/shardwell/internal/chunk"
	"github.com/shardwell/shardwell/objstore"
)

// Errors that say something about the peer rather than the object.
var (
	// ErrBusy says that the peer has as many streams as it allows itself.
	ErrBusy = errors.New("peer is busy")
	// ErrUnreachable says that there was no connection, or it broke.
	ErrUnreachable = errors.New("peer cannot be reached")
	// ErrSlow says that no sign of life or no block came in time.
	ErrSlow = errors.New("peer is too slow")
	// ErrWaited says that a peer is at work, and that its first block took too long.
	ErrWaited = errors.New("peer is still waiting for the blocks itself")
	// ErrRemote says that the peer failed for a reason that has no class.
	ErrRemote = errors.New("peer failed")
	// ErrMisdirected says that another member answers at that address by now.
	ErrMisdirected = errors.New("another member has this address")
)

// classes is how an error with a class travels. The order decides when several
// match. Names are part of the protocol.
var classes = [...]struct {
	name   string
	err    error
	status int
}{
	{"not-held", chunk.ErrNotHeld, http.StatusNotFound},
	{"no-route", chunk.ErrNoRoute, http.StatusServiceUnavailable},
	{"not-exist", objstore.ErrNotExist, http.StatusNotFound},
	{"no-bucket", objstore.ErrNoBucket, http.StatusNotFound},
	{"permission", objstore.ErrPermission, http.StatusForbidden},
	{"credentials", objstore.ErrCredentials, http.StatusForbidden},
	{"changed", objstore.ErrChanged, http.StatusConflict},
	{"throttled", objstore.ErrThrottled, http.StatusTooManyRequests},
	{"unavailable", objstore.ErrUnavailable, http.StatusGatewayTimeout},
	{"origin-clock", objstore.ErrClockSkew, http.StatusBadGateway},
	{"invalid", objstore.ErrInvalid, http.StatusBadRequest},
	{"busy", ErrBusy, http.StatusServiceUnavailable},
	{"clock", ErrClock, http.StatusUnauthorized},
	{"replay", ErrReplay, http.StatusUnauthorized},
	{"misdirected", ErrMisdirected, http.StatusUnauthorized},
	{"unauthorized", ErrUnauthorized, http.StatusUnauthorized},
}

// classFailed is for errors without a class.
const classFailed = "failed"

// ClassOf returns the name and HTTP status under which err crosses the wire.
func ClassOf(err error) (name string, status int) {
	for _, c := range classes {
		if errors.Is(err, c.err) {
			return c.name, c.status
		}
	}
	return classFailed, http.StatusBadGateway
}

// ErrorOfClass is the inverse of [ClassOf]; a name that this version does not know
// counts as no class.
func ErrorOfClass(name string) error {
	for _, c := range classes {
		if c.name == name {
			return c.err
		}
	}
	return ErrRemote
}

// RemoteError is what a peer answered instead of blocks.
type RemoteError struct {
	Peer    string // ring id
	Class   error  // what errors.Is finds
	Message string // the peer's own words, cut to a line

	RetryAfter time.Duration // with ErrBusy: when to ask again
}

func (e *RemoteError) Error() string {
	s := "peer " + e.Peer + ": " + e.Class.Error()
	if e.Message != "" && e.Message != e.Class.Error() {
		s += ": " + e.Message
	}
	return s
}

// Unwrap returns the class.
func (e *RemoteError) Unwrap() error { return e.Class }

// RedirectError is a peer's answer that another member is to be asked. The name
// is not yet known to be one.
type RedirectError struct {
	Peer   string // who said so
	Member string // ring id of the one to ask
	Lags   bool   // the asker is far behind others who fill the object: nobody should wait for it
}

func (e *RedirectError) Error() string { return "peer " + e.Peer + " names member " + e.Member }

// DeliverError is an error of the receiver's own Deliver, which says nothing
// about the peer.
type DeliverError struct{ Err error }

func (e *DeliverError) Error() string { return e.Err.Error() }

// Unwrap returns the receiver's error.
func (e *DeliverError) Unwrap() error { return e.Err }
