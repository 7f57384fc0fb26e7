package s3

import (
	"fmt"
	"net/netip"
	"slices"
	"syscall"

	"github.com/shardwell/shardwell/objstore"
)

// metadata are addresses of clouds' own services that do not show by their number what they are.
var metadata = []netip.Addr{
	netip.MustParseAddr("fd00:ec2::254"),   // AWS
	netip.MustParseAddr("168.63.129.16"),   // Azure
	netip.MustParseAddr("100.100.100.200"), // Alibaba Cloud
}

// LocalAddr reports whether an address is this machine, something on its link, or a metadata
// service: what nobody but the administrator may have a node talk to.
func LocalAddr(a netip.Addr) bool {
	a = a.WithZone("").Unmap()
	return a.IsLoopback() || a.IsLinkLocalUnicast() || a.IsMulticast() || a.IsUnspecified() || slices.Contains(metadata, a)
}

// refuseLocal is for a net.Dialer: it sees the address that a name was resolved to, so that no name
// can stand for another address when it is looked up again.
func refuseLocal(_, address string, _ syscall.RawConn) error {
	at, err := netip.ParseAddrPort(address)
	if err != nil || LocalAddr(at.Addr()) {
		return fmt.Errorf("%s is an address of this machine or its link, which this endpoint may not be: %w", address, objstore.ErrInvalid)
	}
	return nil
}
