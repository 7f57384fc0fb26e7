package csi

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"sync"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/shardwell/shardwell/fuse"
	"github.com/shardwell/shardwell/internal/control"
)

// Limits of what an unpublish waits for: with the calls into the kernel they stay below
// the 30 s in which it must end.
const (
	evictPatience = 5 * time.Second // with the publish that it ends
	mendEvery     = 10 * time.Second
)

// wish is what a publish asks for, checked.
type wish struct {
	volumeID    string
	target      string
	uri         string
	options     map[string]string // as config.Config.WithAttributes takes them
	fingerprint string            // of all that may not change while the volume is published
	alone       bool              // it may be published at one place only (ReadWriteOncePod)
	access      access
}

// access is whose rights a volume reads with.
type access struct {
	scope       string              // the namespace whose credentials these are; "" for the daemon's own
	identity    string              // names the credentials, and tells nothing of them; "" likewise
	credentials control.Credentials // secrets
	ca          string              // certificates (PEM) for the file that the option caFile names; "" for none
}

// key names a volume at a place: one PersistentVolume is published once for each Pod.
func (w wish) key() string { return keyOf(w.volumeID, w.target) }

func keyOf(volumeID, target string) string { return volumeID + "\x00" + target }

type volumesConfig struct {
	daemon     Daemon
	host       host
	log        *slog.Logger
	root       string // the kubelet's directory
	dir        string // of the driver: mounts and records lie below
	maxVolumes int
}

// volumes are what is published on this machine, and the mounts underneath.
// Lock order: a volume's operation, a shared mount's turn, mu.
type volumes struct {
	volumesConfig
	operations operations

	mu     sync.Mutex
	shared map[string]*shared // by name
}

// shared is a mount of the daemon that volumes are copies of.
type shared struct {
	record
	dir  string
	turn chan struct{} // holds one token while somebody asks the daemon for it
	// credentials are the last ones; not known after a restart of the driver until
	// the kubelet publishes again. Under turn.
	credentials control.Credentials
	known       bool
	bearer      string            // the volume that they came with; "" when that is gone. Under mu
	last        map[string]string // by volume, the digest of what it came with last. Under mu
}

// publish shows a volume at its target. The same again renews its credentials.
func (v *volumes) publish(ctx context.Context, w wish) error {
	ctx, end, err := v.operations.begin(ctx, w.key(), false)
	if err != nil {
		return toStatus(err)
	}
	defer end()
	s, existing, err := v.join(w)
	if err != nil {
		return toStatus(err)
	}
	err = v.show(ctx, s, w)
	switch {
	case err == nil:
		v.shown(s, w.key())
		v.save(s)
		if !existing {
			v.log.Info("csi: volume published", "volume", w.volumeID, "target", w.target, "uri", s.URI, "mount", s.Name)
		}
		return nil
	case existing:
		return transient(err)
	}
	v.leave(context.WithoutCancel(ctx), s, w.key())
	return toStatus(err)
}

// shown notes that a volume is where it should be, and is to stay there.
func (v *volumes) shown(s *shared, key string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	p := s.Volumes[key]
	p.shown = true
	s.Volumes[key] = p
}

// join finds the mount that a volume shares, or reserves a new one. existing says that
// the volume was published before.
func (v *volumes) join(w wish) (s *shared, existing bool, err error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	count := 0
	var match *shared
	for _, s := range v.shared {
		if have, ok := s.Volumes[w.key()]; ok {
			if have.Fingerprint != w.fingerprint {
				return nil, true, refused(codes.AlreadyExists, "volume %s is published at %s already, with other attributes", w.volumeID, w.target)
			}
			return s, true, nil
		}
		count += len(s.Volumes)
		for _, p := range s.Volumes {
			if w.alone && p.VolumeID == w.volumeID {
				return nil, false, refused(codes.FailedPrecondition, "volume %s is for one Pod only, and is published at %s already", w.volumeID, p.Target)
			}
		}
		if s.fits(w) {
			match = s
		}
	}
	if count >= v.maxVolumes {
		return nil, false, refused(codes.ResourceExhausted, "%d volumes are published on this node, the most it has: raise --max-volumes", count)
	}
	if match == nil {
		var name [8]byte
		_, _ = rand.Read(name[:]) // never fails
		match = v.newShared(record{
			Name: hex.EncodeToString(name[:]), URI: w.uri, Options: w.options, Scope: w.access.scope, Identity: w.access.identity,
			Volumes: make(map[string]published),
		})
	}
	match.Volumes[w.key()] = published{VolumeID: w.volumeID, Target: w.target, Fingerprint: w.fingerprint, Identity: w.access.identity}
	return match, false, nil
}

