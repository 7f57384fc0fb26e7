package member

import (
	"bytes"
	"net/netip"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/shardwell/shardwell/internal/chunk"
	"github.com/shardwell/shardwell/peer/ring"
)

func anyRecord(t *rapid.T) Record {
	low := rapid.Uint8().Draw(t, "low")
	return Record{
		ProtocolMin: low, ProtocolMax: rapid.Uint8Min(low).Draw(t, "high"),
		NoOwner: rapid.Bool().Draw(t, "no owner"), Restarting: rapid.Bool().Draw(t, "restarting"), Leaving: rapid.Bool().Draw(t, "leaving"),
		PeerPort: rapid.Uint16().Draw(t, "port"), Weight: rapid.Uint16Range(1, MaxWeight).Draw(t, "weight"),
		Geometry: chunk.Geometry{
			ChunkBytes: int64(rapid.Uint32().Draw(t, "chunk")), BlockBytes: int64(rapid.Uint32().Draw(t, "block")),
		},
		PlaceWhole: rapid.Int64Range(0, chunk.MaxObjectBytes).Draw(t, "whole"),
		Start:      rapid.Uint64().Draw(t, "start"),
		ID:         anyBytes(t, "id", 1, MaxIDBytes),
		Zone:       anyBytes(t, "zone", 0, MaxZoneBytes),
		Rack:       anyBytes(t, "rack", 0, MaxRackBytes),

		CapacityBytes: rapid.Int64Min(0).Draw(t, "capacity"),
	}
}

func anyBytes(t *rapid.T, label string, least, most int) string {
	return string(rapid.SliceOfN(rapid.Byte(), least, most).Draw(t, label))
}

func TestRecordsComeBackAsTheyWere(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		r := anyRecord(rt)
		b := r.AppendBinary(nil)
		if len(b) > MaxRecordBytes {
			rt.Fatalf("%d bytes", len(b))
		}
		got, err := ParseRecord(b)
		if err != nil || got != r {
			rt.Fatalf("%+v, %v; want %+v", got, err, r)
		}
		// A later release may add fields behind.
		if more, err := ParseRecord(append(b, 1, 2, 3)); err != nil || more != r {
			rt.Fatalf("with more fields: %+v, %v", more, err)
		}
	})
}

// The layout is part of the protocol.
func TestRecordLayoutStaysAsItIs(t *testing.T) {
	r := Record{ProtocolMin: 1, ProtocolMax: 2, NoOwner: true, Leaving: true, PeerPort: 0x1234, Weight: 3,
		Geometry: chunk.DefaultGeometry(), PlaceWhole: 1 << 30, Start: 5, ID: "i", Zone: "zo", Rack: "rac", CapacityBytes: 7}
	want := []byte("\x01\x01\x02\x05\x34\x12\x03\x00\x00\x00\x80\x00\x00\x00\x04\x00" +
		"\x00\x00\x00\x40\x00\x00\x00\x00\x05\x00\x00\x00\x00\x00\x00\x00\x01i\x02zo\x03rac\x07\x00\x00\x00\x00\x00\x00\x00")
	if got := r.AppendBinary(nil); !bytes.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

func TestWeightsAndIDsFitTheRing(t *testing.T) {
	if MaxWeight > ring.MaxWeight || MaxIDBytes != ring.MaxIDBytes {
		t.Error("the limits differ from those of peer/ring")
	}
}

func TestDamagedRecordsAreErrors(t *testing.T) {
	good := Record{Weight: 1, ID: "node", Zone: "z", Rack: "r"}.AppendBinary(nil)
	for n := range len(good) {
		if n == len(good)-8 {
			continue // of an earlier release, see below
		}
		if _, err := ParseRecord(good[:n]); err == nil {
			t.Errorf("a record cut to %d bytes was accepted", n)
		}
	}
	other := bytes.Clone(good)
	other[0] = 9
	if _, err := ParseRecord(other); err == nil || !strings.Contains(err.Error(), "layout 9") {
		t.Errorf("another layout: %v", err)
	}
	if _, err := ParseRecord(append(good, make([]byte, MaxRecordBytes)...)); err == nil {
		t.Error("a record that is too long was accepted")
	}
}

func TestEarlierRecordsDoNotTellTheirCapacity(t *testing.T) {
	want := Record{Weight: 1, ID: "node", Zone: "z", Rack: "r", CapacityBytes: 5}
	b := want.AppendBinary(nil)
	want.CapacityBytes = 0
	if got, err := ParseRecord(b[:len(b)-8]); err != nil || got != want {
		t.Errorf("%+v, %v", got, err)
	}
}

func FuzzParseRecord(f *testing.F) {
	f.Add([]byte{})
	f.Add(Record{Weight: 1, ID: "node", Zone: "z", Rack: "r"}.AppendBinary(nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := ParseRecord(b)
		if err != nil {
			return
		}
		again, err := ParseRecord(r.AppendBinary(nil))
		if err != nil || again != r {
			t.Errorf("%+v, then %+v, %v", r, again, err)
		}
	})
}

func TestAbsentMembersComeBackAsTheyWere(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		want := absentMember{
			process: process{
				name: anyBytes(rt, "name", 0, nameMaxBytes),
				addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, rapid.Byte().Draw(rt, "ip")}), rapid.Uint16().Draw(rt, "port")),
				rec:  anyRecord(rt),
			},
			left: time.Duration(rapid.IntRange(0, 1e6).Draw(rt, "left")) * time.Millisecond,
		}
		b := appendAbsent(appendAbsent([]byte{absentLayout}, want), want)
		got, err := parseAbsent(b)
		if err != nil || len(got) != 2 || got[0] != want || got[1] != want {
			rt.Fatalf("%+v, %v; want twice %+v", got, err, want)
		}
	})
}

func FuzzParseAbsent(f *testing.F) {
	a := absentMember{process{name: "n", addr: netip.MustParseAddrPort("[fd00::1]:7946"), rec: Record{Weight: 1, ID: "x"}}, time.Minute}
	f.Add(appendAbsent([]byte{absentLayout}, a))
	f.Add([]byte{absentLayout})
	f.Fuzz(func(t *testing.T, b []byte) {
		list, err := parseAbsent(b)
		if err == nil && len(list) > len(b)/recordFixedBytes {
			t.Errorf("%d members out of %d bytes", len(list), len(b))
		}
	})
}
