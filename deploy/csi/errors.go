package csi

import (
	"context"
	"errors"
	"fmt"
	"regexp"

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

// codeOf are the codes of the classes of errors, the first that fits. Texts become events of a Pod: they tell what
// is wrong, and hint at what a person can do where they do not say it themselves.
var codeOf = [...]struct {
	class error
	code  codes.Code
	hint  string
}{
	{control.ErrNoNode, codes.Unavailable, "the Shardwell daemon of this node does not answer, is its Pod running?"},
	{control.ErrRefused, codes.FailedPrecondition, ""},
	{control.ErrUsage, codes.InvalidArgument, ""},
	{objstore.ErrNoBucket, codes.NotFound, "check bucketName and endpoint"},
	{objstore.ErrNotExist, codes.NotFound, ""},
	{objstore.ErrPermission, codes.PermissionDenied, "check what the credentials of the volume may read, and whose they are (authenticationSource)"},
	{objstore.ErrCredentials, codes.Unauthenticated, "the volume has no valid credentials: check the keys in its Secret, or what authenticationSource names"},
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
			text := err.Error()
			if c.hint != "" {
				text += ": " + c.hint
			}
			return status.Error(c.code, text)
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

// requestID is the name that an origin gave one request.
var requestID = regexp.MustCompile(` ?\(request [^() ]+\)`)

// withoutRequest drops the names of requests from what the kubelet is told: they differ with
// each attempt, and events are counted as one only if their texts are the same. The log has them.
func withoutRequest(err error) error {
	if err == nil {
		return nil
	}
	s := status.Convert(err)
	return status.Error(s.Code(), requestID.ReplaceAllString(s.Message(), ""))
}
