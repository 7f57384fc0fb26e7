package node

import (
	"testing"
	"testing/synctest"
	"time"
)

// What a short walk found is not told for long, what a long one found is.
func TestUsageAgesWithTheWalk(t *testing.T) {
	for took, age := range map[time.Duration]time.Duration{
		0:                      time.Second,
		10 * time.Millisecond:  time.Second,
		500 * time.Millisecond: 10 * time.Second,
		time.Minute:            20 * time.Minute,
	} {
		synctest.Test(t, func(t *testing.T) {
			var u usage
			if u.fresh() {
				t.Error("something is known before the first walk")
			}
			u.at, u.took = time.Now(), took
			time.Sleep(age - 1)
			if !u.fresh() {
				t.Errorf("a walk of %v is made again before %v", took, age)
			}
			time.Sleep(time.Nanosecond)
			if u.fresh() {
				t.Errorf("what a walk of %v found is told after %v", took, age)
			}
		})
	}
}
