package dir

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"syscall"

	"github.com/shardwell/shardwell/objstore"
)

// maxPageEntries is the most entries of one page, as on S3.
const maxPageEntries = 1000

// List implements objstore.Store. Names come in the order of their bytes, as
// S3 has it; a token is the last name of the page before. A directory shows up
// as a prefix even when it is empty.
func (s *Store) List(ctx context.Context, req objstore.ListRequest) (objstore.Page, error) {
	if req.Delimiter != "" && req.Delimiter != "/" {
		return objstore.Page{}, fail(objstore.OpList, req.Prefix, fmt.Errorf("delimiter %q: %w", req.Delimiter, objstore.ErrInvalid))
	}
	limit := req.Limit
	if limit <= 0 || limit > maxPageEntries {
		limit = maxPageEntries
	}
	w := &walk{ctx: ctx, store: s, req: req, limit: limit}
	if err := w.start(); err != nil && !errors.Is(err, errFull) {
		return objstore.Page{}, fail(objstore.OpList, req.Prefix, err)
	}
	return w.page, nil
}

// errFull ends a walk whose page is full.
var errFull = errors.New("page is full")

// walk collects one page.
type walk struct {
	ctx   context.Context
	store *Store
	req   objstore.ListRequest
	limit int
	page  objstore.Page
	last  string // name that was added last
}

// start finds the directory in which the names begin with the prefix.
func (w *walk) start() error {
	root, err := identify(w.store.root, ".")
	if err != nil {
		return fmt.Errorf("%w: %w", objstore.ErrNoBucket, err)
	}
	base := w.req.Prefix[:strings.LastIndexByte(w.req.Prefix, '/')+1]
	above := []fileID{root}
	for i := range len(base) {
		if base[i] != '/' {
			continue
		}
		if checkKey(base[:i]) != nil {
			return nil // no file has such a name
		}
		id, err := identify(w.store.root, base[:i])
		if err != nil {
			return unlessGone(err)
		}
		above = append(above, id)
	}
	return w.dir(base, above)
}

// unlessGone returns nil for an error that means that there are no names.
func unlessGone(err error) error {
	if classOf(err) == objstore.ErrNotExist {
		return nil
	}
	return err
}

// dir adds the names in a directory, "" or ending in a slash. above are the
// directories on the way, this one included.
func (w *walk) dir(dir string, above []fileID) error {
	namePrefix := ""
	if len(w.req.Prefix) > len(dir) {
		namePrefix = w.req.Prefix[len(dir):]
	}
	from := namePrefix
	if rest, ok := strings.CutPrefix(w.req.Token, dir); ok && w.req.Token != "" {
		if cut := strings.IndexByte(rest, '/'); cut >= 0 {
			rest = rest[:cut+1]
		}
		from = max(from, rest)
	}
	here, err := w.store.root.OpenRoot(cmp.Or(strings.TrimSuffix(dir, "/"), "."))
	if err != nil {
		return unlessGone(err)
	}
	defer here.Close()
	for {
		names, more, err := w.store.scan.names(w.ctx, w.store.root, dir, namePrefix, from, w.req.Token == "")
		if err != nil {
			return unlessGone(err)
		}
		for _, name := range names {
			if err := w.entry(here, dir, name, above); err != nil {
				return err
			}
		}
		if !more {
			return nil
		}
		from = names[len(names)-1] + "\x00"
	}
}

// entry adds one name of the directory dir, which is open as here, or what lies below it.
func (w *walk) entry(here *os.Root, dir, base string, above []fileID) error {
	if err := w.ctx.Err(); err != nil {
		return err
	}
	name := dir + base
	token := w.req.Token
	isDir := strings.HasSuffix(name, "/")
	if isDir && w.req.Delimiter == "" {
		if token != "" && name <= token && !strings.HasPrefix(token, name) {
			return nil
		}
		return w.below(name, above)
	}
	if token != "" && name <= token {
		return nil
	}
	if isDir {
		return w.add(name, func() { w.page.Prefixes = append(w.page.Prefixes, name) })
	}
	info, err := here.Lstat(base) // one system call, where a path takes one a part
	if err == nil && info.Mode()&fs.ModeSymlink != 0 {
		info, err = w.store.root.Stat(name)
	}
	if err != nil {
		return unlessGone(err)
	}
	if !info.Mode().IsRegular() {
		return nil
	}
	return w.add(name, func() { w.page.Objects = append(w.page.Objects, infoOf(name, info)) })
}

// add puts a name on the page unless that is full.
func (w *walk) add(name string, put func()) error {
	if len(w.page.Objects)+len(w.page.Prefixes) == w.limit {
		w.page.Next = w.last
		return errFull
	}
	put()
	w.last = name
	return nil
}

// below adds what a directory holds, unless it is one of those above: links may
// make circles.
func (w *walk) below(dir string, above []fileID) error {
	id, err := identify(w.store.root, strings.TrimSuffix(dir, "/"))
	if err != nil {
		return unlessGone(err)
	}
	for _, a := range above {
		if a == id {
			return nil
		}
	}
	return w.dir(dir, append(above[:len(above):len(above)], id))
}

// fileID tells directories apart.
type fileID struct{ dev, inode uint64 }

func identify(root *os.Root, name string) (fileID, error) {
	info, err := root.Stat(name)
	if err != nil {
		return fileID{}, err
	}
	if !info.IsDir() {
		return fileID{}, &fs.PathError{Op: "stat", Path: name, Err: syscall.ENOTDIR}
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return fileID{}, fmt.Errorf("stat %q: no inode", name)
	}
	return fileID{uint64(st.Dev), st.Ino}, nil
}
