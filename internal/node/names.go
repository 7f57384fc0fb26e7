package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/shardwell/shardwell/internal/config"
	"github.com/shardwell/shardwell/internal/control"
	"github.com/shardwell/shardwell/objstore"
)

// Refresh implements control.Node. It returns an error that names the members
// which could not be told; they forget by themselves when their answers have aged.
func (n *Node) Refresh(ctx context.Context, uri string) (count int, err error) {
	err = n.requests.do(ctx, func(ctx context.Context) (err error) {
		count, err = n.refresh(ctx, uri)
		return err
	})
	return count, err
}

func (n *Node) refresh(ctx context.Context, uri string) (count int, err error) {
	u, err := config.ParseURI(uri)
	if err != nil {
		return 0, err
	}
	bucket, prefix, err := bucketOf(n.cfg, u)
	if err != nil {
		return 0, err
	}
	// A bucket of that name may be mounted from other endpoints too: the user did not say which.
	var errs []error
	for _, b := range n.origins.called(bucket) {
		there, errThere := n.cluster.peers.Forget(ctx, b, prefix)
		here, errHere := n.forgetHere(ctx, b, prefix)
		count += there + here
		errs = append(errs, errThere, errHere)
	}
	if err := errors.Join(errs...); err != nil {
		return count, fmt.Errorf("refresh %s: not every member was told: %w", u, n.named(oneLine(err)))
	}
	return count, nil
}

// forgetHere drops what this node knows of the names under a prefix.
func (n *Node) forgetHere(ctx context.Context, b objstore.Bucket, prefix string) (int, error) {
	count := n.names.Forget(b, prefix)
	var errs []error
	for _, m := range n.mounts.all() {
		if m.bucket != b {
			continue
		}
		if err := m.session.Forget(ctx, prefix); err != nil {
			errs = append(errs, fmt.Errorf("mount %s: %w", m.session.Dir(), err))
		}
	}
	return count, errors.Join(errs...)
}

// oneLine says in one line what joined errors say in several.
func oneLine(err error) error {
	return told{strings.ReplaceAll(err.Error(), "\n", "; "), err}
}

// told is an error that says all there is to say, and has a class.
type told struct {
	text  string
	class error
}

func (e told) Error() string { return e.text }
func (e told) Unwrap() error { return e.class }

// about says what an error is about, unless it says so itself.
func about(u config.URI, err error) error {
	if errors.Is(err, objstore.ErrNoBucket) { // whoever was asked on the way says it in its own words too
		return told{fmt.Sprintf("list %s: %v", u, objstore.ErrNoBucket), err}
	}
	if strings.Contains(err.Error(), strings.TrimSuffix(u.String(), "/")) {
		return err
	}
	return fmt.Errorf("%s: %w", u, err)
}

// List implements control.Node.
func (n *Node) List(ctx context.Context, req control.ListRequest, yield func(control.Entry) error) error {
	return n.requests.do(ctx, func(ctx context.Context) error { return n.list(ctx, req, yield) })
}

func (n *Node) list(ctx context.Context, req control.ListRequest, yield func(control.Entry) error) error {
	cfg, err := n.configFor(req.Options)
	if err != nil {
		return err
	}
	u, err := config.ParseURI(req.URI)
	if err != nil {
		return err
	}
	bucket, prefix, err := bucketOf(cfg, u)
	if err != nil {
		return err
	}
	release, err := n.origins.admit(cfg, bucket)
	if err != nil {
		return err
	}
	defer release()
	who, err := n.identify(ctx, cfg, req.Credentials, bucket)
	if err != nil {
		return err
	}
	defer who.close()
	maxAge, _ := cfg.Consistency.MaxAge()
	q := objstore.Query{Bucket: bucket, Access: who.access(ctx), MaxAge: maxAge}
	if req.Members && isTar(prefix) {
		if proof := n.proveWithin(who, bucket); proof > 0 {
			q.MaxAge = min(maxAge, proof)
		}
		done, err := listTar(ctx, u, bucket, prefix, yield, tarAccess{
			head: func(ctx context.Context) (info objstore.Info, err error) {
				info, _, err = n.names.Head(ctx, q, prefix)
				return info, err
			},
			index: tarView{n, who}.Index,
		})
		if done || err != nil {
			return n.named(err)
		}
		q.MaxAge = maxAge
	}
	return n.named(list(u, prefix, yield, func(r objstore.ListRequest) (page objstore.Page, err error) {
		err = n.origins.promptly(ctx, openKey{bucket, who.identity()}, func(ctx context.Context) (err error) {
			page, _, err = n.names.List(ctx, q, r)
			return err
		})
		return page, err
	}))
}

