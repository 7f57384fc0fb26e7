package cache

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/shardwell/shardwell/internal/chunk"
)

// Limits of what is remembered of the traffic of objects.
const (
	maxTraffic = 256
	trafficFor = 2 * time.Minute // after the last block
)

// Traffic is what has come and gone of one object lately.
type Traffic struct {
	Object                     chunk.Object
	Received, FromOrigin, Sent int64 // bytes; FromOrigin is a part of Received
	Here                       int64 // bytes that the disk tier holds
	Begun, Last                time.Time
	Open                       bool // by a reader of this node
}

// traffic counts for one object. It outlives the object's shared state.
type traffic struct {
	object                     chunk.Object
	received, fromOrigin, sent atomic.Int64
	here                       atomic.Int64 // as of the last block that came
	begun                      time.Time
	last                       atomic.Int64 // Unix nanoseconds
	open                       atomic.Int64 // files
}

// trafficTable remembers objects with traffic. The zero value is ready.
type trafficTable struct {
	mu sync.Mutex
	m  map[chunk.ObjectID]*traffic // guarded by mu
}

// of returns the counters of an object.
func (t *trafficTable) of(obj chunk.Object, id chunk.ObjectID) *traffic {
	t.mu.Lock()
	defer t.mu.Unlock()
	if x := t.m[id]; x != nil {
		return x
	}
	if t.m == nil {
		t.m = make(map[chunk.ObjectID]*traffic)
	}
	now := time.Now()
	x := &traffic{object: obj, begun: now}
	x.last.Store(now.UnixNano())
	if len(t.m) >= maxTraffic {
		t.makeRoom()
	}
	t.m[id] = x
	return x
}

// makeRoom forgets the object whose last block is the oldest. Callers hold mu.
func (t *trafficTable) makeRoom() {
	var oldest chunk.ObjectID
	var at int64
	for id, x := range t.m {
		if last := x.last.Load(); at == 0 || last < at {
			oldest, at = id, last
		}
	}
	delete(t.m, oldest)
}

func (x *traffic) touch() { x.last.Store(time.Now().UnixNano()) }

// Traffic returns what has come and gone lately, by object.
func (c *Cache) Traffic() map[chunk.ObjectID]Traffic {
	t := &c.traffic
	t.mu.Lock()
	defer t.mu.Unlock()
	out := make(map[chunk.ObjectID]Traffic, len(t.m))
	for id, x := range t.m {
		last := time.Unix(0, x.last.Load())
		if time.Since(last) > trafficFor {
			delete(t.m, id)
			continue
		}
		out[id] = Traffic{Object: x.object, Received: x.received.Load(), FromOrigin: x.fromOrigin.Load(), Sent: x.sent.Load(),
			Here: x.here.Load(), Begun: x.begun, Last: last, Open: x.open.Load() > 0}
	}
	return out
}
