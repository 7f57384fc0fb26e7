// Package objstoretest proves implementations of objstore.Store, and stands in
// for them: a conformance suite ([TestStore]), a store in memory that counts and
// blocks ([Mem]), a wrapper that breaks ([Fault]), and a real S3 server on
// loopback ([S3Server]).
//
// It promises that Mem passes the same suite as the real implementations. It is
// for tests only: nothing in the product imports it.
package objstoretest

import (
	"bytes"
	"context"
	"crypto/md5"
	"encoding/hex"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/shardwell/shardwell/objstore"
)

// Mem is an origin in memory. It is safe for concurrent use.
type Mem struct {
	mu       sync.Mutex
	objects  map[string]memObject
	keys     []string // sorted; nil when it must be made anew
	gates    [objstore.NumOps]*Gate
	requests [objstore.NumOps]int64
	bytes    int64
	gets     []Get
}

// memObject is the current version of a key. data is never changed.
type memObject struct {
	info objstore.Info
	data []byte
}

// Get is a range that was asked for.
type Get struct {
	Key, ETag string
	Off, N    int64 // bytes
}

// NewMem returns an empty origin.
func NewMem() *Mem { return &Mem{objects: make(map[string]memObject)} }

// Put stores a copy of data as the new version of key. The ETag is the MD5 of the
// bytes, so the same bytes again are the same version, as on S3.
func (m *Mem) Put(key string, data []byte) objstore.Info {
	sum := md5.Sum(data)
	info := objstore.Info{
		Key:     key,
		Size:    int64(len(data)),
		ETag:    hex.EncodeToString(sum[:]),
		ModTime: time.Now().UTC().Truncate(time.Second),
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, ok := m.objects[key]; !ok {
		m.keys = nil
	}
	m.objects[key] = memObject{info: info, data: bytes.Clone(data)}
	return info
}

// Delete removes key, if it is there.
func (m *Mem) Delete(key string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.objects, key)
	m.keys = nil
}

// Requests returns how many requests of op came, refused ones included.
func (m *Mem) Requests(op objstore.Op) int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.requests[op]
}

// Bytes returns how many bytes of bodies were read.
func (m *Mem) Bytes() int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.bytes
}

// Gets returns the ranges that were asked for, in their order.
func (m *Mem) Gets() []Get {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.gets)
}

// ResetCounts forgets what Requests, Bytes and Gets tell.
func (m *Mem) ResetCounts() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.requests, m.bytes, m.gets = [objstore.NumOps]int64{}, 0, nil
}

// Hold makes all further requests of op wait at a new gate until it is opened.
func (m *Mem) Hold(op objstore.Op) *Gate {
	g := NewGate()
	m.mu.Lock()
	defer m.mu.Unlock()
	m.gates[op] = g
	return g
}

// arrive counts a request and waits at the gate, if there is one.
func (m *Mem) arrive(ctx context.Context, op objstore.Op) error {
	m.mu.Lock()
	m.requests[op]++
	g := m.gates[op]
	m.mu.Unlock()
	if g != nil {
		return g.Pass(ctx)
	}
	return ctx.Err()
}

// Get implements objstore.Store.
func (m *Mem) Get(ctx context.Context, key, etag string, off, n int64) (io.ReadCloser, error) {
	m.mu.Lock()
	m.gets = append(m.gets, Get{Key: key, ETag: etag, Off: off, N: n})
	m.mu.Unlock()
	if err := m.arrive(ctx, objstore.OpGet); err != nil {
		return nil, fmt.Errorf("get %q: %w", key, err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	o, ok := m.objects[key]
	switch {
	case off < 0 || n <= 0:
		return nil, fmt.Errorf("get %q [%d,+%d): %w", key, off, n, objstore.ErrInvalid)
	case !ok || o.info.ETag != etag:
		return nil, fmt.Errorf("get %q: %w", key, objstore.ErrChanged)
	case off > o.info.Size-n:
		return nil, fmt.Errorf("get %q [%d,+%d) of %d bytes: %w", key, off, n, o.info.Size, objstore.ErrInvalid)
	}
	return &memBody{ctx: ctx, m: m, r: bytes.NewReader(o.data[off : off+n])}, nil
}

// Head implements objstore.Store.
func (m *Mem) Head(ctx context.Context, key string) (objstore.Info, error) {
	if err := m.arrive(ctx, objstore.OpHead); err != nil {
		return objstore.Info{}, fmt.Errorf("head %q: %w", key, err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	o, ok := m.objects[key]
	if !ok {
		return objstore.Info{}, fmt.Errorf("head %q: %w", key, objstore.ErrNotExist)
	}
	return o.info, nil
}

// List implements objstore.Store. Its tokens are the last name of the page.
func (m *Mem) List(ctx context.Context, req objstore.ListRequest) (objstore.Page, error) {
	if err := m.arrive(ctx, objstore.OpList); err != nil {
		return objstore.Page{}, fmt.Errorf("list %q: %w", req.Prefix, err)
	}
	if req.Delimiter != "" && req.Delimiter != "/" {
		return objstore.Page{}, fmt.Errorf("list %q with delimiter %q: %w", req.Prefix, req.Delimiter, objstore.ErrInvalid)
	}
	limit := req.Limit
	if limit <= 0 || limit > 1000 {
		limit = 1000
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.keys == nil {
		m.keys = make([]string, 0, len(m.objects))
		for key := range m.objects {
			m.keys = append(m.keys, key)
		}
		slices.Sort(m.keys)
	}
	return m.page(req, limit), nil
}

// page makes one page. Caller holds mu.
func (m *Mem) page(req objstore.ListRequest, limit int) objstore.Page {
	var page objstore.Page
	last := ""
	i, _ := slices.BinarySearch(m.keys, max(req.Prefix, req.Token))
	for i < len(m.keys) && strings.HasPrefix(m.keys[i], req.Prefix) {
		key := m.keys[i]
		rest := key[len(req.Prefix):]
		name, isPrefix := key, false
		if req.Delimiter != "" {
			if cut := strings.Index(rest, req.Delimiter); cut >= 0 {
				name, isPrefix = key[:len(req.Prefix)+cut+len(req.Delimiter)], true
			}
		}
		if req.Token != "" && name <= req.Token {
			i = m.after(i, name, isPrefix)
			continue
		}
		if len(page.Objects)+len(page.Prefixes) == limit {
			page.Next = last
			return page
		}
		if isPrefix {
			page.Prefixes = append(page.Prefixes, name)
		} else {
			page.Objects = append(page.Objects, m.objects[key].info)
		}
		last = name
		i = m.after(i, name, isPrefix)
	}
	return page
}

// after returns the index of the first key behind name, which stands at i and
// covers all keys that begin with it when it is a prefix.
func (m *Mem) after(i int, name string, isPrefix bool) int {
	if !isPrefix {
		return i + 1
	}
	for i < len(m.keys) && strings.HasPrefix(m.keys[i], name) {
		i++
	}
	return i
}

// memBody is an open range of a Mem.
type memBody struct {
	ctx context.Context
	m   *Mem
	r   *bytes.Reader
}

func (b *memBody) Read(p []byte) (int, error) {
	if err := b.ctx.Err(); err != nil {
		return 0, err
	}
	n, err := b.r.Read(p)
	b.m.mu.Lock()
	b.m.bytes += int64(n)
	b.m.mu.Unlock()
	return n, err
}

func (b *memBody) Close() error { return nil }
