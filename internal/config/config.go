// Package config is the one configuration of Shardwell and its four views:
// flags, environment, YAML, and the attributes of a volume.
//
// It promises that every option has one name, spelled by the custom of each
// view (--cache-dir, SHARDWELL_CACHE_DIR, cacheDir), one meaning, which is the
// comment on its field in [Config], and one way to be wrong: an error in one line that says
// what, where it was set, and what to do. Values remember where they come
// from. Secrets are never values here, only paths of files that hold them;
// passwords inside URLs are masked when they are shown.
//
// What the options do is left to the packages that get them. It is a part.
package config

import (
	"time"

	"github.com/shardwell/shardwell/internal/chunk"
)

// Config is everything that a user can set. The comment of a field is the manual of the
// option; the tag gives its name as a flag and its scopes: who may set
// it (node: the daemon; origin: the daemon, a mount, a listing; mount: a mount; csi: the CSI driver).
type Config struct {
	// Directory on a local disk that holds cached data, as DIR or DIR=SIZE. May be given several times. Without SIZE it uses what the file system offers.
	CacheDirs []CacheDir `name:"cache-dir" scope:"node"`
	// Members to join, as HOST or HOST:PORT, separated by commas. A name may stand for many addresses.
	Join []string `name:"join" scope:"node"`
	// Address and UDP and TCP port on which this node gossips with the others.
	Bind string `name:"bind" scope:"node"`
	// Address and TCP port on which this node serves other nodes.
	PeerBind string `name:"peer-bind" scope:"node"`
	// Address that other nodes use to reach this one, as HOST. Default: the address of --bind, or of the first interface when that is a wildcard.
	Advertise string `name:"advertise" scope:"node"`
	// File with the cluster's secrets, one a line, each of 32 characters or more; the first signs, all are accepted.
	SecretFile string `name:"secret-file" scope:"node"`
	// Allow a cluster without a secret beyond loopback. Whoever reaches its ports reads what it caches.
	Insecure bool `name:"insecure" scope:"node"`
	// Name of this node as others see it. Default: the host name.
	Name string `name:"name" scope:"node"`
	// Zone of this node; copies prefer not to cross zones.
	Zone string `name:"zone" scope:"node"`
	// Rack of this node; copies prefer not to cross racks.
	Rack string `name:"rack" scope:"node"`
	// Share of the data that this node owns for what it has room for, relative to other nodes: 1 to 64.
	Weight int `name:"weight" scope:"node"`
	// Read through the cluster and own nothing.
	NoOwner bool `name:"no-owner" scope:"node"`
	// Unit of ownership and of one origin request. One value for the whole cluster.
	ChunkSize Bytes `name:"chunk-size" scope:"node"`
	// Unit of presence and checksums. One value for the whole cluster; a power of two.
	BlockSize Bytes `name:"block-size" scope:"node"`
	// Objects up to this size belong to one owner as a whole; larger ones chunk by chunk. One value for the whole cluster.
	PlaceWhole Bytes `name:"place-whole" scope:"node"`
	// Memory that the node may use. Default (0): the limit of its cgroup, or a quarter of the machine's memory.
	Memory Bytes `name:"memory" scope:"node"`
	// Bytes that are always left free on the file system of a cache directory.
	MinFree Bytes `name:"min-free" scope:"node"`
	// Part of each cache directory that is kept for data passing through to other nodes. Default (0): 5 % of its size, and 16Gi in directories from 128Gi on; less in smaller ones, 1/64 below 18Gi.
	Transit Bytes `name:"transit" scope:"node"`
	// Bytes a second at which each node hands on what it does not own any more, after the cluster has changed, and takes what it owns by then.
	MoveRate Bytes `name:"move-rate" scope:"node"`
	// How long one call to the disk of a cache directory may take before reads go elsewhere.
	DiskTimeout Duration `name:"disk-timeout" scope:"node"`
	// Bytes a second at which cached data is read and checked in the background, when the disk is not busy. 0: never.
	ScrubRate Bytes `name:"scrub-rate" scope:"node"`
	// How long a member that stopped keeps its share of the data.
	RestartGrace Duration `name:"restart-grace" scope:"node"`
	// Address and port of metrics and health checks, or "off".
	MetricsBind string `name:"metrics-bind" scope:"node"`
	// Unix socket on which the node takes commands.
	ControlSocket string `name:"control-socket" scope:"node,client,csi"`
	// Unix socket of the keeper that holds the mounts while this node is restarted, or "systemd" for the descriptor store of the service. Default: none; mounts end with the node.
	KeeperSocket string `name:"keeper-socket" scope:"node"`
	// Lowest level that is logged: debug, info, warn or error.
	LogLevel string `name:"log-level" scope:"node,csi"`
	// Format of log lines: text or json.
	LogFormat string `name:"log-format" scope:"node,csi"`

	// URL of the S3 endpoint. Default: that of AWS in the region.
	Endpoint string `name:"endpoint" scope:"node,origin" secret:"url"`
	// Region of the bucket. Default: asked of the endpoint.
	Region string `name:"region" scope:"node,origin"`
	// Where the bucket's name goes: auto, path or virtual (host).
	Addressing string `name:"addressing" scope:"node,origin"`
	// File with certificates (PEM) to trust for the endpoint besides the system's.
	CAFile string `name:"ca-file" scope:"node,origin"`
	// URL of a proxy for the endpoint. Default: HTTPS_PROXY, HTTP_PROXY and NO_PROXY.
	Proxy string `name:"proxy" scope:"node,origin" secret:"url"`
	// Refuse to connect to addresses of this machine and its link, whatever name the endpoint has.
	RefuseLocal bool `name:"refuse-local" scope:"origin"`
	// Ask without credentials, as for public buckets.
	Anonymous bool `name:"anonymous" scope:"node,origin"`
	// Pay for requests to buckets whose owner asks for it.
	RequesterPays bool `name:"requester-pays" scope:"node,origin"`
	// Credentials file in the format of the AWS command line. Default: the standard chain (environment, ~/.aws, web identity, instance).
	CredentialsFile string `name:"credentials-file" scope:"node,origin"`
	// Profile within the credentials file.
	Profile string `name:"profile" scope:"node,origin"`
	// Directory that every node has mounted and that may be read as an origin by file:// URIs. May be given several times.
	OriginDirs []string `name:"origin-dir" scope:"node"`
	// Most bytes a second that the cluster takes from the origin. 0: no limit.
	MaxOriginRate Bytes `name:"max-origin-rate" scope:"node"`
	// Most bytes a second that this node sends to other nodes. 0: no limit.
	MaxUpload Bytes `name:"max-upload" scope:"node"`
	// Most requests that this node has at the origin at a time.
	MaxOriginRequests int `name:"max-origin-requests" scope:"node"`
	// How long it holds that a mount with credentials of its own was allowed to read an object at the origin.
	AuthTTL Duration `name:"auth-ttl" scope:"node"`
	// How long a read is tried again while the origin fails, before it ends with an error.
	OriginTimeout Duration `name:"origin-timeout" scope:"node,origin"`

	// How a dataset is kept: epoch (what is cached stays while it is mounted), lru (the least recently used goes first) or none (nothing is kept on disk).
	CachePolicy string `name:"cache-policy" scope:"node,mount"`
	// Most bytes of a dataset that the caches of the whole cluster keep. 0: no limit.
	Quota Bytes `name:"quota" scope:"node,mount"`
	// How many shards ahead of its readers a mount fetches, where the next ones are known: by a plan, or by numbers in names that each process opens. 0: none.
	PrefetchShards int `name:"prefetch-shards" scope:"node,mount"`
	// Whether nodes fetch their own shares of a mounted dataset while nothing else is fetched: auto (once files are read in order), on or off.
	BackgroundFill string `name:"background-fill" scope:"node,mount"`
	// How old an answer about a name may be: ttl=DURATION, open (asked at each open) or immutable (never asked again).
	Consistency Consistency `name:"consistency" scope:"node,mount"`
	// Owner of the files of a mount. Default (-1): the user who mounts.
	UID int `name:"uid" scope:"node,mount"`
	// Group of the files of a mount. Default (-1): the group of the user who mounts.
	GID int `name:"gid" scope:"node,mount"`
	// Permissions of files, octal.
	FileMode Mode `name:"file-mode" scope:"node,mount"`
	// Permissions of directories, octal.
	DirMode Mode `name:"dir-mode" scope:"node,mount"`
	// Let other users than the one who mounts read the mount.
	AllowOther bool `name:"allow-other" scope:"node,mount"`
	// Show the members of each DIR/x.tar as files in DIR/.tar/x.tar, without unpacking it.
	TarView bool `name:"tar-view" scope:"node,mount"`
	// When cached data is checked: auto (complete files are read by the kernel, without a check) or always (every read; no passthrough).
	VerifyReads string `name:"verify-reads" scope:"node,mount"`

	// Name of this node in Kubernetes. Default: the host name.
	NodeID string `name:"node-id" scope:"csi"`
	// Directory in which the kubelet keeps its Pods and plugins.
	KubeletDir string `name:"kubelet-dir" scope:"csi"`
	// Make the driver known to the kubelet by itself, without a registrar beside it.
	SelfRegister bool `name:"self-register" scope:"csi"`
	// Path of the driver's socket as the kubelet sees it. Default: the one on which the driver listens.
	RegistrationPath string `name:"registration-path" scope:"csi"`
	// Most volumes that a node has at a time: 1 to 1000.
	MaxVolumes int `name:"max-volumes" scope:"csi"`
	// Whose credentials volumes may read with, some of driver, secret and pod, separated by commas. Default: all.
	AuthSources []string `name:"auth-sources" scope:"csi"`
	// Endpoints that a volume may name in its attributes, separated by commas.
	AllowEndpoints []string `name:"allow-endpoint" scope:"csi"`
	// Let the Secret of a volume name an endpoint on this machine or its link, as metadata services of clouds are.
	AllowLocalEndpoints bool `name:"allow-local-endpoints" scope:"csi"`
	// Audience of the service account tokens with which volumes read as their Pod. Default: that of AWS, or of the only token.
	TokenAudience string `name:"token-audience" scope:"csi"`
	// URL of the STS that exchanges such tokens. Default: that of AWS in the region of the volume.
	STSEndpoint string `name:"sts-endpoint" scope:"csi"`
}

