package fuse

import "time"

// How long answers hold.
const (
	// forever is how long what cannot change is kept: a year, well within the range
	// of the kernel's clock.
	forever = 365 * 24 * time.Hour
	// openModeAge is how old a listing, or the look-up of a name that is there, may be in
	// ModeOpen, where opens ask anew.
	openModeAge = time.Second
)

// maxAge is how old the answer to a look-up may be.
func (s *Session) maxAge() time.Duration {
	switch s.cfg.Consistency.Mode {
	case ModeOpen:
		return openModeAge
	case ModeImmutable:
		return forever
	}
	return s.cfg.Consistency.TTL
}

// maxAbsentAge is how old "there is none" may be. Also where nothing that is there
// changes, names are added. In ModeOpen it is asked anew: a name that is not there
// comes to no open that could ask.
func (s *Session) maxAbsentAge() time.Duration {
	switch s.cfg.Consistency.Mode {
	case ModeOpen:
		return 0
	case ModeImmutable:
		return s.cfg.Consistency.TTL
	}
	return s.maxAge()
}

// maxPageAge is how old a page of a listing may be that is asked for.
func (s *Session) maxPageAge() time.Duration {
	if s.cfg.Consistency.Mode == ModeImmutable {
		return s.cfg.Consistency.TTL
	}
	return s.maxAge()
}

// openAge is how old the version may be that an open finds; 0 asks anew.
func (s *Session) openAge() time.Duration {
	switch p := s.proveWithin(); {
	case s.cfg.Consistency.Mode == ModeOpen:
		return 0
	case p > 0:
		return min(p, s.maxAge())
	}
	return s.maxAge()
}

// proveWithin is how old the proof may be that an open needs; 0: it needs none.
func (s *Session) proveWithin() time.Duration {
	if s.cfg.Prove == nil {
		return 0
	}
	return max(0, s.cfg.Prove())
}

// left is how long an answer of the time at still holds; negative when not at all.
func left(at time.Time, maxAge time.Duration, now time.Time) time.Duration {
	if at.IsZero() {
		return -1
	}
	return maxAge - now.Sub(at)
}
