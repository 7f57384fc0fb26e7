// Package control is how commands reach the node on their machine: gRPC over a
// unix socket whose other end is known by its user and group.
//
// It promises that what a caller may do is decided in one pure function
// ([Authorize]) before the node hears of it, that errors keep their class on the
// way ([github.com/shardwell/shardwell/objstore]), and that the document of
// `shardwell status --json` is [Status]. What a mount is, and what is counted, is
// left to the [Node]. It is a part.
package control

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"time"
)

// Node is what the socket gives access to. Methods are safe for concurrent use
// and return promptly when ctx ends. Errors are in words meant for the user, in one line.
type Node interface {
	// Mount mounts a URI on a directory and returns when it can be read. The
	// same on the same directory again is no error, and renews the credentials.
	Mount(ctx context.Context, req MountRequest) (MountReply, error)
	// Umount ends the mount on a directory.
	Umount(ctx context.Context, dir string) error
	// Release takes the mount away from a directory whoever uses it; what is open
	// there stays readable. That nothing is mounted there is no error.
	Release(ctx context.Context, dir string) error
	// Usage tells how much of what is mounted on a directory is known and held here.
	Usage(ctx context.Context, dir string) (Usage, error)
	// Status describes the node and what it knows of the cluster.
	Status(ctx context.Context) (Status, error)
	// Refresh makes the cluster forget names and versions under a URI, and
	// returns how many it knew.
	Refresh(ctx context.Context, uri string) (int, error)
	// List calls yield for each object or prefix under a URI, one level deep.
	// An error of yield ends it and is returned.
	List(ctx context.Context, req ListRequest, yield func(Entry) error) error
	// Read calls begin with what it is going to read, and write with its bytes, in
	// order: one version of one object, checked. An error of either ends it and is
	// returned. What write is given is only lent.
	Read(ctx context.Context, req ReadRequest, begin func(Entry) error, write func([]byte) error) error
	// Pin protects what lies under a URI in all caches of the cluster for ttl, and returns
	// how much that is; an error tells the figure when it cannot fit. A ttl of 0 takes
	// the pin back.
	Pin(ctx context.Context, uri string, ttl time.Duration) (objects, bytes int64, err error)
	// Drain hands on what the node owns and ends it. It calls tell now and then; an
	// error of tell ends it and is returned.
	Drain(ctx context.Context, tell func(DrainProgress) error) error
}

// DrainProgress is how far a drain is, in bytes.
type DrainProgress struct {
	DoneBytes, TotalBytes int64
	FailedBytes           int64 // that no owner took: the origin has them
}

// MountRequest asks for a mount.
type MountRequest struct {
	URI     string
	Dir     string            // absolute, clean path
	Options map[string]string // as config.Config.WithAttributes takes them
	Caller  Caller            // who asks; filled in by the server
	// Credentials are whose the requests are; the zero value means those that Options name,
	// or else the node's own.
	Credentials Credentials
}

// Credentials are those of a caller who does not ask with the node's own: keys, or a token
// that is exchanged for keys at an STS. A mount that is asked for again with other ones has
// those from then on; its readers notice nothing.
type Credentials struct {
	AccessKey, SecretKey, SessionToken string // secrets

	WebIdentityToken string // a secret, such as the token of a Kubernetes service account
	RoleARN          string // the role that the token stands for
	STSEndpoint      string // URL that exchanges it; "": AWS's in the region
}

// Given reports whether there are any.
func (c Credentials) Given() bool { return c != Credentials{} }

// String tells the kind and nothing of the secrets.
func (c Credentials) String() string {
	switch {
	case c.WebIdentityToken != "":
		return "a web identity"
	case c.Given():
		return "keys"
	}
	return "none"
}

// Format prints what String does, whatever the verb.
func (c Credentials) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, c.String()) }

// LogValue makes slog print what String does.
func (c Credentials) LogValue() slog.Value { return slog.StringValue(c.String()) }

// MountReply describes a mount.
type MountReply struct {
	Source   string // what is mounted, in full
	Existing bool   // the same was mounted there already
}

// Usage is how much a mount shows, as far as it was listed, and how much of that this node holds.
type Usage struct {
	Objects    int64
	Bytes      int64
	LocalBytes int64
}

// ListRequest asks for a listing.
type ListRequest struct {
	URI     string
	Options map[string]string // as config.Config.WithAttributes takes them
	Caller  Caller            // who asks; filled in by the server
	// Credentials are whose the requests are; the zero value means those that Options name,
	// or else the node's own.
	Credentials Credentials
	Members     bool // list the members of a tar, if the URI names one
}

// ReadRequest asks for the bytes of an object.
type ReadRequest struct {
	URI     string
	Name    string            // relative to the URI, as an Entry has it; "": the URI is the object
	Options map[string]string // as config.Config.WithAttributes takes them
	Caller  Caller            // who asks; filled in by the server
	// Credentials are whose the requests are; the zero value means those that Options name,
	// or else the node's own.
	Credentials Credentials
}

// Entry is an object, or a prefix under which there are more.
type Entry struct {
	Name    string // relative to the URI; a prefix ends with "/"
	Size    int64  // bytes
	ModTime time.Time
	ETag    string
	LeftOut string // of a member of a tar that cannot be read by itself: why; "" for all else
}

// Caller is who is at the other end of the socket.
type Caller struct {
	UID, GID uint32
	PID      int32
}

// Version is what answers at the other end.
type Version struct {
	Version string
	PID     int
}
