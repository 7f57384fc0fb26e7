package member

import (
	"errors"
	"net/netip"
	"time"

	"github.com/shardwell/shardwell/internal/chunk/varint"
)

// Absent members travel in the exchange of states between two members, since
// memberlist itself tells a newcomer of living ones only. So a node that starts while another
// restarts makes the same table as all others, and one that missed the word of a
// member's leaving for good gets it.

// Limits of the exchange.
const (
	absentLayout   = 1
	maxAbsent      = 1000
	maxAbsentBytes = maxAbsent * (2 + MaxRecordBytes + nameMaxBytes + 32)
)

var errAbsent = errors.New("malformed list of absent members")

// absentMember is one entry of the list.
type absentMember struct {
	process
	left time.Duration // how long its place is still kept
}

// absent returns the encoded list of places that nobody holds at present.
func (v *view) absent(now time.Time) []byte {
	v.mu.Lock()
	defer v.mu.Unlock()
	b := []byte{absentLayout}
	n := 0
	for _, pl := range v.places {
		left := v.grace - now.Sub(pl.downSince)
		if len(pl.live) > 0 || left <= 0 || n == maxAbsent {
			continue
		}
		n++
		b = appendAbsent(b, absentMember{process: pl.last, left: left})
	}
	return b
}

func appendAbsent(b []byte, a absentMember) []byte {
	b = varint.Append(b, uint64(a.left.Milliseconds()))
	for _, part := range [][]byte{[]byte(a.name), []byte(a.addr.String()), a.rec.AppendBinary(nil)} {
		b = varint.AppendText(b, part)
	}
	return b
}

// maxLeftMs bounds the time that a place is kept for an absent member: a year.
const maxLeftMs = uint64(365 * 24 * time.Hour / time.Millisecond)

// parseAbsent is the inverse of absent.
func parseAbsent(b []byte) ([]absentMember, error) {
	if len(b) < 1 || b[0] != absentLayout || len(b) > maxAbsentBytes {
		return nil, errAbsent
	}
	d := varint.NewDecoder(b[1:])
	var list []absentMember
	for d.Left() > 0 {
		ms := d.AtMost(maxLeftMs)
		name, at, record := d.Text(nameMaxBytes), d.Text(64), d.Text(MaxRecordBytes)
		if d.Bad() || len(list) == maxAbsent {
			return nil, errAbsent
		}
		addr, err := netip.ParseAddrPort(string(at))
		if err != nil {
			return nil, errAbsent
		}
		rec, err := ParseRecord(record)
		if err != nil {
			return nil, err
		}
		list = append(list, absentMember{process{name: string(name), addr: addr, rec: rec}, time.Duration(ms) * time.Millisecond})
	}
	return list, nil
}

// mergeAbsent learns from another's list: places not known here, and that a member
// which is absent here as well has left for good.
func (v *view) mergeAbsent(list []absentMember, now time.Time) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.closed {
		return
	}
	for _, a := range list {
		if v.own.mismatch(a.rec) != "" || a.rec.ID == v.own.ID {
			continue
		}
		pl := v.places[a.rec.ID]
		switch {
		case pl == nil && a.left > 0 && len(v.places) < maxPlaces:
			v.places[a.rec.ID] = &place{last: a.process, downSince: now.Add(min(a.left, v.grace) - v.grace)}
			v.signal()
		case pl != nil && pl.last.name == a.name && a.rec.Leaving && !pl.last.rec.Leaving && len(pl.live) == 0:
			pl.last.rec = a.rec
			v.signal()
		}
	}
}
