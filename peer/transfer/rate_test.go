package transfer

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

// What a node sends stays below its rate, and its askers hear that it lives.
func TestUploadRate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := NewServer(ServerConfig{Geometry: small, MaxSentBytesPerSecond: 4 * small.BlockBytes})
		begin := time.Now()
		for range 9 {
			if err := s.rate.WaitN(context.Background(), int(small.BlockBytes)); err != nil {
				t.Fatal(err)
			}
		}
		if took := time.Since(begin); took != 2*time.Second {
			t.Errorf("nine blocks at four a second took %v", took)
		}
	})
}
