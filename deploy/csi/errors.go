package csi

import (
	"context"
	"errors"
	"fmt"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/shardwell/shardwell/internal/config"
	"github.com/shardwell/shardwell/internal/control"
	"github.com/shardwell/shardwell/objstore"
)

// refusal is an error of the driver's own with the code that the kubelet is to see.
type refusal struct {
	code codes.Code
	text string
}

func (r *refusal) Error() string { return r.text }

func refused(code codes.Code, format string, args ...any) error {
	return &refusal{code, fmt.Sprintf(format, args...)}
}

// codeOf are the codes of the classes of errors, the first that fits. Texts become
// events of a Pod, so each says what a person can do.
var codeOf = [...]struct {
	class error
	code  codes.Code
	hint  string // put before the text
}{
	{control.ErrNoNode, codes.Unavailable, "the Shardwell daemon of this node is not running or not ready yet (kubectl get pods -o wide shows where it is): "},
	{control.ErrRefused, codes.FailedPrecondition, ""},
	{control.ErrUsage, codes.InvalidArgument, ""},
	{objstore.ErrNoBucket, codes.NotFound, "no such bucket: "},
	{objstore.ErrNotExist, codes.NotFound, ""},
	{objstore.ErrPermission, codes.PermissionDenied, "access denied: "},
	{objstore.ErrCredentials, codes.Unauthenticated, "no valid credentials: "},
	{objstore.ErrThrottled, codes.Unavailable, ""},
	{objstore.ErrUnavailable, codes.Unavailable, ""},
	{objstore.ErrClockSkew, codes.FailedPrecondition, ""},
	{objstore.ErrInvalid, codes.InvalidArgument, ""},
	{control.ErrUnreachable, codes.Unavailable, ""},
	{context.Canceled, codes.Canceled, ""},
	{context.DeadlineExceeded, codes.DeadlineExceeded, ""},
}

// toStatus is the one place where errors become those of gRPC.
func toStatus(err error) error {
	var r *refusal
	var usage *config.Error
	switch {
	case err == nil:
		return nil
	case errors.As(err, &r):
		return status.Error(r.code, r.text)
	case errors.As(err, &usage):
		return status.Error(codes.InvalidArgument, usage.Error())
	}
	for _, c := range codeOf {
		if errors.Is(err, c.class) {
			return status.Error(c.code, c.hint+err.Error())
		}
	}
	return status.Error(codes.Internal, err.Error())
}

// transient is toStatus for a volume that is published: a code that the kubelet takes
// for a verdict would have it give up a mount that works.
func transient(err error) error {
	err = toStatus(err)
	switch status.Code(err) {
	case codes.OK, codes.Canceled, codes.DeadlineExceeded, codes.Unavailable, codes.Aborted, codes.ResourceExhausted:
		return err
	}
	return status.Error(codes.Unavailable, status.Convert(err).Message())
}
