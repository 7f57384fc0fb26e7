package csi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/shardwell/shardwell/fuse"
)

// maxRecordBytes bounds a record: a thousand volumes of one mount fit.
const maxRecordBytes = 4 << 20

// record is what is written down of a mount, so that the next driver knows what is
// published. It holds no secret.
type record struct {
	Name     string               `json:"name"`
	URI      string               `json:"uri"`
	Options  map[string]string    `json:"options"`
	Scope    string               `json:"scope"`
	Identity string               `json:"identity"` // of the credentials in use
	Volumes  map[string]published `json:"volumes"`  // by keyOf
}

// published is a volume that shows a mount.
type published struct {
	VolumeID    string `json:"volumeID"`
	Target      string `json:"target"`
	Fingerprint string `json:"fingerprint"`
	Identity    string `json:"identity"` // of the credentials that it came with last

	shown bool // not while it is published for the first time
}

// openVolumes takes over what an earlier driver left: volumes that are still shown stay,
// all else is taken away.
func openVolumes(cfg volumesConfig) (*volumes, error) {
	v := &volumes{volumesConfig: cfg, shared: make(map[string]*shared)}
	for _, d := range []string{"mounts", "volumes", "ca"} {
		if err := os.MkdirAll(filepath.Join(v.dir, d), 0o750); err != nil {
			return nil, fmt.Errorf("directory of the driver %s: %w", v.dir, unwrapPath(err))
		}
	}
	all, err := v.host.table()
	if err != nil {
		return nil, err
	}
	files, err := os.ReadDir(filepath.Join(v.dir, "volumes"))
	if err != nil {
		return nil, fmt.Errorf("directory of the driver %s: %w", v.dir, unwrapPath(err))
	}
	for _, f := range files {
		path := filepath.Join(v.dir, "volumes", f.Name())
		r, err := readRecord(path)
		if err != nil {
			v.log.Warn("csi: record of a mount cannot be read, and is dropped", "file", path, "error", err)
		}
		for key, p := range r.Volumes {
			if at, mounted := topmost(all, p.Target); !mounted || !at.Ours() || key != keyOf(p.VolumeID, p.Target) {
				delete(r.Volumes, key)
				continue
			}
			p.shown = true
			r.Volumes[key] = p
		}
		if len(r.Volumes) == 0 {
			_ = os.Remove(path)
			continue
		}
		v.newShared(r)
	}
	v.sweep(context.Background())
	return v, nil
}

func readRecord(path string) (r record, err error) {
	st, err := os.Stat(path)
	if err != nil {
		return r, unwrapPath(err)
	}
	if st.Size() > maxRecordBytes {
		return r, fmt.Errorf("larger than %d bytes", maxRecordBytes)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return r, unwrapPath(err)
	}
	if err := json.Unmarshal(text, &r); err != nil {
		return record{}, err
	}
	if r.Name == "" || r.Name+".json" != filepath.Base(path) {
		return record{}, errors.New("is of another name")
	}
	return r, nil
}

func (v *volumes) recordPath(name string) string {
	return filepath.Join(v.dir, "volumes", name+".json")
}

// save writes a mount down, beside the old file and then in its place. A record that is lost
// costs the next driver what volumes share, and no reader anything.
func (v *volumes) save(s *shared) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if _, ok := v.shared[s.Name]; !ok {
		return // gone meanwhile
	}
	text, err := json.Marshal(s.record)
	path := v.recordPath(s.Name)
	if err == nil {
		err = writeFile(path, text)
	}
	if err != nil {
		v.log.Warn("csi: write down what is published", "file", path, "error", unwrapPath(err))
	}
}

// writeCA writes certificates for the daemon to read. Mounts with other keys may have the same: one writes at a time.
func (v *volumes) writeCA(path, ca string) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	if have, err := os.ReadFile(path); err == nil && string(have) == ca {
		return nil
	}
	return writeFile(path, []byte(ca))
}

// removeUnused removes a record or certificates, unless they belong to a volume by now: who writes them has
// joined a mount before.
func (v *volumes) removeUnused(path string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if !v.used()[strings.TrimSuffix(path, ".tmp")] {
		_ = os.Remove(path) // else it is tried again
	}
}

// writeFile puts a file in the place of another one, whole.
func writeFile(path string, data []byte) error {
	if err := os.WriteFile(path+".tmp", data, 0o600); err != nil {
		return err
	}
	return os.Rename(path+".tmp", path)
}

func (v *volumes) forget(name string) {
	if err := os.Remove(v.recordPath(name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		v.log.Warn("csi: remove the record of a mount", "name", name, "error", unwrapPath(err))
	}
}

// Run mends volumes whose mount has ended with the daemon, and takes away what is left over, until ctx ends.
func (v *volumes) Run(ctx context.Context) error {
	tick := time.NewTicker(mendEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			v.mend(ctx)
			v.sweep(ctx)
		}
	}
}

