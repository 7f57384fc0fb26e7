package fuse

import (
	"context"
	"errors"
	"log/slog"
)

// SkippedKey is a key that cannot be shown as a path.
type SkippedKey struct {
	Key    string // or prefix, when it ends with a slash
	Reason string
}

// Session serves one mount.
type Session struct {
	cfg   Config
	log   *slog.Logger
	stats Stats
	state SessionState
}

// New prepares a session; nothing is mounted and no origin asked yet. It reads what
// an earlier session left in the state directory. Close releases it.
func New(cfg Config) (*Session, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	return &Session{cfg: cfg}, nil
}

// Check asks the origin whether there is anything under the prefix, for a clear
// message before the mount. A prefix that names one object is not a directory.
func (s *Session) Check(ctx context.Context) error { return errors.ErrUnsupported }

// Mount attaches the file system to dir, an existing directory. Callers of the
// mount wait until Run serves them.
func (s *Session) Mount(dir string) error { return errors.ErrUnsupported }

// Run serves the mount until it is unmounted (nil), ctx ends (the mount is taken
// away, its users get errors) or the kernel's device fails. It returns after
// everything it started has ended.
func (s *Session) Run(ctx context.Context) error { return errors.ErrUnsupported }

// Unmount detaches the mount; open files stay readable until they are closed, as
// long as Run goes on. lazy says what to do when it is busy: detach it all the same.
func (s *Session) Unmount(lazy bool) error { return errors.ErrUnsupported }

// Close releases what New took. Run must have returned.
func (s *Session) Close() error { return nil }

// Dir returns where the session is mounted, "" when it is not.
func (s *Session) Dir() string { return "" }

// Stats returns the counters of the session.
func (s *Session) Stats() *Stats { return &s.stats }

// SkippedKeys returns keys that cannot be a path (the first MaxSkippedKeysNamed);
// Stats().Skipped counts them all.
func (s *Session) SkippedKeys() []SkippedKey { return nil }

// Forget drops what is known of the names under a key prefix of the bucket, in this
// session and in the kernel: the next look-up asks anew.
func (s *Session) Forget(prefix string) {}
