package config

import (
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// The values of options that have few.
var (
	logLevels   = []string{"debug", "info", "warn", "error"}
	logFormats  = []string{"text", "json"}
	addressings = []string{"auto", "path", "virtual"}
	verifyReads = []string{"auto", "always"}

	backgroundFills = []string{FillAuto, FillOn, FillOff}
)

// maxPrefetchShards of one reader are fetched before they are opened: more are bounded by bytes long before.
const maxPrefetchShards = 256

// problem is what Validate finds: which options cannot work, and what to do.
// [Resolved] adds where they were set.
type problem struct {
	options []string // names as flags
	what    string
	do      string
}

func (p *problem) Error() string { return (&Error{What: p.what, Do: p.do}).Error() }

// Validate reports, in words meant for the user, the first thing that is wrong
// with values or that cannot work together. It does no I/O.
func (c Config) Validate() error {
	for _, check := range [...]func(Config) *problem{
		checkGeometry, checkCacheDirs, checkAddresses, checkExposure, checkMember, checkNode,
		checkOrigin, checkCredentials, checkMount, checkCSI,
	} {
		if p := check(c); p != nil {
			return p
		}
	}
	return nil
}

func checkGeometry(c Config) *problem {
	if err := c.Geometry().Validate(); err != nil {
		return &problem{[]string{"chunk-size", "block-size"}, err.Error(), ""}
	}
	return nil
}

func checkCacheDirs(c Config) *problem {
	for i, d := range c.CacheDirs {
		if d.Budget > 0 && d.Budget < c.ChunkSize {
			return &problem{[]string{"cache-dir"}, fmt.Sprintf("cache directory %s: a size of %s holds not even one chunk (%s)", d.Path, d.Budget, c.ChunkSize), "write it like " + d.Path + "=100Gi, or without =SIZE to use what the file system offers"}
		}
		for _, e := range c.CacheDirs[:i] {
			if e.Path == d.Path || within(e.Path, d.Path) || within(d.Path, e.Path) {
				return &problem{[]string{"cache-dir"}, fmt.Sprintf("cache directories %s and %s overlap", e.Path, d.Path), "give each a place of its own"}
			}
		}
	}
	return nil
}

// within reports whether path lies under dir.
func within(dir, path string) bool {
	rel, err := filepath.Rel(dir, path)
	return err == nil && rel != ".." && !strings.HasPrefix(rel, "../")
}

func checkAddresses(c Config) *problem {
	seen := map[string]string{}
	for _, a := range [...]struct{ name, value string }{{"bind", c.Bind}, {"peer-bind", c.PeerBind}, {"metrics-bind", c.MetricsBind}} {
		if a.name == "metrics-bind" && c.MetricsOff() {
			continue
		}
		addr, err := netip.ParseAddrPort(a.value)
		if err != nil {
			return &problem{[]string{a.name}, fmt.Sprintf("%q is not an address and port", a.value), "write it like 10.0.0.5:7946, 0.0.0.0:7946 or [::1]:7946"}
		}
		if other, taken := seen[a.value]; taken && addr.Port() != 0 {
			return &problem{[]string{other, a.name}, fmt.Sprintf("--%s and --%s are both %s", other, a.name, a.value), "give each a port of its own"}
		}
		seen[a.value] = a.name
	}
	if c.Advertise != "" && net.ParseIP(c.Advertise) == nil {
		return &problem{[]string{"advertise"}, fmt.Sprintf("%q is not an IP address", c.Advertise), "write it like 10.0.0.5; ports are those of --bind and --peer-bind"}
	}
	for _, j := range c.Join {
		host, port := j, ""
		if h, p, err := net.SplitHostPort(j); err == nil {
			host, port = h, p
		}
		if _, err := strconv.ParseUint(port, 10, 16); port != "" && err != nil || host == "" || strings.ContainsAny(host, " /@") {
			return &problem{[]string{"join"}, fmt.Sprintf("%q is not a host to join", j), "write it like node-1, node-1:7946 or 10.0.0.5:7946"}
		}
	}
	return nil
}

// checkExposure keeps a cluster without a secret on loopback: whoever reaches the
// ports could read and poison what it caches.
func checkExposure(c Config) *problem {
	if c.SecretFile != "" && c.Insecure {
		return &problem{[]string{"secret-file", "insecure"}, "--secret-file and --insecure exclude each other", "drop --insecure"}
	}
	if c.SecretFile != "" || c.Insecure {
		return nil
	}
	for _, a := range [...]struct{ name, value string }{{"bind", c.Bind}, {"peer-bind", c.PeerBind}} {
		if addr, err := netip.ParseAddrPort(a.value); err == nil && !addr.Addr().IsLoopback() {
			return &problem{[]string{a.name}, fmt.Sprintf("refuses to listen on %s without a secret", a.value), "give --secret-file, or --insecure on a network that you trust"}
		}
	}
	return nil
}

func checkMember(c Config) *problem {
	const maxLabelBytes = 63 // zone and rack travel in a member's record of 512 bytes
	for _, l := range [...]struct{ name, value string }{{"zone", c.Zone}, {"rack", c.Rack}, {"name", c.Name}} {
		if len(l.value) > maxLabelBytes {
			return &problem{[]string{l.name}, fmt.Sprintf("%q is longer than %d bytes", l.value, maxLabelBytes), "shorten it"}
		}
	}
	if c.Weight < 1 || c.Weight > 64 {
		return &problem{[]string{"weight"}, fmt.Sprintf("weight %d is not between 1 and 64", c.Weight), "use --no-owner for a node that is to own nothing"}
	}
	return nil
}

func checkNode(c Config) *problem {
	const minMemoryBytes = 64 << 20 // buffers of a few chunks in flight and the runtime
	if c.Memory != 0 && c.Memory < minMemoryBytes {
		return &problem{[]string{"memory"}, fmt.Sprintf("memory of %s is too little", c.Memory), "give 64Mi or more"}
	}
	if !slices.Contains(logLevels, c.LogLevel) {
		return &problem{[]string{"log-level"}, fmt.Sprintf("%q is no log level", c.LogLevel), "use debug, info, warn or error"}
	}
	if !slices.Contains(logFormats, c.LogFormat) {
		return &problem{[]string{"log-format"}, fmt.Sprintf("%q is no log format", c.LogFormat), "use text or json"}
	}
	// sun_path of Linux has 108 bytes; some are for the name under which the socket is made.
	const maxSocketBytes = 96
	if len(c.KeeperSocket) > maxSocketBytes {
		return &problem{[]string{"keeper-socket"}, fmt.Sprintf("path %q is longer than %d bytes", c.KeeperSocket, maxSocketBytes), "use a shorter path"}
	}
	if c.ControlSocket == "" || len(c.ControlSocket) > maxSocketBytes {
		return &problem{[]string{"control-socket"}, fmt.Sprintf("path %q is empty or longer than %d bytes", c.ControlSocket, maxSocketBytes), "use a shorter path"}
	}
	for _, d := range c.OriginDirs {
		if !filepath.IsAbs(d) {
			return &problem{[]string{"origin-dir"}, fmt.Sprintf("%q is not an absolute path", d), "every node must know it by the same path"}
		}
	}
	return nil
}

func checkOrigin(c Config) *problem {
	for _, u := range [...]struct{ name, value string }{{"endpoint", c.Endpoint}, {"proxy", c.Proxy}} {
		if u.value == "" {
			continue
		}
		f, _ := lookup(u.name)
		parsed, err := url.Parse(u.value)
		if err != nil || parsed.Scheme != "http" && parsed.Scheme != "https" || parsed.Host == "" {
			return &problem{[]string{u.name}, fmt.Sprintf("%q is not a URL", f.masked(u.value)), "write it like https://s3.example.com"}
		}
		if u.name == "endpoint" && (strings.Trim(parsed.Path, "/") != "" || parsed.RawQuery != "" || parsed.Fragment != "") {
			return &problem{[]string{u.name}, fmt.Sprintf("endpoint %q has a path or query", f.masked(u.value)), "give scheme, host and port only; the bucket belongs into s3://BUCKET/PREFIX"}
		}
		if u.name == "endpoint" && parsed.User != nil {
			return &problem{[]string{u.name}, fmt.Sprintf("endpoint %q carries credentials", f.masked(u.value)), "use --credentials-file or the environment"}
		}
	}
	if !slices.Contains(addressings, c.Addressing) {
		return &problem{[]string{"addressing"}, fmt.Sprintf("%q is no kind of addressing", c.Addressing), "use auto, path or virtual"}
	}
	if c.CAFile != "" && strings.HasPrefix(c.Endpoint, "http://") {
		return &problem{[]string{"ca-file", "endpoint"}, "--ca-file has no meaning for an endpoint without TLS", "use https:// or drop --ca-file"}
	}
	if c.MaxOriginRequests < 1 || c.MaxOriginRequests > 4096 {
		return &problem{[]string{"max-origin-requests"}, fmt.Sprintf("%d requests are not between 1 and 4096", c.MaxOriginRequests), ""}
	}
	if c.AuthTTL < Duration(time.Second) || c.AuthTTL > Duration(time.Hour) {
		return &problem{[]string{"auth-ttl"}, fmt.Sprintf("%s is not between 1s and 1h", c.AuthTTL), "a revoked permission is noticed that late"}
	}
	if c.OriginTimeout <= 0 {
		return &problem{[]string{"origin-timeout"}, "a timeout of 0 fails every read that the origin does not answer at once", "give 1s or more"}
	}
	return nil
}

func checkCredentials(c Config) *problem {
	if c.Anonymous {
		for _, o := range [...]struct {
			name string
			set  bool
		}{{"credentials-file", c.CredentialsFile != ""}, {"profile", c.Profile != ""}, {"requester-pays", c.RequesterPays}} {
			if o.set {
				return &problem{[]string{"anonymous", o.name}, "--anonymous and --" + o.name + " exclude each other", "drop one"}
			}
		}
	}
	return nil
}

func checkMount(c Config) *problem {
	const maxID = 1<<31 - 1
	for _, i := range [...]struct {
		name  string
		value int
	}{{"uid", c.UID}, {"gid", c.GID}} {
		if i.value < -1 || i.value > maxID {
			return &problem{[]string{i.name}, fmt.Sprintf("%d is no user or group", i.value), "give its number, or -1 for the one who mounts"}
		}
	}
	if !slices.Contains([]string{"epoch", "lru", "none"}, c.CachePolicy) {
		return &problem{[]string{"cache-policy"}, fmt.Sprintf("%q is no way to keep a dataset", c.CachePolicy), "use epoch, lru or none"}
	}
	if c.PrefetchShards < 0 || c.PrefetchShards > maxPrefetchShards {
		return &problem{[]string{"prefetch-shards"}, fmt.Sprintf("%d shards are not between 0 and %d", c.PrefetchShards, maxPrefetchShards), ""}
	}
	if !slices.Contains(backgroundFills, c.BackgroundFill) {
		return &problem{[]string{"background-fill"}, fmt.Sprintf("%q is no way to fill a dataset", c.BackgroundFill), "use auto, on or off"}
	}
	if !slices.Contains(verifyReads, c.VerifyReads) {
		return &problem{[]string{"verify-reads"}, fmt.Sprintf("%q is no way to verify reads", c.VerifyReads), "use auto or always"}
	}
	return nil
}

func checkCSI(c Config) *problem {
	const maxVolumes = 1000 // a node serves 1024 mounts
	if c.MaxVolumes < 1 || c.MaxVolumes > maxVolumes {
		return &problem{[]string{"max-volumes"}, fmt.Sprintf("%d volumes are not between 1 and %d", c.MaxVolumes, maxVolumes), ""}
	}
	for _, p := range [...]struct{ name, value string }{{"kubelet-dir", c.KubeletDir}, {"registration-path", c.RegistrationPath}} {
		if p.value != "" && (!filepath.IsAbs(p.value) || filepath.Clean(p.value) != p.value || p.value == "/") {
			return &problem{[]string{p.name}, fmt.Sprintf("%q is not an absolute path without . and ..", p.value), ""}
		}
	}
	return nil
}

// MetricsOff reports whether metrics are not to be served.
func (c Config) MetricsOff() bool { return c.MetricsBind == "" || c.MetricsBind == "off" }
