package node

import (
	"crypto/x509"
	"fmt"
	"log/slog"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/shardwell/shardwell/internal/config"
	"github.com/shardwell/shardwell/objstore"
	"github.com/shardwell/shardwell/objstore/dir"
	"github.com/shardwell/shardwell/objstore/s3"
)

// maxEndpoints bounds the endpoints that mounts brought with them.
const maxEndpoints = 64

// endpoint is an S3 endpoint beside that of the node. It stays when its last user
// goes, for the peers' sake; then the next user may change how it is read.
type endpoint struct {
	cfg   s3.Config
	users int
}

// s3Config returns how cfg reads a bucket of S3.
func s3Config(cfg config.Config, bucket string, log *slog.Logger) s3.Config {
	out := s3.Config{
		Bucket: bucket, Endpoint: cfg.Endpoint, Region: cfg.Region, Addressing: cfg.Addressing, CAFile: cfg.CAFile, Proxy: cfg.Proxy,
		RequesterPays: cfg.RequesterPays, RefuseLocal: cfg.RefuseLocal, Logger: log,
	}
	switch {
	case cfg.Anonymous:
		out.Credentials.Source = s3.SourceAnonymous
	case cfg.CredentialsFile != "" || cfg.Profile != "":
		out.Credentials.Source = s3.SourceFile
		out.Credentials.File, out.Credentials.Profile = cfg.CredentialsFile, cfg.Profile
	}
	return out
}

// checkOriginFiles looks at the files and directories that the options of the origin name. A CA file that
// cannot serve is an error. A directory that is not there may be mounted later: that is a line in the log.
func checkOriginFiles(cfg config.Config, log *slog.Logger) error {
	if cfg.CAFile != "" {
		pem, err := os.ReadFile(cfg.CAFile)
		if err != nil {
			return &config.Error{What: fmt.Sprintf("cannot read the CA file: %v", err), Where: "--ca-file"}
		}
		if !x509.NewCertPool().AppendCertsFromPEM(pem) {
			return &config.Error{What: fmt.Sprintf("%s holds no certificate (PEM)", cfg.CAFile), Where: "--ca-file", Do: "name a file with certificates, or drop it"}
		}
	}
	for _, root := range cfg.OriginDirs {
		var st unix.Statx_t
		// Without asking a server that may not answer: what is cached is served all the same.
		err := unix.Statx(unix.AT_FDCWD, root, unix.AT_NO_AUTOMOUNT|unix.AT_STATX_DONT_SYNC, unix.STATX_TYPE, &st)
		if err == nil && st.Mode&unix.S_IFMT != unix.S_IFDIR {
			err = unix.ENOTDIR
		}
		if err != nil {
			log.Warn("origin directory cannot be read; its readers get errors until it is there", "directory", root, "error", err)
		}
	}
	return nil
}

// bucketOf returns where a URI points under cfg, and the prefix within.
func bucketOf(cfg config.Config, u config.URI) (b objstore.Bucket, prefix string, err error) {
	if u.Dir == "" {
		origin, err := s3Config(cfg, u.Bucket, nil).Origin()
		return objstore.Bucket{Origin: origin, Name: u.Bucket}, u.Prefix, err
	}
	for _, root := range cfg.OriginDirs {
		if rest, ok := within(root, u.Dir); ok {
			return objstore.Bucket{Origin: dir.Origin(root)}, rest, nil
		}
	}
	return b, "", told{fmt.Sprintf("%s: not a directory that this node may read as an origin: start the node with --origin-dir %s", u, u.Dir), objstore.ErrInvalid}
}

// admit makes the endpoint of a mount known, with the options the mount has, until
// release is called. Those who use an endpoint at the same time reach it alike; their
// credentials are not the endpoint's ([identities]).
func (o *origins) admit(cfg config.Config, b objstore.Bucket) (release func(), err error) {
	nothing := func() {}
	if b.Name == "" {
		return nothing, nil // a directory: bucketOf found it among those that are allowed
	}
	c, own := s3Config(cfg, b.Name, o.log), s3Config(o.cfg, b.Name, o.log)
	c.Credentials = own.Credentials
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.isOwn(own, b.Origin) {
		if !sameWay(own, c) {
			return nil, otherOptions(b.Origin)
		}
		return nothing, nil
	}
	e := o.endpoints[b.Origin]
	switch {
	case e == nil:
		if err := o.makeRoom(); err != nil {
			return nil, err
		}
		e = &endpoint{cfg: c}
		o.endpoints[b.Origin] = e
	case sameWay(e.cfg, c):
	case e.users > 0:
		return nil, otherOptions(b.Origin)
	default:
		o.drop(b.Origin)
		e.cfg = c
	}
	e.users++
	return sync.OnceFunc(func() {
		o.mu.Lock()
		defer o.mu.Unlock()
		e.users--
	}), nil
}

func otherOptions(origin string) error {
	return &config.Error{
		What: fmt.Sprintf("this node reads %s with other options already", origin),
		Do:   "give the same region, addressing, proxy, payer and CA file, or unmount what uses it",
	}
}

// isOwn reports whether an origin is that of the node's own configuration.
func (o *origins) isOwn(own s3.Config, origin string) bool {
	at, err := own.Origin()
	return err == nil && at == origin
}

// makeRoom forgets an endpoint that nobody uses when there are too many. Caller holds mu.
func (o *origins) makeRoom() error {
	if len(o.endpoints) < maxEndpoints {
		return nil
	}
	for origin, e := range o.endpoints {
		if e.users == 0 {
			o.drop(origin)
			delete(o.endpoints, origin)
			return nil
		}
	}
	return fmt.Errorf("%d endpoints are in use, the most a node reads: unmount what you can spare", maxEndpoints)
}

// drop closes the buckets of an origin. What reads from them goes on. Caller holds mu.
func (o *origins) drop(origin string) {
	for k, s := range o.open {
		if k.bucket.Origin == origin {
			s.close()
			delete(o.open, k)
		}
	}
}

// sameWay reports whether two configurations reach an origin in the same way, whoever asks.
func sameWay(a, b s3.Config) bool {
	a.Logger, b.Logger = nil, nil
	a.Credentials, b.Credentials = s3.Credentials{}, s3.Credentials{}
	a.Endpoint, b.Endpoint = "", "" // equal by the origin
	a.Bucket, b.Bucket = "", ""
	return a == b
}

// s3Of returns how a bucket of S3 is read, if this node may read it.
func (o *origins) s3Of(b objstore.Bucket) (s3.Config, bool) {
	own := s3Config(o.cfg, b.Name, o.log)
	if o.isOwn(own, b.Origin) {
		return own, true
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	e, ok := o.endpoints[b.Origin]
	if !ok {
		return own, false
	}
	c := e.cfg
	c.Bucket = b.Name
	return c, true
}
