package fuse

import (
	"context"
	"errors"
	"fmt"
	"path"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	gofuse "github.com/hanwen/go-fuse/v2/fuse"
	"github.com/shardwell/shardwell/fuse/snapshot"
	"github.com/shardwell/shardwell/fuse/tarindex"
	"github.com/shardwell/shardwell/fuse/tree"
	"github.com/shardwell/shardwell/internal/chunk"
)

// The members of tars as files. The directory tarViewName of a directory D, which is looked up by
// its name and never listed, has a directory for each tar in D; that has the members of the
// version of the tar that was looked up, and names of it never change. A key of the bucket
// with the name tarViewName has it for itself.
//
// All of it is in the listing snapshot, aside of what stands for keys, and so means the same
// to a successor. The directory aside has an entry for each D, by D's serial; below it comes
// what a reader sees. A tar's directory has size and ETag of the tar; a member's ETag is its
// offset.

// tarViewName is the name of the directory with the members of tars.
const tarViewName = ".tar"

// Tars knows where members of tars lie.
type Tars interface {
	// Index returns the index of a tar. An error is of package tarindex when there is none, and
	// has a class of objstore when the tar cannot be read.
	Index(ctx context.Context, obj chunk.Object) (*tarindex.Index, error)
}

// tarViews finds what directories of the view stand for. It is derived from the snapshot.
type tarViews struct {
	mu  sync.Mutex
	all map[*snapshot.Dir]tarPlace
}

// tarPlace is what a directory of the view stands for.
type tarPlace struct {
	keys *snapshot.Dir // in which the tars lie
	// Of the directory of one tar, or one in it:
	tar  chunk.Object // Key is "" in the directory of all tars
	root *snapshot.Dir
}

// inside reports whether a directory is of one tar.
func (p tarPlace) inside() bool { return p.root != nil }

// name is how a person would name a directory of the view, with a slash at the end.
func (p tarPlace) name(d *snapshot.Dir) string {
	if !p.inside() {
		return p.keys.Prefix + tarViewName + "/"
	}
	return p.keys.Prefix + tarViewName + "/" + path.Base(p.tar.Key) + "/" + p.within(d)
}

// within is the path of a directory from the root of its tar, "" or ending with a slash.
func (p tarPlace) within(d *snapshot.Dir) string { return strings.TrimPrefix(d.Prefix, p.root.Prefix) }

// tarPlace returns what a directory stands for that lies aside.
func (s *Session) tarPlace(d *snapshot.Dir) (tarPlace, error) {
	s.views.mu.Lock()
	defer s.views.mu.Unlock()
	return s.findTarPlace(d)
}

func (s *Session) findTarPlace(d *snapshot.Dir) (tarPlace, error) {
	if p, ok := s.views.all[d]; ok {
		return p, nil
	}
	owner, index := s.store.Owner(d.ID)
	if owner == nil {
		return tarPlace{}, syscall.ESTALE // the directory aside itself, which nobody can name
	}
	var p tarPlace
	v := owner.View(index, true)
	if above, _ := s.store.Owner(owner.ID); above == nil { // aside
		serial, err := strconv.ParseUint(string(v.Name), 10, 32)
		if p.keys = s.store.Dir(uint32(serial)); err != nil || p.keys == nil {
			return tarPlace{}, fmt.Errorf("directory of tars %q: %w", v.Name, syscall.ESTALE)
		}
	} else {
		var err error
		if p, err = s.findTarPlace(owner); err != nil {
			return tarPlace{}, err
		}
		if !p.inside() {
			p.root = d
			p.tar = chunk.Object{Origin: s.cfg.Bucket.Origin, Bucket: s.cfg.Bucket.Name, Key: p.keys.Prefix + string(v.Name), ETag: v.ETag, Size: v.Size}
		}
	}
	if s.views.all == nil {
		s.views.all = make(map[*snapshot.Dir]tarPlace)
	}
	s.views.all[d] = p
	return p, nil
}

// tarViewOf returns the entry for the directory of all tars of a directory.
func (s *Session) tarViewOf(d *snapshot.Dir) (aside *snapshot.Dir, index uint32, err error) {
	if aside, err = s.store.Aside(); err != nil {
		return nil, 0, err
	}
	e := tree.Entry{Name: strconv.FormatUint(uint64(d.Serial), 10), Kind: tree.Dir}
	index, _, err = aside.Put(e, time.Now(), aside.Ask())
	return aside, index, err
}

// lookupView is lookup where the members of tars are shown.
func (s *Session) lookupView(ctx context.Context, d *snapshot.Dir, name string) (found, error) {
	if d.Aside {
		return s.lookupAside(ctx, d, name)
	}
	f, err := s.lookup(ctx, d, name)
	if err != nil || !f.absent || name != tarViewName {
		return f, err
	}
	aside, index, err := s.tarViewOf(d)
	return found{dir: aside, index: index, holds: f.holds}, err
}

