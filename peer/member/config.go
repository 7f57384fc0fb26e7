package member

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"time"

	"github.com/hashicorp/memberlist"

	"github.com/shardwell/shardwell/internal/chunk"
)

// Defaults of a [Config].
const (
	DefaultBindPort     = 7946
	DefaultRestartGrace = 5 * time.Minute
	DefaultBatch        = time.Second
	DefaultLabel        = "shardwell"
)

// MaxWeight bounds the weight of a member.
const MaxWeight = 64

// MaxJoinNames bounds how many names or addresses of seeds a node may be given.
const MaxJoinNames = 64

// Config says who this member is and how it finds the others.
type Config struct {
	ID   string // ring identity, from the cache directory; 1 to MaxIDBytes bytes
	Name string // for people, usually the host's; "" means the ID

	BindAddr      string // IP address to listen on, UDP and TCP
	BindPort      int    // 0 takes any free port; also the port of seeds given without one
	AdvertiseAddr string // IP address that others reach this member at; "" means BindAddr, or a private one for 0.0.0.0
	AdvertisePort int    // 0 means the port that was bound

	Keys     [][]byte // from peer/secret: the first encrypts, all decrypt; none means no encryption
	Insecure bool     // allow listening beyond loopback without Keys
	Label    string   // keeps clusters apart on one network; "" means DefaultLabel

	Join     []string // host, host:port or address of other members; a name may have many addresses
	Resolver Resolver // nil means the system's

	Zone, Rack string
	Weight     int  // share in relation to others, at most MaxWeight; 0 means 1
	NoOwner    bool // read only, own nothing

	CapacityBytes int64 // room for what it owns, as [Group.Offer] tells later; 0: not told

	PeerPort int // where this member serves blocks, at the address that it advertises

	// What all members must have alike; others are refused.
	Geometry                 chunk.Geometry
	PlaceWhole               int64 // bytes
	ProtocolMin, ProtocolMax uint8

	RestartGrace time.Duration // how long an absent member keeps its place; 0 means DefaultRestartGrace
	Batch        time.Duration // how long changes are collected; 0 means DefaultBatch

	// OnChange is called from Run with the members whenever they have changed, at most once in Batch,
	// and for the first time when the seeds have been asked. The slice is sorted by ID and the callee's.
	OnChange func([]Member)

	Transport memberlist.Transport // nil means UDP and TCP; tests use membertest
	Logger    *slog.Logger         // nil discards
}

// Resolver finds the addresses of a seed's name. [net.Resolver] is one.
type Resolver interface {
	LookupHost(ctx context.Context, host string) ([]string, error)
}

// withDefaults returns c with its zero values replaced.
func (c Config) withDefaults() Config {
	if c.Name == "" {
		c.Name = c.ID
	}
	if c.Label == "" {
		c.Label = DefaultLabel
	}
	if c.Weight == 0 {
		c.Weight = 1
	}
	if c.RestartGrace == 0 {
		c.RestartGrace = DefaultRestartGrace
	}
	if c.Batch == 0 {
		c.Batch = DefaultBatch
	}
	if c.OnChange == nil {
		c.OnChange = func([]Member) {}
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return c
}

// Validate reports, in words meant for the user, why c cannot be used.
func (c Config) Validate() error {
	switch {
	case c.ID == "" || len(c.ID) > MaxIDBytes:
		return fmt.Errorf("ring id %q: must have 1 to %d bytes", c.ID, MaxIDBytes)
	case len(c.Name) > 255:
		return fmt.Errorf("node name %q: must have at most 255 bytes", c.Name)
	case len(c.Zone) > MaxZoneBytes:
		return fmt.Errorf("zone %q: must have at most %d bytes", c.Zone, MaxZoneBytes)
	case len(c.Rack) > MaxRackBytes:
		return fmt.Errorf("rack %q: must have at most %d bytes", c.Rack, MaxRackBytes)
	case len(c.Label) > memberlist.LabelMaxSize:
		return fmt.Errorf("cluster label of %d bytes: must have at most %d", len(c.Label), memberlist.LabelMaxSize)
	case c.Weight < 0 || c.Weight > MaxWeight:
		return fmt.Errorf("weight %d: must be between 1 and %d", c.Weight, MaxWeight)
	case c.CapacityBytes < 0:
		return fmt.Errorf("capacity of %d bytes: must not be negative", c.CapacityBytes)
	case c.PeerPort < 1 || c.PeerPort > 1<<16-1:
		return fmt.Errorf("peer port %d: must be between 1 and 65535", c.PeerPort)
	case c.ProtocolMin > c.ProtocolMax:
		return fmt.Errorf("protocol range %d to %d is empty", c.ProtocolMin, c.ProtocolMax)
	case c.PlaceWhole < 0 || c.PlaceWhole > chunk.MaxObjectBytes:
		return fmt.Errorf("place-whole size %d: must be between 0 and %d bytes", c.PlaceWhole, int64(chunk.MaxObjectBytes))
	case len(c.Join) > MaxJoinNames:
		return fmt.Errorf("%d names to join: at most %d", len(c.Join), MaxJoinNames)
	case c.RestartGrace < 0 || c.Batch < 0:
		return errors.New("restart grace and batch time: must not be negative")
	}
	if err := c.Geometry.Validate(); err != nil {
		return err
	}
	if c.Transport != nil {
		return nil
	}
	return c.validateAddr()
}

func (c Config) validateAddr() error {
	bind, err := netip.ParseAddr(c.BindAddr)
	if err != nil {
		return fmt.Errorf("bind address %q: must be an IP address", c.BindAddr)
	}
	if c.AdvertiseAddr != "" {
		if _, err := netip.ParseAddr(c.AdvertiseAddr); err != nil {
			return fmt.Errorf("advertise address %q: must be an IP address", c.AdvertiseAddr)
		}
	} else if bind.IsUnspecified() && bind.Is6() {
		return fmt.Errorf("bind address %s: needs an advertise address beside it", bind)
	}
	if len(c.Keys) == 0 && !c.Insecure && !bind.IsLoopback() {
		return fmt.Errorf("bind address %s: will not listen beyond loopback without a secret file (or insecure mode)", bind)
	}
	return nil
}
