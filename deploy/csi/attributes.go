package csi

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"google.golang.org/grpc/codes"

	"github.com/shardwell/shardwell/internal/config"
)

// Attributes of a volume that are the driver's own; all others are options of a mount by
// their names in YAML.
const (
	attrBucket       = "bucketName"           // the bucket
	attrPrefix       = "prefix"               // within the bucket
	attrURI          = "uri"                  // instead of these two: s3://BUCKET/PREFIX, or file:///DIR
	attrMountOptions = "mountOptions"         // as of mount(8), for inline volumes, which have no other
	attrAuth         = "authenticationSource" // driver, secret or pod
	attrCacheSize    = "cacheSize"            // another name for quota
	attrRole         = "roleArn"              // with authenticationSource pod
)

// kubePrefix opens the names of attributes that the kubelet and provisioners add.
const (
	kubePrefix        = "csi.storage.k8s.io/"
	kubeProvisioner   = "storage.kubernetes.io/"
	kubeNamespace     = kubePrefix + "pod.namespace"
	kubeServiceAcct   = kubePrefix + "serviceAccount.name"
	kubeTokens        = kubePrefix + "serviceAccount.tokens"
	maxAttributes     = 128 // of one volume
	maxAttributeBytes = 64 << 10
)

// closed are options of a mount that name files of the node or send its requests elsewhere:
// they are the administrator's, not a volume's.
var closed = []string{"caFile", "credentialsFile", "profile", "proxy", "originTimeout", "allowOther", "refuseLocal"}

// ignored are flags of mount(8) that say what a volume is in any case.
var ignored = []string{"ro", "nosuid", "nodev", "noatime", "relatime", "nodiratime", "noexec"}

// split sorts the attributes of a volume into those of the driver, and options of the mount.
func split(attributes map[string]string) (own, options map[string]string, err error) {
	own, options = map[string]string{}, map[string]string{}
	total := 0
	for key, value := range attributes {
		total += len(key) + len(value)
	}
	if len(attributes) > maxAttributes || total > maxAttributeBytes {
		return nil, nil, refused(codes.InvalidArgument, "more than %d volume attributes, or %d bytes of them", maxAttributes, maxAttributeBytes)
	}
	for _, key := range slices.Sorted(maps.Keys(attributes)) {
		value := attributes[key]
		switch {
		case strings.HasPrefix(key, kubePrefix), strings.HasPrefix(key, kubeProvisioner):
		case slices.Contains([]string{attrBucket, attrPrefix, attrURI, attrMountOptions, attrAuth, attrRole}, key):
			if strings.ContainsAny(value, "\x00\n\r") {
				return nil, nil, refused(codes.InvalidArgument, "volume attribute %q holds a control character", key)
			}
			own[key] = value
		case key == attrCacheSize:
			if _, both := attributes["quota"]; both {
				return nil, nil, refused(codes.InvalidArgument, "volume attributes %q and %q mean the same: give one", attrCacheSize, "quota")
			}
			options["quota"] = value
		case slices.Contains(closed, key):
			return nil, nil, refused(codes.InvalidArgument, "volume attribute %q is the administrator's: a volume cannot set it", key)
		case key == "bucket":
			return nil, nil, refused(codes.InvalidArgument, "unknown volume attribute %q: did you mean %q?", key, attrBucket)
		default:
			options[key] = value
		}
	}
	return own, options, nil
}

// addMountOptions adds what was written as options of mount(8): uid=1000,file-mode=0440. Names
// may be those of flags or of attributes.
func addMountOptions(options map[string]string, flags []string) error {
	for _, flag := range flags {
		for one := range strings.SplitSeq(flag, ",") {
			one = strings.TrimLeft(strings.TrimSpace(one), "-")
			if one == "" || slices.Contains(ignored, one) {
				continue
			}
			name, value, found := strings.Cut(one, "=")
			if !found {
				value = "true"
			}
			key := camel(name)
			switch have, twice := options[key]; {
			case name == "rw":
				return refused(codes.InvalidArgument, "mount option %q: volumes are read-only", name)
			case slices.Contains(closed, key):
				return refused(codes.InvalidArgument, "mount option %q is the administrator's: a volume cannot set it", name)
			case twice && have != value:
				return refused(codes.InvalidArgument, "mount option %q is given twice, as %q and %q", name, have, value)
			}
			options[key] = value
		}
	}
	return nil
}

// camel turns the name of a flag into that of an attribute: file-mode into fileMode.
func camel(name string) string {
	parts := strings.Split(name, "-")
	for i, p := range parts[1:] {
		if p != "" {
			parts[i+1] = strings.ToUpper(p[:1]) + p[1:]
		}
	}
	return strings.Join(parts, "")
}

// uriOf returns what a volume shows.
func uriOf(own map[string]string) (string, error) {
	uri, bucket, prefix := own[attrURI], own[attrBucket], own[attrPrefix]
	switch {
	case uri != "" && (bucket != "" || prefix != ""):
		return "", refused(codes.InvalidArgument, "volume attribute %q excludes %q and %q: give one or the others", attrURI, attrBucket, attrPrefix)
	case uri == "" && bucket == "":
		return "", refused(codes.InvalidArgument, "volume attribute %q is missing: it names the bucket to show", attrBucket)
	case uri == "" && strings.Contains(bucket, "/"):
		return "", refused(codes.InvalidArgument, "volume attribute %q: %q is no bucket: what lies within goes into %q", attrBucket, bucket, attrPrefix)
	case uri == "":
		uri = "s3://" + bucket + "/" + strings.TrimPrefix(prefix, "/")
	}
	u, err := config.ParseURI(uri)
	if err != nil {
		return "", err
	}
	if u.Prefix != "" && !strings.HasSuffix(u.Prefix, "/") {
		u.Prefix += "/"
	}
	return u.String(), nil
}

// complete adds what every volume has, checks the options, and returns them in one spelling, so
// that equal volumes have equal options.
func complete(options map[string]string, group string) (map[string]string, error) {
	if group != "" {
		n, err := strconv.ParseUint(group, 10, 31)
		if err != nil {
			return nil, refused(codes.InvalidArgument, "volume_mount_group %q is not the number of a group", group)
		}
		if have, given := options["gid"]; given && have != group {
			return nil, refused(codes.InvalidArgument, "volume attribute gid=%s and the Pod's fsGroup %d contradict each other: drop one", have, n)
		}
		options["gid"] = fmt.Sprint(n)
	}
	for _, id := range []string{"uid", "gid"} {
		if have, given := options[id]; !given || have == "-1" {
			options[id] = "0"
		}
	}
	options["allowOther"] = "true" // a Pod's user is not the one who mounts
	if _, err := config.Default().WithAttributes(options); err != nil {
		return nil, err
	}
	return options, nil
}