// lookupAside finds a tar, or a member of one.
func (s *Session) lookupAside(ctx context.Context, d *snapshot.Dir, name string) (found, error) {
	p, err := s.tarPlace(d)
	if err != nil {
		return found{}, err
	}
	if !p.inside() {
		return s.lookupTar(ctx, d, p, name)
	}
	if err := s.proveTar(ctx, p); err != nil {
		return found{}, err
	}
	if index, ok := d.Find(name); ok {
		return found{dir: d, index: index, holds: s.tarHolds()}, nil
	}
	x, dir, err := s.tarDir(ctx, d, p)
	if err != nil {
		return found{}, err
	}
	n, ok := x.Child(dir, name)
	if !ok {
		return found{absent: true, holds: s.tarHolds()}, nil
	}
	index, err := putMember(d, x.Entry(n))
	return found{dir: d, index: index, holds: s.tarHolds()}, err
}

// tarHolds is how long the kernel keeps names within a tar: they never change, but who may
// see them may.
func (s *Session) tarHolds() time.Duration {
	if within := s.proveWithin(); within > 0 {
		return min(within, forever)
	}
	return forever
}

// lookupTar finds the directory of one tar, in the version that the mount's consistency allows.
func (s *Session) lookupTar(ctx context.Context, d *snapshot.Dir, p tarPlace, name string) (found, error) {
	how, compressed := tarindex.CompressedName(name)
	if !compressed && !tarindex.TarName(name) {
		return found{absent: true, holds: forever}, nil
	}
	f, err := s.lookup(ctx, p.keys, name)
	if err != nil || f.absent {
		return f, err
	}
	v := p.keys.View(f.index, true)
	switch {
	case v.Kind != tree.File:
		return found{absent: true, holds: f.holds}, nil
	case compressed:
		return found{}, fmt.Errorf("%s: %w", how, tarindex.ErrCompressed)
	}
	index, err := putTar(d, v)
	return found{dir: d, index: index, holds: f.holds}, err
}

// putTar records the directory of a version of a tar.
func putTar(d *snapshot.Dir, v snapshot.View) (uint32, error) {
	e := tree.Entry{Name: string(v.Name), Kind: tree.Dir, Size: v.Size, ETag: v.ETag}
	if v.ModTime != 0 {
		e.ModTime = time.Unix(0, v.ModTime)
	}
	index, _, err := d.Put(e, time.Now(), d.Ask())
	return index, err
}

// putMember records a member of a tar.
func putMember(d *snapshot.Dir, m tarindex.Entry) (uint32, error) {
	e := tree.Entry{Name: m.Name, Kind: tree.Dir, ModTime: m.ModTime}
	if !m.Dir {
		e.Kind, e.Size, e.ETag = tree.File, m.Size, strconv.FormatInt(m.Off, 10)
	}
	index, _, err := d.Put(e, time.Now(), d.Ask())
	return index, err
}

// tarDir returns the index of a tar and where a directory is in it.
func (s *Session) tarDir(ctx context.Context, d *snapshot.Dir, p tarPlace) (*tarindex.Index, tarindex.Node, error) {
	if s.cfg.Tars == nil { // a predecessor had the view
		return nil, 0, syscall.ESTALE
	}
	x, err := s.cfg.Tars.Index(ctx, p.tar)
	if err != nil {
		return nil, 0, err
	}
	n, ok := x.Find(strings.TrimSuffix(p.within(d), "/"))
	if !ok || !x.Entry(n).Dir {
		return nil, 0, syscall.ESTALE
	}
	return x, n, nil
}

// proveTar makes sure that who may not read a tar does not see what is in it.
func (s *Session) proveTar(ctx context.Context, p tarPlace) error {
	if s.proveWithin() <= 0 {
		return nil
	}
	return s.checkTar(ctx, p)
}

// checkTar is checkOpen for the tar that a member lies in.
func (s *Session) checkTar(ctx context.Context, p tarPlace) error {
	index, ok := p.keys.Find(path.Base(p.tar.Key))
	if !ok {
		return s.staleOpen()
	}
	v := p.keys.View(index, true)
	if v.Kind != tree.File || v.Gone || v.ETag != p.tar.ETag || v.Size != p.tar.Size {
		return s.staleOpen() // the look-up of the tar finds out what there is now
	}
	return s.checkOpen(ctx, node{id: p.keys.NodeID(index), owner: p.keys, index: index, view: v})
}

// extent is what a file's node stands for: an object, or a part of one.
type extent struct {
	obj  chunk.Object
	off  int64
	size int64
	name string // key, or path of a member, for messages
	tar  *tarPlace
}

