package transfer

import (
	"context"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/shardwell/shardwell/internal/chunk"
)

// lender lends the blocks of one object, as the tests want it.
type lender struct {
	object chunk.Object
	data   []byte
	file   *os.File // nil lends from memory

	order    func(chunk.Span) []uint32                 // nil: ascending
	before   func(ctx context.Context, sent int) error // called before each block
	change   func(*chunk.Piece)                        // spoils a piece
	requests []chunk.Request                           // guarded by mu
	suspects []uint32                                  // guarded by mu
	mu       sync.Mutex
}

// newLender makes up an object of size bytes; with a file its bytes are in one.
func newLender(t testing.TB, size int, inFile bool) *lender {
	t.Helper()
	l := &lender{data: someBytes(uint64(size), size)}
	l.object = chunk.Object{Origin: "https://s3.example.com", Bucket: "b", Key: "k.tar", ETag: "e", Size: int64(size)}
	if inFile {
		name := filepath.Join(t.TempDir(), "object")
		if err := os.WriteFile(name, l.data, 0o600); err != nil {
			t.Fatal(err)
		}
		f, err := os.Open(name)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { f.Close() })
		l.file = f
	}
	return l
}

func (l *lender) Lend(ctx context.Context, req chunk.Request, send func(chunk.Piece) error) error {
	l.mu.Lock()
	l.requests = append(l.requests, req)
	l.mu.Unlock()
	var blocks []uint32
	if l.order != nil {
		blocks = l.order(req.Span)
	} else {
		for b := req.Span.First; b < req.Span.End(); b++ {
			blocks = append(blocks, b)
		}
	}
	for i, b := range blocks {
		if l.before != nil {
			if err := l.before(ctx, i); err != nil {
				return err
			}
		}
		off, n := small.Bytes(l.object.Size, chunk.Span{First: b, Count: 1})
		p := chunk.Piece{Index: b, Len: int(n), CRC: chunk.Checksum(l.data[off : off+n])}
		if l.file != nil {
			p.File, p.Offset = l.file, off
		} else {
			p.Data = l.data[off : off+n]
		}
		if l.change != nil {
			l.change(&p)
		}
		if err := send(p); err != nil {
			return err
		}
	}
	return nil
}

func (l *lender) Suspect(_ chunk.ObjectID, block uint32) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.suspects = append(l.suspects, block)
}

func (l *lender) request(index uint32) Request {
	return Request{Request: chunk.Request{Object: l.object, ID: l.object.ID(),
		Span: small.ChunkSpan(l.object.Size, index), Hops: 1}}
}
