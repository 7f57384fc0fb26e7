package node

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/shardwell/shardwell/cache"
	"github.com/shardwell/shardwell/fuse"
	"github.com/shardwell/shardwell/internal/chunk"
	"github.com/shardwell/shardwell/internal/config"
	"github.com/shardwell/shardwell/internal/control"
	"github.com/shardwell/shardwell/objstore"
	"github.com/shardwell/shardwell/objstore/s3"
)

// lookAgain is after how long credentials that lie in a file are looked at again: by then it
// may hold somebody else's.
const lookAgain = 30 * time.Second

// principal is on whose behalf a mount or a command asks, if not the node's own; nil is the
// node itself. Its credentials may be replaced while it is used.
type principal struct {
	n    *Node
	look func(context.Context) (chunk.Identity, s3.Credentials, error) // nil: they change by adopt only

	looking sync.Mutex // by one at a time; never taken under mu

	mu     sync.Mutex
	holder *holder
	looked time.Time
	closed bool
}

// configFor returns the node's configuration as the options of a request change it. Options that
// say whose the request is take the place of all that the node's own say of that.
func (n *Node) configFor(options map[string]string) (config.Config, error) {
	return configFor(n.cfg, options)
}

// configFor is that of a node with the configuration base.
func configFor(base config.Config, options map[string]string) (config.Config, error) {
	_, file := options["credentialsFile"]
	_, profile := options["profile"]
	text, said := options["anonymous"]
	anonymous, _ := strconv.ParseBool(text) // an error is found below
	switch {
	case file && !profile:
		base.Profile = ""
	case !file && !profile && anonymous:
		base.CredentialsFile, base.Profile = "", ""
	}
	if (file || profile) && !said {
		base.Anonymous = false
	}
	return base.WithAttributes(options)
}

// identify finds out on whose behalf a request asks for a bucket: the credentials that came
// with it, or those that its options name where these are not the node's own. Who gets a principal closes it.
func (n *Node) identify(ctx context.Context, cfg config.Config, given control.Credentials, b objstore.Bucket) (*principal, error) {
	c := s3Config(cfg, b.Name, n.log)
	switch {
	case b.Name == "" && given.Given():
		return nil, &config.Error{What: "a directory is read with the node's own rights, not with credentials", Do: "drop them"}
	case b.Name == "":
		return nil, nil
	case given.Given():
		p, err := n.identifyGiven(ctx, c, cfg, given)
		if err == nil {
			n.admitForeign(ctx, b)
		}
		return p, err
	case c.Credentials == s3Config(n.cfg, b.Name, n.log).Credentials:
		return nil, nil
	}
	p := &principal{n: n, look: func(ctx context.Context) (chunk.Identity, s3.Credentials, error) {
		keys, err := c.Credentials.Keys(ctx, c)
		return n.origins.ids.ofKeys(keys), keys, err
	}}
	id, keys, err := p.look(ctx)
	if err != nil {
		return nil, err
	}
	n.admitForeign(ctx, b)
	return p, p.take(id, keys, "")
}

// identifyGiven is identify for credentials that came with a request.
func (n *Node) identifyGiven(ctx context.Context, c s3.Config, cfg config.Config, given control.Credentials) (*principal, error) {
	is := n.origins.ids
	refuse := func(what, do string) (*principal, error) { return nil, &config.Error{What: what, Do: do} }
	switch {
	case cfg.Anonymous && !n.cfg.Anonymous, cfg.CredentialsFile != n.cfg.CredentialsFile, cfg.Profile != n.cfg.Profile:
		return refuse("credentials came with the request, and its options name others", "give one of both")
	case given.WebIdentityToken != "" && (given.AccessKey != "" || given.SecretKey != "" || given.SessionToken != ""):
		return refuse("both keys and a web identity token came with the request", "give one of both")
	case given.WebIdentityToken == "" && (given.RoleARN != "" || given.STSEndpoint != ""):
		return refuse("a role came with the request, but no web identity token", "give the token")
	case given.WebIdentityToken == "" && (given.AccessKey == "" || given.SecretKey == ""):
		return refuse("an access key needs a secret key, and the other way round", "give both")
	}
	p := &principal{n: n}
	if given.WebIdentityToken == "" {
		keys := s3.Credentials{Source: s3.SourceStatic, AccessKey: given.AccessKey, SecretKey: given.SecretKey, SessionToken: given.SessionToken}
		return p, p.take(is.ofKeys(keys), keys, "")
	}
	web := s3.Credentials{Source: s3.SourceWebIdentity, Token: s3.NewToken(given.WebIdentityToken), RoleARN: given.RoleARN, STSEndpoint: given.STSEndpoint}
	id := is.ofToken(web, given.WebIdentityToken)
	if !is.believes(id, given.WebIdentityToken) {
		if _, err := web.Keys(ctx, c); err != nil {
			return nil, fmt.Errorf("exchange the web identity token: %w", err)
		}
	}
	return p, p.take(id, web, given.WebIdentityToken)
}

