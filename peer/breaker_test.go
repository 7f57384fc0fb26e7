package peer

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"
)

func TestBreaker(t *testing.T) {
	var stats Stats
	b := newBreakers(BreakerConfig{}, &stats, rand.New(rand.NewPCG(1, 1)))
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	ask := func(want bool) {
		t.Helper()
		if got := b.allow("a", now); got != want {
			t.Errorf("allowed %v, want %v", got, want)
		}
	}
	ask(true)
	b.failed("a", now, false)
	ask(true) // once is no pattern
	b.succeeded("a")
	ask(true)
	b.failed("a", now, false)
	b.failed("a", now, false)
	ask(false)
	if !b.isOpen("a", now) || b.isOpen("b", now) {
		t.Error("a is open and b is not")
	}
	b.failed("a", now, false) // a request from before it opened
	backoff := 500 * time.Millisecond
	for range 10 { // each failed probe doubles the wait
		now = now.Add(backoff / 2).Add(-time.Millisecond)
		ask(false)
		now = now.Add(backoff/2 + time.Millisecond)
		ask(true)
		ask(false) // one probe at a time
		b.failed("a", now, false)
		backoff = min(2*backoff, 30*time.Second)
	}
	now = now.Add(backoff)
	ask(true)
	b.abandoned("a") // the probe told nothing
	ask(true)
	b.succeeded("a")
	ask(true)
	ask(true)
	b.failed("a", now, true)
	ask(false)
	if n := stats.BreakerOpens.Load(); n != 12 {
		t.Errorf("opened %d times", n)
	}
}

// Four damaged blocks within ten seconds open the breaker, whatever arrives well between.
func TestBreakerCountsDamage(t *testing.T) {
	var stats Stats
	b := newBreakers(BreakerConfig{}, &stats, nil)
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	for range 20 { // now and then
		now = now.Add(4 * time.Second)
		b.sentDamage("a", now)
		b.succeeded("a")
	}
	if b.isOpen("a", now) {
		t.Error("set aside for a damaged block every four seconds")
	}
	now = now.Add(time.Minute)
	for i := range 4 {
		if b.isOpen("a", now) {
			t.Errorf("set aside after %d blocks", i)
		}
		now = now.Add(3 * time.Second)
		b.sentDamage("a", now)
		b.succeeded("b")
		if i < 3 {
			b.succeeded("a")
		}
	}
	if !b.isOpen("a", now) || stats.BreakerOpens.Load() != 1 {
		t.Error("not set aside after the fourth")
	}
	now = now.Add(time.Second)
	if !b.allow("a", now) {
		t.Fatal("not probed")
	}
	b.sentDamage("a", now) // the probe shows damage
	if !b.allow("a", now) {
		t.Error("not probed again")
	}
	b.succeeded("a")
	if b.isOpen("a", now) {
		t.Error("still set aside after a good probe")
	}
}

func TestBreakersAreBounded(t *testing.T) {
	b := newBreakers(BreakerConfig{}, new(Stats), nil)
	now := time.Now()
	for i := range maxBreakers + 100 {
		b.failed(fmt.Sprint(i), now, true)
	}
	if n := len(b.members); n > maxBreakers {
		t.Errorf("%d members are remembered", n)
	}
}
