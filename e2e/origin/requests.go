package origin

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Requests is what a counter saw.
type Requests []Request

// Of returns the requests of one operation.
func (rs Requests) Of(op Op) Requests {
	return rs.Where(func(r Request) bool { return r.Op == op })
}

// Where returns the requests for which keep is true.
func (rs Requests) Where(keep func(Request) bool) Requests {
	var out Requests
	for _, r := range rs {
		if keep(r) {
			out = append(out, r)
		}
	}
	return out
}

// Bytes returns the body bytes of all GETs.
func (rs Requests) Bytes() int64 {
	var sum int64
	for _, r := range rs {
		if r.Op == OpGet && r.Status < 300 {
			sum += r.Bytes
		}
	}
	return sum
}

// PerKey returns the body bytes of GETs by key.
func (rs Requests) PerKey() map[string]int64 {
	sums := make(map[string]int64)
	for _, r := range rs {
		if r.Op == OpGet && r.Status < 300 {
			sums[r.Key] += r.Bytes
		}
	}
	return sums
}

// String sums up for a failure's message: counts per operation and status, and bytes.
func (rs Requests) String() string {
	counts := make(map[string]int)
	for _, r := range rs {
		counts[fmt.Sprintf("%s %d", r.Op, r.Status)]++
	}
	var b strings.Builder
	for _, k := range slices.Sorted(maps.Keys(counts)) {
		fmt.Fprintf(&b, "%s: %d, ", k, counts[k])
	}
	fmt.Fprintf(&b, "%d body bytes", rs.Bytes())
	return b.String()
}

// Again returns how many body bytes were sent of what had been sent before.
func (rs Requests) Again() (sum int64) {
	for _, ranges := range rs.byKey() {
		end := int64(0)
		for _, r := range ranges {
			sum += max(0, min(end, r.Offset+r.Bytes)-r.Offset)
			end = max(end, r.Offset+r.Bytes)
		}
	}
	return sum
}

// byKey returns what was sent by GETs, by key and in the order of the bytes.
func (rs Requests) byKey() map[string]Requests {
	byKey := make(map[string]Requests)
	for _, r := range rs.Of(OpGet) {
		if r.Status < 300 && r.Bytes > 0 {
			byKey[r.Key] = append(byKey[r.Key], r)
		}
	}
	for _, ranges := range byKey {
		slices.SortFunc(ranges, func(a, b Request) int { return int(a.Offset - b.Offset) })
	}
	return byKey
}

// Twice lists the keys whose GETs cover some bytes more than once, each with a
// range that was sent again: what "once for the cluster" forbids.
func (rs Requests) Twice() []string {
	byKey := rs.byKey()
	var found []string
	for _, key := range slices.Sorted(maps.Keys(byKey)) {
		ranges := byKey[key]
		end := int64(-1)
		for _, r := range ranges {
			if r.Offset < end {
				found = append(found, fmt.Sprintf("%s [%d,+%d) by %s", key, r.Offset, r.Bytes, r.Client))
			}
			end = max(end, r.Offset+r.Bytes)
		}
	}
	return found
}
