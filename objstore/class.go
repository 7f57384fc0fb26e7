package objstore

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Class is the kind of an outcome, for counters and for translation at borders.
type Class uint8

// The classes of outcomes. Those between OK and Canceled are the errors of this package.
const (
	ClassOK Class = iota
	ClassNotExist
	ClassNoBucket
	ClassPermission
	ClassCredentials
	ClassChanged
	ClassThrottled
	ClassClockSkew
	ClassInvalid
	ClassCanceled  // the caller's context ended
	ClassTransient // everything else
	NumClasses     // how many there are
)

var classes = [NumClasses]struct {
	name string
	err  error
}{
	ClassOK:          {"ok", nil},
	ClassNotExist:    {"not_exist", ErrNotExist},
	ClassNoBucket:    {"no_bucket", ErrNoBucket},
	ClassPermission:  {"permission", ErrPermission},
	ClassCredentials: {"credentials", ErrCredentials},
	ClassChanged:     {"changed", ErrChanged},
	ClassThrottled:   {"throttled", ErrThrottled},
	ClassClockSkew:   {"clock_skew", ErrClockSkew},
	ClassInvalid:     {"invalid", ErrInvalid},
	ClassCanceled:    {"canceled", nil},
	ClassTransient:   {"transient", nil},
}

// String returns the class as a metric label: "ok", "not_exist", "throttled".
func (c Class) String() string {
	if c >= NumClasses {
		return "unknown"
	}
	return classes[c].name
}

// ClassOf returns the class of err; nil is [ClassOK].
func ClassOf(err error) Class {
	if err == nil {
		return ClassOK
	}
	for c := ClassNotExist; c < ClassCanceled; c++ {
		if errors.Is(err, classes[c].err) {
			return c
		}
	}
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return ClassCanceled
	}
	return ClassTransient
}

// Throttled is an error of class [ErrThrottled] that carries how long the
// origin wants to be left alone.
type Throttled struct {
	After time.Duration // 0 when the origin did not say
	Err   error         // what the origin said
}

// Error implements error.
func (t *Throttled) Error() string {
	if t.After > 0 {
		return fmt.Sprintf("%v for %v: %v", ErrThrottled, t.After, t.Err)
	}
	return fmt.Sprintf("%v: %v", ErrThrottled, t.Err)
}

// Unwrap makes t match ErrThrottled and its cause.
func (t *Throttled) Unwrap() []error { return []error{ErrThrottled, t.Err} }