// Values of Config.BackgroundFill.
const (
	FillAuto = "auto"
	FillOn   = "on"
	FillOff  = "off"
)

// Default returns the values of a node that was told nothing.
func Default() Config {
	return Config{
		Bind:              "127.0.0.1:7946",
		PeerBind:          "127.0.0.1:7947",
		Weight:            1,
		ChunkSize:         chunk.DefaultChunkBytes,
		BlockSize:         chunk.DefaultBlockBytes,
		PlaceWhole:        1 << 30,
		MinFree:           256 << 20,
		MoveRate:          64 << 20,
		DiskTimeout:       Duration(3 * time.Second),
		ScrubRate:         16 << 20,
		RestartGrace:      Duration(5 * time.Minute),
		MetricsBind:       "127.0.0.1:9400",
		ControlSocket:     "/run/shardwell/control.sock",
		LogLevel:          "info",
		LogFormat:         "text",
		Addressing:        "auto",
		MaxOriginRequests: 64,
		AuthTTL:           Duration(time.Minute),
		OriginTimeout:     Duration(time.Minute),
		Consistency:       Consistency{Mode: ConsistencyTTL, TTL: time.Minute},
		UID:               -1,
		GID:               -1,
		FileMode:          0o444,
		DirMode:           0o555,
		VerifyReads:       "auto",
		CachePolicy:       "epoch",
		PrefetchShards:    4,
		BackgroundFill:    FillAuto,
		KubeletDir:        "/var/lib/kubelet",
		MaxVolumes:        1000,
	}
}

// Geometry returns how the cluster cuts objects.
func (c Config) Geometry() chunk.Geometry {
	return chunk.Geometry{ChunkBytes: int64(c.ChunkSize), BlockBytes: int64(c.BlockSize)}
}