// take replaces the credentials.
func (p *principal) take(id chunk.Identity, c s3.Credentials, token string) error {
	h, dropped, err := p.n.origins.ids.acquire(id, c, token)
	p.n.origins.forgetIdentities(dropped)
	if err != nil {
		return err
	}
	p.replace(h)
	return nil
}

// replace hands over one use of h, and gives back that of what was there before.
func (p *principal) replace(h *holder) {
	p.mu.Lock()
	old := p.holder
	if p.closed {
		old = h
	} else {
		p.holder, p.looked = h, time.Now()
	}
	p.mu.Unlock()
	if old != nil {
		p.n.origins.ids.release(old)
	}
}

// adopt has p ask with the credentials of o from now on.
func (p *principal) adopt(o *principal) {
	if p == nil || o == nil {
		return
	}
	o.mu.Lock()
	h := p.n.origins.ids.again(o.holder)
	o.mu.Unlock()
	p.replace(h)
}

// identity names p as of now.
func (p *principal) identity() chunk.Identity {
	if p == nil {
		return ""
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.holder.id
}

// access is identity, of credentials that were looked at a moment ago.
func (p *principal) access(ctx context.Context) chunk.Access {
	if p == nil {
		return chunk.Access{}
	}
	if p.look != nil && p.old() && p.looking.TryLock() {
		defer p.looking.Unlock()
		id, c, err := p.look(ctx)
		if err == nil {
			err = p.take(id, c, "")
		}
		if err != nil { // the origin says whether the ones before are still good
			p.n.log.Warn("credentials of a mount cannot be read again", "error", err)
		}
	}
	return chunk.Access{Identity: p.identity()}
}

func (p *principal) old() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return time.Since(p.looked) > lookAgain
}

// close gives the credentials back. It may be called again.
func (p *principal) close() {
	if p == nil {
		return
	}
	p.mu.Lock()
	h := p.holder
	if p.closed {
		h = nil
	}
	p.closed = true
	p.mu.Unlock()
	if h != nil {
		p.n.origins.ids.release(h)
	}
}

// proveWithin is how old a proof may be that who asks may read an object of a bucket. In the
// node's own name nothing is to be proven where nobody else reads: all that is cached was
// fetched in it, and 0 says so.
func (n *Node) proveWithin(who *principal, b objstore.Bucket) time.Duration {
	if who == nil && !n.foreign.has(b) {
		return 0
	}
	return time.Duration(n.cfg.AuthTTL)
}

// admitForeign lets all members know that others than the node read a bucket, before these
// get any of its bytes.
func (n *Node) admitForeign(ctx context.Context, b objstore.Bucket) {
	if n.foreign.add(b) {
		ctx, cancel := context.WithTimeout(ctx, tellPatience)
		defer cancel()
		n.tell(ctx)
	}
}

// asking is what the names of a node are to a principal.
type asking struct {
	names objstore.Names
	who   *principal
}

// Head implements objstore.Names.
func (a asking) Head(ctx context.Context, q objstore.Query, key string) (objstore.Info, time.Duration, error) {
	q.Access = a.who.access(ctx)
	return a.names.Head(ctx, q, key)
}

// List implements objstore.Names.
func (a asking) List(ctx context.Context, q objstore.Query, req objstore.ListRequest) (objstore.Page, time.Duration, error) {
	q.Access = a.who.access(ctx)
	return a.names.List(ctx, q, req)
}

// data is the cache as the file system of a principal wants it.
type data struct {
	c   *cache.Cache
	who *principal
}

// Open implements fuse.Data.
func (d data) Open(obj chunk.Object) (fuse.File, error) {
	f, err := d.c.OpenAs(obj, d.who.identity)
	if err != nil {
		return nil, err // not a nil file in an interface
	}
	return f, nil
}
