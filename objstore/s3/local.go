package s3

import (
	"fmt"
	"net/netip"
	"slices"
	"syscall"

	"github.com/shardwell/shardwell/objstore"
)

// metadata are addresses of clouds' own services that do not show by their number what they are.
var metadata = []netip.Prefix{
	netip.MustParsePrefix("fd00:ec2::/32"),      // AWS: instances, Pods (EKS), time
	netip.MustParsePrefix("fd20:ce::254/128"),   // Google Cloud
	netip.MustParsePrefix("168.63.129.16/32"),   // Azure
	netip.MustParsePrefix("100.100.100.200/32"), // Alibaba Cloud
}

// nat64 is what translators between IPv6 and IPv4 listen to (RFC 6052): the last four bytes are an
// IPv4 address. Those of ::/96 are IPv4 addresses in a spelling that is out of use.
var nat64 = []netip.Prefix{netip.MustParsePrefix("64:ff9b::/96"), netip.MustParsePrefix("::/96")}

// LocalAddr reports whether an address is of this machine's loopback, of its link, or of a metadata
// service: what nobody but the administrator may have a node talk to.
func LocalAddr(a netip.Addr) bool {
	a = a.WithZone("").Unmap()
	within := func(p netip.Prefix) bool { return p.Contains(a) }
	if a.IsLoopback() || a.IsLinkLocalUnicast() || a.IsMulticast() || a.IsUnspecified() || slices.ContainsFunc(metadata, within) {
		return true
	}
	if a.Is6() && slices.ContainsFunc(nat64, within) {
		b := a.As16()
		return LocalAddr(netip.AddrFrom4([4]byte(b[12:])))
	}
	return false
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
