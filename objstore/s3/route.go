package s3

import (
	"context"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"
	"github.com/minio/minio-go/v7/pkg/s3utils"
)

// route is a way to the bucket. It is never changed.
type route struct {
	core    *minio.Core // nil where minio-go would send requests elsewhere
	scheme  string
	host    string // of the endpoint, without the bucket
	region  string
	virtual bool
}

// start sets the first route.
func (s *Store) start() (*Store, error) {
	region := s.cfg.Region
	if region == "" && s.base != nil {
		region = s3utils.GetRegionFromURL(*s.base)
	}
	if region == "" {
		region = regionFromEnv()
	}
	r, err := s.newRoute(region, s.virtualAtFirst())
	if err != nil {
		return nil, err
	}
	s.route.Store(r)
	return s, nil
}

// virtualHostSuffixes are endpoints that demand or prefer the bucket in the host
// name, besides those that minio-go knows (AWS, Google, OSS): Huawei OBS, Tencent
// COS, Volcengine TOS, and OSS by other names.
var virtualHostSuffixes = [...]string{".myhuaweicloud.com", ".myqcloud.com", ".volces.com", ".aliyuncs.com"}

// virtualAtFirst chooses the addressing before the server was heard.
func (s *Store) virtualAtFirst() bool {
	switch {
	case s.cfg.Addressing != AddressAuto:
		return s.cfg.Addressing == AddressVirtual
	case s.base == nil:
		return !strings.Contains(s.cfg.Bucket, ".") // the certificate covers one label
	case s.base.Scheme == "https" && strings.Contains(s.cfg.Bucket, "."):
		return false
	case s3utils.IsVirtualHostSupported(*s.base, s.cfg.Bucket):
		return true
	}
	for _, suffix := range virtualHostSuffixes {
		if strings.HasSuffix(s.base.Hostname(), suffix) {
			return true
		}
	}
	return false
}

// newRoute makes a route. For AWS the region chooses the host.
func (s *Store) newRoute(region string, virtual bool) (*route, error) {
	if region == "" {
		region = defaultRegion
	}
	r := &route{scheme: "https", region: region, virtual: virtual}
	if s.base == nil || isPlainAWS(s.base.Hostname()) {
		r.host = awsHost(region)
	} else {
		r.scheme, r.host = s.base.Scheme, s.base.Host
	}
	core, err := s.newCore(r, credentials.New(forCore{s.id}))
	if err != nil {
		return nil, invalid("endpoint %q: %v", r.host, err)
	}
	// minio-go has a table of AWS's regions, and takes one that it does not know
	// for us-east-1. A presigned URL, made with other keys, shows where it sends requests.
	probe, err := s.newCore(r, credentials.NewStaticV4("probe", "probe", ""))
	if err != nil {
		return nil, invalid("endpoint %q: %v", r.host, err)
	}
	where, err := probe.Presign(context.Background(), http.MethodGet, s.cfg.Bucket, "k", time.Minute, nil)
	if ours := r.url(s.cfg.Bucket, "k", nil); err == nil && where.Host == ours.Host && where.Path == ours.Path {
		r.core = core
	}
	return r, nil
}

// awsHost returns the name under which a region of AWS serves S3.
func awsHost(region string) string {
	host := "s3." + region + ".amazonaws.com"
	if strings.HasPrefix(region, "cn-") {
		host += ".cn"
	}
	return host
}

// newCore returns minio-go's client for a route.
func (s *Store) newCore(r *route, creds *credentials.Credentials) (*minio.Core, error) {
	lookup := minio.BucketLookupPath
	if r.virtual {
		lookup = minio.BucketLookupDNS
	}
	core, err := minio.NewCore(r.host, &minio.Options{
		Creds:        creds,
		Secure:       r.scheme == "https",
		Transport:    s.tap,
		Region:       r.region,
		BucketLookup: lookup,
		MaxRetries:   1,
	})
	if err != nil {
		return nil, err
	}
	core.SetS3EnableDualstack(false)
	core.SetAppInfo("shardwell", "1")
	return core, nil
}

// isPlainAWS reports whether a host is one of the names that stand for S3 in a
// region, so that the region may choose another; FIPS, dual-stack, private links
// and accelerated names are kept as they are.
func isPlainAWS(host string) bool {
	rest, ok := strings.CutSuffix(host, ".amazonaws.com")
	if !ok {
		rest, ok = strings.CutSuffix(host, ".amazonaws.com.cn")
	}
	if !ok {
		return false
	}
	region, ok := strings.CutPrefix(rest, "s3.")
	return rest == "s3" || (ok && !strings.Contains(region, "."))
}

// reroute replaces the route r.
func (s *Store) reroute(r *route, region string, virtual bool) bool {
	next, err := s.newRoute(region, virtual)
	if err != nil {
		return false
	}
	if s.route.CompareAndSwap(r, next) {
		s.log.Info("s3: the server wants another address", "bucket", s.cfg.Bucket, "host", next.host,
			"region", region, "virtual_host", virtual)
	}
	return true
}

// regionName is what we accept as a region from a server, since it may become
// part of a host name.
var regionName = regexp.MustCompile(`^[a-z0-9][a-z0-9-]{1,40}$`)

// url returns the address of a key. The path is written out, not joined, so
// that nothing cleans "a//b" or "..".
func (r *route) url(bucket, key string, params url.Values) *url.URL {
	u := &url.URL{Scheme: r.scheme, Host: r.host, Path: "/" + key, RawPath: "/" + s3utils.EncodePath(key)}
	if r.virtual {
		u.Host = bucket + "." + r.host
	} else {
		u.Path, u.RawPath = "/"+bucket+u.Path, "/"+bucket+u.RawPath
	}
	u.RawQuery = strings.ReplaceAll(params.Encode(), "+", "%20")
	return u
}
