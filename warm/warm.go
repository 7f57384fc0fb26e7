// Package warm is what a warm-up consists of before anything is fetched: which names
// a user means ([ParseSource]), which objects these are ([Manifest]), who is to bring
// and hold which of them ([Assign]), and how far the work is ([Record]).
//
// It is pure: no I/O and no clock. It promises that templates are expanded as shells
// do it, that a million objects take tens of megabytes, and that records of one job which
// were written at several nodes merge to one, whatever the order ([Merge]). Listing, fetching,
// checking, and where records are kept are left to internal/node; commands to cmd.
package warm

import "fmt"

// Limits of one warm-up.
const (
	MaxObjects   = 16 << 20  // about 600 MB of memory at the node that runs it
	MaxSources   = 1024      // arguments
	MaxGlobs     = 1024      // patterns with * ? [ that templates expand to; each is a listing
	MaxListBytes = 64 << 20  // of a list of names, compressed: some ten million
	maxLineBytes = 8 << 10   // of a list
	maxNesting   = 16        // braces within braces
	maxSpanCount = 100 << 20 // of one {A..B}

	shownLineBytes = 120 // of a line that is no URI
)

// A UsageError says what is wrong with what the user wrote.
type UsageError struct{ text string }

func (e *UsageError) Error() string { return e.text }

func usagef(format string, args ...any) error { return &UsageError{fmt.Sprintf(format, args...)} }
