package member

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/hashicorp/memberlist"

	"github.com/shardwell/shardwell/internal/chunk"
)

// MaxRecordBytes is what memberlist lets a member tell of itself.
const MaxRecordBytes = memberlist.MetaMaxSize

// Limits of the strings in a [Record], in bytes. Kubernetes labels have at most 63.
const (
	MaxIDBytes   = 64
	MaxZoneBytes = 100
	MaxRackBytes = 100
)

// recordLayout is the first byte of a record. Fields may be added behind the last one without a
// new layout: readers ignore bytes that follow what they know.
const recordLayout = 1

// Flags of a record on the wire.
const (
	flagNoOwner = 1 << iota
	flagRestarting
	flagLeaving
)

// Record is what a member tells all others of itself.
type Record struct {
	ProtocolMin, ProtocolMax uint8 // versions of the peer protocol that it speaks

	NoOwner    bool // reads only
	Restarting bool // stops now and will be back: keep its place
	Leaving    bool // goes for good once it has stopped: drop its place then

	PeerPort   uint16
	Weight     uint16
	Geometry   chunk.Geometry
	PlaceWhole int64  // bytes up to which an object has one owner
	Start      uint64 // nanoseconds since 1970 at which the process began: of two with one ID the later counts

	ID   string // ring identity
	Zone string
	Rack string

	CapacityBytes int64 // room for what it owns; 0: it does not tell
}

// recordFixedBytes is the length of a record in front of its strings.
const recordFixedBytes = 4 + 2 + 2 + 4 + 4 + 8 + 8

// AppendBinary appends the encoding of r, at most [MaxRecordBytes] when the
// strings are within their limits: layout, protocol minimum and maximum, flags (a byte each,
// in place for ever), then little-endian peer port u16, weight u16, chunk bytes u32, block bytes
// u32, place-whole bytes u64, start u64, the three strings, each behind its length in one byte, and capacity bytes u64.
func (r Record) AppendBinary(b []byte) []byte {
	var flags byte
	if r.NoOwner {
		flags |= flagNoOwner
	}
	if r.Restarting {
		flags |= flagRestarting
	}
	if r.Leaving {
		flags |= flagLeaving
	}
	b = append(b, recordLayout, r.ProtocolMin, r.ProtocolMax, flags)
	b = binary.LittleEndian.AppendUint16(b, r.PeerPort)
	b = binary.LittleEndian.AppendUint16(b, r.Weight)
	b = binary.LittleEndian.AppendUint32(b, uint32(r.Geometry.ChunkBytes))
	b = binary.LittleEndian.AppendUint32(b, uint32(r.Geometry.BlockBytes))
	b = binary.LittleEndian.AppendUint64(b, uint64(r.PlaceWhole))
	b = binary.LittleEndian.AppendUint64(b, r.Start)
	for _, s := range [...]string{r.ID, r.Zone, r.Rack} {
		b = append(b, byte(len(s)))
		b = append(b, s...)
	}
	return binary.LittleEndian.AppendUint64(b, uint64(r.CapacityBytes))
}

var errRecord = errors.New("malformed member record")

// ParseRecord is the inverse of [Record.AppendBinary].
func ParseRecord(b []byte) (Record, error) {
	var r Record
	if len(b) < 1 {
		return r, errors.New("no member record: not a member of Shardwell")
	}
	if b[0] != recordLayout {
		return r, fmt.Errorf("member record of layout %d: this release reads %d", b[0], recordLayout)
	}
	if len(b) > MaxRecordBytes || len(b) < recordFixedBytes {
		return r, errRecord
	}
	r.ProtocolMin, r.ProtocolMax = b[1], b[2]
	r.NoOwner = b[3]&flagNoOwner != 0
	r.Restarting = b[3]&flagRestarting != 0
	r.Leaving = b[3]&flagLeaving != 0
	r.PeerPort = binary.LittleEndian.Uint16(b[4:])
	r.Weight = binary.LittleEndian.Uint16(b[6:])
	r.Geometry.ChunkBytes = int64(binary.LittleEndian.Uint32(b[8:]))
	r.Geometry.BlockBytes = int64(binary.LittleEndian.Uint32(b[12:]))
	whole := binary.LittleEndian.Uint64(b[16:])
	r.Start = binary.LittleEndian.Uint64(b[24:])
	if whole > chunk.MaxObjectBytes {
		return Record{}, errRecord
	}
	r.PlaceWhole = int64(whole)
	b = b[recordFixedBytes:]
	for _, f := range [...]struct {
		to  *string
		max int
	}{{&r.ID, MaxIDBytes}, {&r.Zone, MaxZoneBytes}, {&r.Rack, MaxRackBytes}} {
		if len(b) < 1 || int(b[0]) > f.max || len(b) < 1+int(b[0]) {
			return Record{}, errRecord
		}
		*f.to = string(b[1 : 1+int(b[0])])
		b = b[1+int(b[0]):]
	}
	switch {
	case len(b) == 0: // a member of an earlier release, which does not tell
	case len(b) < 8:
		return Record{}, errRecord
	default:
		r.CapacityBytes = int64(binary.LittleEndian.Uint64(b))
	}
	if r.CapacityBytes < 0 || r.ID == "" || r.Weight == 0 || r.Weight > MaxWeight || r.ProtocolMin > r.ProtocolMax {
		return Record{}, errRecord
	}
	return r, nil
}

// mismatch says why a member with record r cannot be in one cluster with one
// of record own, in words for the log of either side; "" when it can.
func (own Record) mismatch(r Record) string {
	switch {
	case r.ProtocolMin > own.ProtocolMax || r.ProtocolMax < own.ProtocolMin:
		return fmt.Sprintf("it speaks protocol %d to %d, this node %d to %d",
			r.ProtocolMin, r.ProtocolMax, own.ProtocolMin, own.ProtocolMax)
	case r.Geometry.ChunkBytes != own.Geometry.ChunkBytes:
		return fmt.Sprintf("its chunk size is %d bytes, this node's %d", r.Geometry.ChunkBytes, own.Geometry.ChunkBytes)
	case r.Geometry.BlockBytes != own.Geometry.BlockBytes:
		return fmt.Sprintf("its block size is %d bytes, this node's %d", r.Geometry.BlockBytes, own.Geometry.BlockBytes)
	case r.PlaceWhole != own.PlaceWhole:
		return fmt.Sprintf("it places objects whole up to %d bytes, this node up to %d", r.PlaceWhole, own.PlaceWhole)
	}
	return ""
}
