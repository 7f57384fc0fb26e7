package node

import (
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"
	"time"

	"github.com/shardwell/shardwell/fuse"
	"github.com/shardwell/shardwell/internal/config"
	"github.com/shardwell/shardwell/internal/control"
)

// plan works out what a request asks for, without touching anything.
func (n *Node) plan(req control.MountRequest) (*mount, error) { return planMount(n.cfg, req) }

// planMount is plan for a node of the configuration node.
func planMount(node config.Config, req control.MountRequest) (*mount, error) {
	cfg, err := configFor(node, req.Options)
	if err != nil {
		return nil, err
	}
	if cfg.OriginTimeout != node.OriginTimeout {
		return nil, &config.Error{What: fmt.Sprintf("this node waits %v for the origin on behalf of all its mounts", node.OriginTimeout),
			Do: "set --origin-timeout where the node is started"}
	}
	if cfg.UID < 0 {
		cfg.UID = int(req.Caller.UID)
	}
	if cfg.GID < 0 {
		cfg.GID = int(req.Caller.GID)
	}
	uri, err := config.ParseURI(req.URI)
	if err != nil {
		return nil, err
	}
	if !filepath.IsAbs(req.Dir) || filepath.Clean(req.Dir) != req.Dir {
		return nil, &config.Error{What: fmt.Sprintf("mountpoint %q is not an absolute path without . and ..", req.Dir)}
	}
	bucket, named, err := bucketOf(cfg, uri)
	if err != nil {
		return nil, err
	}
	return &mount{uri: uri.String(), bucket: bucket, named: named, prefix: dirPrefix(named), options: cfg, ended: make(chan struct{})}, nil
}

// dirPrefix returns what the keys of a directory begin with.
func dirPrefix(named string) string {
	if named == "" || strings.HasSuffix(named, "/") {
		return named
	}
	return named + "/"
}

// sameData reports whether two mounts show the same.
func (m *mount) sameData(o *mount) bool { return m.bucket == o.bucket && m.prefix == o.prefix }

// sameOptions reports whether two mounts show things in the same way.
func (m *mount) sameOptions(o *mount) bool {
	a, b := m.options, o.options
	return (m.who == nil) == (o.who == nil) && sameWay(s3Config(a, "", nil), s3Config(b, "", nil)) && a.UID == b.UID && a.GID == b.GID && a.FileMode == b.FileMode && a.DirMode == b.DirMode &&
		a.AllowOther == b.AllowOther && a.Consistency == b.Consistency && a.VerifyReads == b.VerifyReads &&
		a.CachePolicy == b.CachePolicy && a.Quota == b.Quota && a.PrefetchShards == b.PrefetchShards && a.TarView == b.TarView && a.BackgroundFill == b.BackgroundFill
}

// mountConfig is what of a session depends on the mount alone.
func mountConfig(m *mount) fuse.Config {
	cfg := m.options
	return fuse.Config{
		Bucket: m.bucket, Prefix: m.named, URI: m.uri, UTF8Keys: m.bucket.Name != "", // a directory has any
		Consistency: consistency(cfg.Consistency),
		UID:         uint32(cfg.UID), GID: uint32(cfg.GID), FileMode: fs.FileMode(cfg.FileMode), DirMode: fs.FileMode(cfg.DirMode),
		AllowOther: cfg.AllowOther, NoPassthrough: cfg.VerifyReads == "always",
	}
}

// fuseConfig is how a session of this node shows a mount.
func (n *Node) fuseConfig(m *mount) fuse.Config {
	c := mountConfig(m)
	if m.options.TarView {
		c.Tars = tarView{n, m.who}
	}
	c.Names, c.Data = asking{n.names, m.who}, data{n.cache, m.who}
	c.Prove = func() time.Duration { return n.proveWithin(m.who, m.bucket) }
	c.PrefetchBytes, c.NextFiles = n.prefetchBytes(), nextFiles(m.options.PrefetchShards)
	c.NameBudget, c.Buffers, c.Logger = time.Duration(n.cfg.OriginTimeout), n.buffers, n.log
	if m.area != nil {
		c.State, c.Mounter = m.area, mounter{n.keeping, m}
	}
	return c
}

func consistency(c config.Consistency) fuse.Consistency {
	switch c.Mode {
	case config.ConsistencyOpen:
		return fuse.Consistency{Mode: fuse.ModeOpen}
	case config.ConsistencyImmutable:
		return fuse.Consistency{Mode: fuse.ModeImmutable}
	}
	return fuse.Consistency{Mode: fuse.ModeTTL, TTL: c.TTL}
}
