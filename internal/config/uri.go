package config

import (
	"fmt"
	"path"
	"path/filepath"
	"strings"

	"github.com/shardwell/shardwell/internal/chunk"
)

// URI names objects: those of a bucket under a prefix, or the files under a directory.
type URI struct {
	Bucket string // "" for a directory
	Prefix string // within the bucket: "" or without a leading slash; as written otherwise
	Dir    string // absolute path of the directory, "" for a bucket
}

// ParseURI reads s3://BUCKET[/PREFIX] or file:///DIR. Nothing in a prefix is an
// escape: keys are written as they are. Errors are in words meant for the user.
func ParseURI(s string) (URI, error) {
	fail := func(what, do string) (URI, error) {
		return URI{}, &Error{What: fmt.Sprintf("%q %s", s, what), Do: do}
	}
	if strings.ContainsAny(s, "\x00\n\r") {
		return fail("contains a control character", "")
	}
	scheme, rest, found := strings.Cut(s, "://")
	switch {
	case !found:
		return fail("is not a URI", "write s3://BUCKET/PREFIX or file:///DIR")
	case scheme == "file":
		if !path.IsAbs(rest) || filepath.Clean(rest) != strings.TrimSuffix(rest, "/") && rest != "/" {
			return fail("does not name a directory by its absolute path", "write file:///DIR")
		}
		return URI{Dir: filepath.Clean(rest)}, nil
	case scheme != "s3":
		return fail("has an unknown scheme", "write s3://BUCKET/PREFIX or file:///DIR")
	}
	bucket, prefix, _ := strings.Cut(rest, "/")
	switch {
	case bucket == "":
		return fail("names no bucket", "write s3://BUCKET/PREFIX")
	case len(bucket) > chunk.MaxBucketBytes || strings.ContainsAny(bucket, " ?#@\\"):
		return fail("has a bucket name that cannot be one", "write s3://BUCKET/PREFIX")
	case len(prefix) > chunk.MaxKeyBytes:
		return fail(fmt.Sprintf("has a prefix of more than %d bytes", chunk.MaxKeyBytes), "")
	}
	return URI{Bucket: bucket, Prefix: prefix}, nil
}

func (u URI) String() string {
	if u.Dir != "" {
		return "file://" + u.Dir
	}
	return "s3://" + u.Bucket + "/" + u.Prefix
}
