package control

import (
	"context"
	"crypto/tls"
	"errors"
	"net"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/shardwell/shardwell/internal/config"
	"github.com/shardwell/shardwell/internal/control/controlpb"
	"github.com/shardwell/shardwell/objstore"
)

// ErrUsage says that what the caller asked for makes no sense as it was
// written: an option that does not exist, a URI that is none.
var ErrUsage = errors.New("bad usage")

// ErrUnreachable says that the origin cannot be talked to: its name is not known, nothing
// listens, or its certificate is not trusted.
var ErrUnreachable = errors.New("origin cannot be reached")

// classes are the errors that keep their meaning across the socket. Their
// names are on the wire; the first that fits is taken.
var classes = [...]struct {
	name string
	err  error
	code codes.Code
}{
	{"refused", ErrRefused, codes.PermissionDenied},
	{"usage", ErrUsage, codes.InvalidArgument},
	{"no_bucket", objstore.ErrNoBucket, codes.NotFound},
	{"not_exist", objstore.ErrNotExist, codes.NotFound},
	{"permission", objstore.ErrPermission, codes.PermissionDenied},
	{"credentials", objstore.ErrCredentials, codes.Unauthenticated},
	{"changed", objstore.ErrChanged, codes.Aborted},
	{"throttled", objstore.ErrThrottled, codes.ResourceExhausted},
	{"unavailable", objstore.ErrUnavailable, codes.Unavailable},
	{"clock_skew", objstore.ErrClockSkew, codes.FailedPrecondition},
	{"invalid", objstore.ErrInvalid, codes.InvalidArgument},
	{"unreachable", ErrUnreachable, codes.Unavailable},
	{"canceled", context.Canceled, codes.Canceled},
	{"deadline", context.DeadlineExceeded, codes.DeadlineExceeded},
}

// Classify returns the error of the table above that err is one of, by errors.Is
// or because it comes from the network on the way to the origin; nil for none.
func Classify(err error) error {
	if i := classOf(err); i >= 0 {
		return classes[i].err
	}
	return nil
}

// classOf returns an index into classes, or -1.
func classOf(err error) int {
	var dns *net.DNSError
	var dial *net.OpError
	var cert *tls.CertificateVerificationError
	var notTLS tls.RecordHeaderError
	for i, c := range classes {
		switch {
		case errors.Is(err, c.err):
			return i
		case c.err != ErrUnreachable:
		case errors.As(err, &dns), errors.As(err, &dial) && dial.Op == "dial", errors.As(err, &cert), errors.As(err, &notTLS):
			return i
		}
	}
	return -1
}

// toWire is the one place where errors of a node become those of gRPC.
func toWire(err error) error {
	if err == nil {
		return nil
	}
	var usage *config.Error
	if errors.As(err, &usage) {
		err = &classed{text: err.Error(), class: ErrUsage}
	}
	if i := classOf(err); i >= 0 {
		c := classes[i]
		st, detailErr := status.New(c.code, err.Error()).WithDetails(&controlpb.Failure{Class: c.name})
		if detailErr != nil { // the detail cannot be encoded: its text still helps
			return status.Error(c.code, err.Error())
		}
		return st.Err()
	}
	return status.Error(codes.Unknown, err.Error())
}

// fromWire is the inverse of toWire: the same text, and a class to be found
// with errors.Is.
func fromWire(err error) error {
	st, ok := status.FromError(err)
	if err == nil || !ok {
		return err
	}
	for _, d := range st.Details() {
		f, ok := d.(*controlpb.Failure)
		if !ok {
			continue
		}
		for _, c := range classes {
			if c.name == f.GetClass() {
				return &classed{text: st.Message(), class: c.err}
			}
		}
	}
	switch st.Code() { // made by gRPC itself
	case codes.Canceled:
		return &classed{text: "canceled", class: context.Canceled}
	case codes.DeadlineExceeded:
		return &classed{text: "the node did not answer in time", class: context.DeadlineExceeded}
	case codes.Unavailable:
		return &classed{text: "the node went away: " + st.Message(), class: ErrNoNode}
	case codes.Unimplemented:
		return errors.New("the node is of another version and does not know this command")
	}
	return errors.New(st.Message())
}

// classed is an error that came over the socket.
type classed struct {
	text  string
	class error
}

func (e *classed) Error() string { return e.text }
func (e *classed) Unwrap() error { return e.class }