// newShared adds a mount to the table. Caller holds mu.
func (v *volumes) newShared(r record) *shared {
	s := &shared{record: r, dir: filepath.Join(v.dir, "mounts", r.Name), turn: make(chan struct{}, 1), last: make(map[string]string)}
	v.shared[r.Name] = s
	return s
}

// fits reports whether a volume may share a mount: it shows the same, in the same way, with the same rights.
func (s *shared) fits(w wish) bool {
	return s.URI == w.uri && s.Scope == w.access.scope && s.Identity == w.access.identity && maps.Equal(s.Options, w.options)
}

// show has the daemon serve the mount underneath, and copies it to the target.
func (v *volumes) show(ctx context.Context, s *shared, w wish) error {
	if err := v.serve(ctx, s, &w); err != nil {
		return err
	}
	return v.copyTo(s, w.target)
}

// serve has the daemon serve a mount, with the credentials of w. Without w those that are known are used.
func (v *volumes) serve(ctx context.Context, s *shared, w *wish) error {
	select {
	case s.turn <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { <-s.turn }()
	if w != nil {
		v.renew(s, w)
	}
	if !s.known && s.Scope != "" {
		if v.served(s) {
			return nil // by somebody whose credentials are newer than those of w
		}
		return refused(codes.Unavailable, "%s: its credentials are not known until the kubelet publishes it again", s.URI)
	}
	if w != nil && w.access.ca != "" {
		if err := v.writeCA(s.Options["caFile"], w.access.ca); err != nil {
			return fmt.Errorf("certificates of the volume: %w", unwrapPath(err))
		}
	}
	if err := os.MkdirAll(s.dir, 0o750); err != nil {
		return fmt.Errorf("mount directory %s: %w", s.dir, unwrapPath(err))
	}
	_, err := v.daemon.Mount(ctx, control.MountRequest{URI: s.URI, Dir: s.dir, Options: s.Options, Credentials: s.credentials})
	return err
}

// renew takes over the credentials of a volume, if it did not come with the same before: each new token costs a
// call to the STS. Those of another volume may be newer: the kubelet hears of a changed Secret for one Pod earlier
// than for the other. Caller has the turn.
func (v *volumes) renew(s *shared, w *wish) {
	v.mu.Lock()
	defer v.mu.Unlock()
	key, c := w.key(), w.access.credentials
	p, ok := s.Volumes[key]
	if !ok {
		return // unpublished meanwhile
	}
	same := digest(c.AccessKey, c.SecretKey, c.SessionToken, c.WebIdentityToken, c.RoleARN, c.STSEndpoint)
	changed := p.Identity != w.access.identity
	fresh := s.last[key] != same || s.bearer == "" || !s.known
	if changed || s.orphaned() || s.Identity == w.access.identity && fresh {
		s.Identity, s.credentials, s.known, s.bearer = w.access.identity, c, true, key
	}
	p.Identity = w.access.identity
	s.Volumes[key], s.last[key] = p, same
}

// orphaned reports whether the credentials in use are those of none of the volumes that are left: one changed its
// Secret, and went. Caller holds mu.
func (s *shared) orphaned() bool {
	for _, p := range s.Volumes {
		if p.Identity == s.Identity {
			return false
		}
	}
	return true
}

// served reports whether a mount is there and not dead.
func (v *volumes) served(s *shared) bool {
	all, err := v.host.table()
	if err != nil {
		return false
	}
	_, ok := topmost(all, s.dir)
	return ok && v.host.alive(s.dir)
}

// copyTo makes target show a mount. What shows it already stays as it is. What shows one that died is covered: a mount over
// a mount comes to the Pods that have the one below (mountPropagation: HostToContainer), a mount in its place does not.
func (v *volumes) copyTo(s *shared, target string) error {
	all, err := v.host.table()
	if err != nil {
		return err
	}
	under, ok := topmost(all, s.dir)
	if !ok {
		return refused(codes.FailedPrecondition, "the daemon's mount %s is not seen by the driver: both need %s with mount propagation (Bidirectional)", s.dir, v.dir)
	}
	at, mounted := topmost(all, target)
	switch {
	case mounted && at.Ours() && at.Device == under.Device:
		return nil
	case mounted && !at.Ours():
		return refused(codes.FailedPrecondition, "target_path %s: a file system of type %s (%s) is mounted there", target, at.Type, at.Source)
	case mounted && layers(all, target) >= maxLayers:
		v.log.Warn("csi: volume is shown anew, and its Pod has to be restarted to see it: its mount has ended often", "target", target, "uri", s.URI)
		if err := v.host.detach(target); err != nil {
			return err
		}
	case mounted:
		v.log.Info("csi: volume is shown anew: its mount has ended", "target", target, "uri", s.URI)
	}
	return v.host.attach(s.dir, target)
}

// layers counts what is mounted on a directory, one over the other.
func layers(all []fuse.MountEntry, dir string) (n int) {
	for _, e := range all {
		if e.Dir == dir {
			n++
		}
	}
	return n
}

// topmost finds what is mounted on a directory.
func topmost(all []fuse.MountEntry, dir string) (e fuse.MountEntry, ok bool) {
	for i := len(all) - 1; i >= 0; i-- {
		if all[i].Dir == dir {
			return all[i], true
		}
	}
	return e, false
}

// unpublish takes a volume away from its target, whoever uses it. One that is not known is no error.
func (v *volumes) unpublish(ctx context.Context, volumeID, target string) error {
	key := keyOf(volumeID, target)
	wait, cancel := context.WithTimeout(ctx, evictPatience)
	defer cancel()
	_, end, err := v.operations.begin(wait, key, true)
	if err != nil {
		return toStatus(refused(codes.Aborted, "volume %s is still being published: try again", volumeID))
	}
	defer end()
	if err := v.host.detach(target); err != nil {
		return toStatus(err)
	}
	if s := v.find(key); s != nil {
		v.leave(context.WithoutCancel(ctx), s, key)
		v.log.Info("csi: volume unpublished", "volume", volumeID, "target", target, "uri", s.URI)
	}
	return nil
}

// find returns the mount of a volume.
func (v *volumes) find(key string) *shared {
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, s := range v.shared {
		if _, ok := s.Volumes[key]; ok {
			return s
		}
	}
	return nil
}

// findID returns the mount of a volume wherever that is published.
func (v *volumes) findID(volumeID string) *shared {
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, s := range v.shared {
		for _, p := range s.Volumes {
			if p.VolumeID == volumeID {
				return s
			}
		}
	}
	return nil
}

// leave forgets a volume, and ends the mount underneath with its last one.
func (v *volumes) leave(ctx context.Context, s *shared, key string) {
	v.mu.Lock()
	delete(s.Volumes, key)
	delete(s.last, key)
	if s.bearer == key {
		s.bearer = ""
	}
	last := len(s.Volumes) == 0
	if last {
		delete(v.shared, s.Name)
	}
	v.mu.Unlock()
	if !last {
		v.save(s)
		return
	}
	if err := v.drop(ctx, s.dir); err != nil {
		v.log.Warn("csi: mount stays behind, and is tried again", "directory", s.dir, "uri", s.URI, "error", err)
		return
	}
	v.forget(s.Name)
	if ca := s.Options["caFile"]; ca != "" {
		v.removeUnused(ca)
	}
}

// drop ends a mount that no volume uses. When the daemon does not do it, the connection to it is
// ended here, so that nobody waits for it; not while it is still seen elsewhere.
func (v *volumes) drop(ctx context.Context, dir string) error {
	err := v.daemon.Release(ctx, dir)
	if err != nil && ctx.Err() == nil {
		v.log.Warn("csi: the daemon does not end a mount", "directory", dir, "error", err)
	}
	all, tableErr := v.host.table()
	if tableErr != nil {
		return tableErr
	}
	if at, mounted := topmost(all, dir); mounted {
		elsewhere := false
		for _, e := range all {
			elsewhere = elsewhere || e.Device == at.Device && e.Dir != dir
		}
		if elsewhere {
			err = v.host.detach(dir)
		} else {
			err = v.host.abort(dir)
		}
		if err != nil {
			return err
		}
	}
	if err := os.Remove(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return unwrapPath(err)
	}
	return nil
}
