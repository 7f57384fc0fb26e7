package node

import (
	"testing"
	"time"
)

func TestBroadcasts(t *testing.T) {
	got := broadcasts([][]role{
		{{ID: "1", URI: "s3://b/a", Size: 100, Here: 100, Received: 100, Origin: 100, Sent: 100, Took: 10 * time.Second},
			{ID: "2", URI: "s3://b/alone", Size: 100, Here: 50, Received: 50, Origin: 50}},
		{{ID: "1", URI: "s3://b/a", Size: 100, Here: 40, Received: 40, Sent: 20, Took: 10 * time.Second},
			{ID: "3", URI: "s3://b/over", Size: 100, Here: 100, Received: 100, Sent: 100, Idle: time.Minute}},
		{{ID: "1", URI: "s3://b/a", Size: 100},
			{ID: "3", URI: "s3://b/over", Size: 100, Here: 100, Received: 100, Idle: time.Minute}},
	})
	if len(got) != 1 {
		t.Fatalf("%+v", got)
	}
	b := got[0]
	if b.Object != "s3://b/a" || b.NodesDone != 1 || b.NodesReceiving != 1 || b.BytesPerSecond != 14 || b.OriginCopies != 1 ||
		b.MaxOverMeanSent != 100.0*2/120 {
		t.Errorf("%+v", b)
	}
}