// mend has mounts served again that are dead, and shows them to volumes that show a dead one. It reads the
// mount table once for all that is well.
func (v *volumes) mend(ctx context.Context) {
	tops, err := v.tops()
	if err != nil {
		v.log.Warn("csi: look at what is mounted", "error", err)
		return
	}
	for _, s := range v.inUse() {
		if ctx.Err() != nil {
			return
		}
		under, ok := tops[s.dir]
		dead := ok && !v.host.alive(s.dir)
		if dead || len(v.stale(s, tops, under)) > 0 {
			v.mendMount(ctx, s)
		}
	}
}

func (v *volumes) mendMount(ctx context.Context, s *shared) {
	if !v.served(s) {
		if err := v.serve(ctx, s, nil); err != nil {
			v.log.Warn("csi: a mount has ended and is not served again yet", "uri", s.URI, "error", err)
			return
		}
	}
	tops, err := v.tops()
	if err != nil {
		return // next time
	}
	for _, p := range v.stale(s, tops, tops[s.dir]) {
		v.mendVolume(ctx, s, p)
	}
}

// tops returns the topmost mount of each directory.
func (v *volumes) tops() (map[string]fuse.MountEntry, error) {
	all, err := v.host.table()
	tops := make(map[string]fuse.MountEntry, len(all))
	for _, e := range all {
		tops[e.Dir] = e
	}
	return tops, err
}

// stale returns the volumes of a mount that show another one, or nothing.
func (v *volumes) stale(s *shared, tops map[string]fuse.MountEntry, under fuse.MountEntry) (stale []published) {
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, p := range s.Volumes {
		if at, mounted := tops[p.Target]; p.shown && (!mounted || at.Device != under.Device) {
			stale = append(stale, p)
		}
	}
	return stale
}

// abandoned reports whether the kubelet has forgotten a volume: it unmounted and removed the directory by itself.
func (v *volumes) abandoned(target string) bool {
	all, err := v.host.table()
	if err != nil {
		return false
	}
	_, mounted := topmost(all, target)
	_, err = os.Lstat(filepath.Dir(target))
	return !mounted && errors.Is(err, fs.ErrNotExist)
}

func (v *volumes) mendVolume(ctx context.Context, s *shared, p published) {
	key := keyOf(p.VolumeID, p.Target)
	ctx, cancel := context.WithTimeout(ctx, evictPatience)
	defer cancel()
	_, end, err := v.operations.begin(ctx, key, false)
	if err != nil {
		return // somebody else is at it
	}
	defer end()
	if v.find(key) != s {
		return // unpublished meanwhile
	}
	if v.abandoned(p.Target) {
		v.log.Warn("csi: a volume went without an unpublish", "target", p.Target, "uri", s.URI)
		v.leave(ctx, s, key)
		return
	}
	if err := v.copyTo(s, p.Target); err != nil {
		v.log.Warn("csi: a volume is not shown again", "target", p.Target, "uri", s.URI, "error", err)
	}
}

// inUse returns the mounts that have volumes.
func (v *volumes) inUse() (all []*shared) {
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, s := range v.shared {
		all = append(all, s)
	}
	return all
}

// sweep takes mounts, records and certificates away that belong to no volume.
func (v *volumes) sweep(ctx context.Context) {
	v.mu.Lock()
	used := v.used()
	v.mu.Unlock()
	for _, d := range []string{"mounts", "volumes", "ca"} {
		entries, err := os.ReadDir(filepath.Join(v.dir, d))
		if err != nil {
			v.log.Warn("csi: look for what is left over", "error", unwrapPath(err))
			return
		}
		for _, e := range entries {
			path := filepath.Join(v.dir, d, e.Name())
			if used[strings.TrimSuffix(path, ".tmp")] || v.uses(path) { // made since then, perhaps
				continue
			}
			if d != "mounts" {
				v.removeUnused(path)
				continue
			}
			if err := v.drop(ctx, path); err != nil {
				v.log.Warn("csi: mount of an earlier driver stays behind, and is tried again", "directory", path, "error", err)
			}
		}
	}
}

// uses reports whether a mount, record or file of certificates belongs to a volume.
func (v *volumes) uses(path string) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.used()[strings.TrimSuffix(path, ".tmp")]
}

// used returns the paths of mounts, records and certificates that belong to volumes. Caller holds mu.
func (v *volumes) used() map[string]bool {
	used := make(map[string]bool, 3*len(v.shared))
	for _, s := range v.shared {
		used[s.dir], used[v.recordPath(s.Name)], used[s.Options["caFile"]] = true, true, true
	}
	return used
}
