package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"

	"github.com/shardwell/shardwell/internal/config"
	"github.com/shardwell/shardwell/internal/control"
	"github.com/shardwell/shardwell/objstore"
)

// Exit codes.
const (
	exitDone        = 0
	exitFailed      = 1
	exitUsage       = 2
	exitPartly      = 3
	exitInterrupted = 130 // 128 + SIGINT, as shells have it
)

// usageError is a command line that makes no sense.
type usageError struct{ text string }

func (e usageError) Error() string { return e.text }

func usagef(format string, args ...any) error { return usageError{fmt.Sprintf(format, args...)} }

// partly is work of which some is done.
type partly struct{ error }

// stopSignal is the cause of a context that a signal ended.
type stopSignal struct{ os.Signal }

func (s stopSignal) Error() string { return s.String() }

// Is makes the cause of an end look like the end itself.
func (s stopSignal) Is(target error) bool { return target == context.Canceled }

// exitCode returns the code that tells what err was.
func exitCode(ctx context.Context, err error) int {
	var usage usageError
	var cfg *config.Error
	var some partly
	switch {
	case err == nil:
		return exitDone
	case errors.As(err, &usage), errors.As(err, &cfg), errors.Is(err, control.ErrUsage):
		return exitUsage
	case ctx.Err() != nil && errors.Is(err, context.Canceled):
		return exitInterrupted
	case errors.As(err, &some):
		return exitPartly
	}
	return exitFailed
}

// advice is what a user can do about a class of errors.
var advice = [...]struct {
	class error
	do    string
}{
	{objstore.ErrNoBucket, "check the bucket's name, and --endpoint and --region"},
	{objstore.ErrPermission, "these credentials may not read it: give others, or allow s3:ListBucket and s3:GetObject"},
	{objstore.ErrCredentials, "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or give --credentials-file or --anonymous"},
	{objstore.ErrClockSkew, "set the clock of this machine"},
	{objstore.ErrNotExist, "look with `shardwell ls` at the part before it"},
	{objstore.ErrThrottled, "try again later, or lower --max-origin-rate"},
	{control.ErrUnreachable, "check --endpoint, --proxy and --ca-file, and that the origin is up"},
	{control.ErrNoNode, "start one with `shardwell node`, or name its --control-socket"},
}

// explain adds to an error what to do about it, unless it says so itself.
func explain(err error) string {
	text := err.Error()
	var usage usageError
	var cfg *config.Error
	if errors.As(err, &usage) || errors.As(err, &cfg) {
		return text
	}
	if strings.HasSuffix(text, syscall.EADDRINUSE.Error()) { // of the gossip library, which keeps the text only
		return text + ": choose another --bind"
	}
	if strings.Contains(text, "origin directory") && errors.Is(err, objstore.ErrNoBucket) {
		return text + ": check the path, and that it is mounted on this machine"
	}
	class := control.Classify(err)
	for _, a := range advice {
		if (errors.Is(err, a.class) || class == a.class) && !strings.Contains(text, a.do) {
			return text + ": " + a.do
		}
	}
	return text
}

// oneLine makes one line of a text that may come from elsewhere, without
// control characters that a terminal would obey.
func oneLine(s string) string {
	s = strings.Join(strings.Fields(s), " ")
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return '?'
		}
		return r
	}, s)
}
