package member

import (
	"errors"
	"net/netip"
	"time"

	"github.com/hashicorp/memberlist"
)

// delegate is what memberlist calls. Most calls come under memberlist's lock: they
// note what they are told and return.
type delegate struct{ group *Group }

var (
	_ memberlist.Delegate      = (*delegate)(nil)
	_ memberlist.EventDelegate = (*delegate)(nil)
	_ memberlist.AliveDelegate = (*delegate)(nil)
)

// addrOf returns where a node gossips.
func addrOf(n *memberlist.Node) netip.AddrPort {
	ip, _ := netip.AddrFromSlice(n.Addr)
	return netip.AddrPortFrom(ip.Unmap(), n.Port)
}

// NotifyAlive keeps out whoever cannot be a member, each time that gossip speaks of it.
func (d *delegate) NotifyAlive(n *memberlist.Node) error {
	rec, err := ParseRecord(n.Meta)
	reason := ""
	switch addr := addrOf(n); {
	case err != nil:
		reason = err.Error()
	case len(n.Name) > nameMaxBytes:
		reason = "its name is too long"
	case !addr.IsValid() || addr.Addr().IsUnspecified() || addr.Port() == 0 || rec.PeerPort == 0:
		reason = "it has no address"
	default:
		reason = d.group.view.own.mismatch(rec)
	}
	if reason == "" {
		return nil
	}
	d.group.view.refuse(n.Name, addrOf(n), reason, time.Now())
	return errors.New(reason)
}

func (d *delegate) NotifyJoin(n *memberlist.Node)   { d.up(n) }
func (d *delegate) NotifyUpdate(n *memberlist.Node) { d.up(n) }

func (d *delegate) up(n *memberlist.Node) {
	if rec, err := ParseRecord(n.Meta); err == nil { // NotifyAlive has seen it
		d.group.view.up(process{name: n.Name, addr: addrOf(n), rec: rec, since: time.Now()})
	}
}

func (d *delegate) NotifyLeave(n *memberlist.Node) {
	if rec, err := ParseRecord(n.Meta); err == nil {
		d.group.view.down(process{name: n.Name, addr: addrOf(n), rec: rec}, time.Now())
	}
}

// NodeMeta is what this member tells of itself.
func (d *delegate) NodeMeta(int) []byte { return d.group.record().AppendBinary(nil) }

// LocalState and MergeRemoteState exchange the absent members.
func (d *delegate) LocalState(bool) []byte { return d.group.view.absent(time.Now()) }

func (d *delegate) MergeRemoteState(b []byte, _ bool) {
	list, err := parseAbsent(b)
	if err != nil {
		d.group.cfg.Logger.Debug("membership: list of absent members", "error", err)
		return
	}
	d.group.view.mergeAbsent(list, time.Now())
}

// There are no messages beside the members' records.
func (d *delegate) NotifyMsg([]byte)                {}
func (d *delegate) GetBroadcasts(int, int) [][]byte { return nil }