// extent returns what a file's node stands for.
func (s *Session) extent(n node) (extent, error) {
	if !n.owner.Aside {
		obj := s.object(n)
		return extent{obj: obj, size: obj.Size, name: obj.Key}, nil
	}
	p, err := s.tarPlace(n.owner)
	if err != nil {
		return extent{}, err
	}
	off, err := strconv.ParseInt(n.view.ETag, 10, 64)
	if err != nil || !p.inside() || off < 0 || off > p.tar.Size || n.view.Size > p.tar.Size-off {
		return extent{}, fmt.Errorf("member %q: %w", n.view.Name, syscall.ESTALE)
	}
	return extent{obj: p.tar, off: off, size: n.view.Size, name: p.name(n.owner) + string(n.view.Name), tar: &p}, nil
}

// open opens what a node stands for.
func (s *Session) open(c extent) (File, error) {
	f, err := s.cfg.Data.Open(c.obj)
	if err != nil || c.tar == nil {
		return f, err
	}
	return newMember(f, c.off, c.size), nil
}

// check is checkOpen for whatever a node stands for.
func (s *Session) check(ctx context.Context, n node, c extent) error {
	if c.tar == nil {
		return s.checkOpen(ctx, n)
	}
	return s.checkTar(ctx, *c.tar)
}

// awaitAside waits until entries of the view from a cookie on can be shown.
func (s *Session) awaitAside(ctx context.Context, d *snapshot.Dir, cookie uint64) error {
	p, err := s.tarPlace(d)
	if err != nil {
		return err
	}
	if !p.inside() {
		return s.await(ctx, s.dirs.of(p.keys), firstIndex(cookie))
	}
	if cookie == 0 {
		if err := s.proveTar(ctx, p); err != nil {
			return err
		}
	}
	_, _, err = s.tarDir(ctx, d, p)
	return err
}

// fillAside adds entries of the view from *index on, as fillFrom does. end says that there are
// no more.
func (s *Session) fillAside(ctx context.Context, d *snapshot.Dir, index *uint32, added *int, add adder) (full, end bool, err error) {
	p, err := s.tarPlace(d)
	if err != nil {
		return false, false, err
	}
	if !p.inside() {
		return s.fillTars(d, p, index, added, add)
	}
	x, dir, err := s.tarDir(ctx, d, p)
	if err != nil {
		return false, false, err
	}
	for ; int(*index) < x.Len(dir); *index++ {
		i, err := putMember(d, x.Entry(x.At(dir, int(*index))))
		if err != nil {
			return false, false, err
		}
		if !add(entryOf(d, i, *index), d, i, s.tarHolds()) {
			return true, false, nil
		}
		*added++
	}
	return false, true, nil
}

// fillTars adds the tars of a directory, in the order of its listing.
func (s *Session) fillTars(d *snapshot.Dir, p tarPlace, index *uint32, added *int, add adder) (full, end bool, err error) {
	dir := s.dirs.of(p.keys)
	dir.mu.Lock()
	defer dir.mu.Unlock()
	now := time.Now()
	for ; *index < p.keys.Len(); *index++ {
		current, v := dir.judge(*index)
		if v == unsure {
			return false, false, nil
		}
		view := p.keys.View(current, true)
		if v == hide || view.Kind != tree.File || view.NoETag || !tarindex.TarName(string(view.Name)) {
			continue
		}
		i, err := putTar(d, view)
		if err != nil {
			return false, false, err
		}
		if !add(entryOf(d, i, *index), d, i, left(p.keys.Verified(current), s.maxAge(), now)) {
			return true, false, nil
		}
		*added++
	}
	return false, dir.listing == nil || dir.listing.passed, nil
}

// dropTars has the kernel drop what it knows of the tars of a directory.
func (s *Session) dropTars(ctx context.Context, d *snapshot.Dir) {
	if s.cfg.Tars == nil {
		return
	}
	aside, err := s.store.Aside()
	if err != nil {
		return
	}
	index, ok := aside.Find(strconv.FormatUint(uint64(d.Serial), 10))
	if !ok {
		return
	}
	s.notify(gofuse.NOTIFY_INVAL_ENTRY, inval(d.ID, []byte(tarViewName)))
	tars := s.store.Known(aside.NodeID(index))
	if tars == nil {
		return
	}
	for i := uint32(0); i < tars.Len() && ctx.Err() == nil; i++ {
		if v := tars.View(i, false); !v.Replaces {
			s.notify(gofuse.NOTIFY_INVAL_ENTRY, inval(tars.ID, v.Name))
		}
	}
}

// isTarError reports that a tar has no index, and what that means to the kernel.
func isTarError(err error) (syscall.Errno, bool) {
	switch {
	case errors.Is(err, tarindex.ErrCompressed):
		return syscall.EOPNOTSUPP, true
	case errors.Is(err, tarindex.ErrNotTar):
		return syscall.ENOTDIR, true
	case errors.Is(err, tarindex.ErrTooLarge):
		return syscall.EFBIG, true
	}
	return 0, false
}
