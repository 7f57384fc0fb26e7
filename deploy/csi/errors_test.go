package csi

import (
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// TestEventsAreCountedTogether tells the kubelet the same of two attempts that failed alike.
func TestEventsAreCountedTogether(t *testing.T) {
	var said []string
	for _, id := range []string{"AJNN66N8EQ094JSV", "PN5TTRMLYBYC1DKX"} {
		err := withoutRequest(status.Error(codes.NotFound, "no such bucket: list s3://nope/: status 404 NoSuchBucket: It does not exist. (request "+id+"): more"))
		if status.Code(err) != codes.NotFound {
			t.Errorf("code is %v", status.Code(err))
		}
		said = append(said, status.Convert(err).Message())
	}
	if want := "no such bucket: list s3://nope/: status 404 NoSuchBucket: It does not exist.: more"; said[0] != want || said[1] != want {
		t.Errorf("said %q", said)
	}
	if withoutRequest(nil) != nil {
		t.Error("made an error of none")
	}
}