// named writes the names of members for their ring ids in an error that a user is to read.
func (n *Node) named(err error) error {
	if err == nil {
		return nil
	}
	var pairs []string
	for _, m := range n.cluster.group.Members() {
		pairs = append(pairs, m.ID, m.Name)
	}
	if text := strings.NewReplacer(pairs...).Replace(err.Error()); text != err.Error() {
		return told{text, err}
	}
	return err
}

// ListOrigin is [Node.List] without a node: it asks the origin of cfg.
func ListOrigin(ctx context.Context, cfg config.Config, req control.ListRequest, yield func(control.Entry) error) error {
	u, err := config.ParseURI(req.URI)
	if err != nil {
		return err
	}
	if dir := u.Dir; dir != "" { // the user named it
		if st, err := os.Stat(dir); req.Members && isTar(dir) && err == nil && st.Mode().IsRegular() {
			dir = filepath.Dir(dir) // in which the tar lies
		}
		cfg.OriginDirs = append(cfg.OriginDirs, dir)
	}
	bucket, prefix, err := bucketOf(cfg, u)
	if err != nil {
		return err
	}
	origins := newOrigins(cfg, slog.New(slog.DiscardHandler))
	defer origins.Close()
	store, err := origins.Open(ctx, bucket)
	if err != nil {
		return err
	}
	if req.Members && isTar(prefix) {
		done, err := listTar(ctx, u, bucket, prefix, yield, tarAccess{
			head:  func(ctx context.Context) (objstore.Info, error) { return store.Head(ctx, prefix) },
			index: originTar{store}.Index,
		})
		if done || err != nil {
			return err
		}
	}
	return list(u, prefix, yield, func(r objstore.ListRequest) (page objstore.Page, err error) {
		err = origins.promptly(ctx, openKey{bucket: bucket}, func(ctx context.Context) (err error) {
			page, err = store.List(ctx, r)
			return err
		})
		return page, err
	})
}

// list yields one level of names: those in the directory prefix, or the object
// and the directories that begin with it when it does not end in a slash.
func list(u config.URI, prefix string, yield func(control.Entry) error, ask func(objstore.ListRequest) (objstore.Page, error)) error {
	if u.Dir != "" && prefix != "" {
		prefix += "/"
	}
	base := ""
	if i := strings.LastIndexByte(prefix, '/'); i >= 0 {
		base = prefix[:i+1]
	}
	found := false
	for r := (objstore.ListRequest{Prefix: prefix, Delimiter: "/"}); ; {
		page, err := ask(r)
		if err != nil {
			return about(u, err)
		}
		for _, p := range page.Prefixes {
			found = true
			if err := yield(control.Entry{Name: strings.TrimPrefix(p, base)}); err != nil {
				return err
			}
		}
		for _, o := range page.Objects {
			found = true
			if err := yield(control.Entry{Name: strings.TrimPrefix(o.Key, base), Size: o.Size, ModTime: o.ModTime, ETag: o.ETag}); err != nil {
				return err
			}
		}
		if page.Next == "" {
			break
		}
		r.Token = page.Next
	}
	if !found && prefix != "" {
		return told{fmt.Sprintf("%s: nothing begins with %q", u, path.Base(prefix)), objstore.ErrNotExist}
	}
	return nil
}
