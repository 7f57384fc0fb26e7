// Package s3server is an S3 server on loopback for the demo and for tests: the
// protocol is gofakes3's, the objects are files, and every request is counted.
//
// It promises that a range under If-Match is of that version or 412, that
// listings page like S3's, and that bytes go from file to socket without a copy
// in this process. It leaves out what a production server must have: it checks
// no signatures and keeps no index on disk. It is a part of no package; the demo
// command and objstoretest use it.
package s3server

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"time"

	"github.com/johannesboyne/gofakes3"
)

// Config says where the server listens and keeps its objects.
type Config struct {
	Dir     string   // of the objects; must exist, is used by this server alone, and is not emptied
	Addr    string   // to listen on; "" means 127.0.0.1:0
	Buckets []string // to be there from the start
}

// Server is a running S3 server.
type Server struct {
	Counter *Counter // of the requests that came
	backend *backend
	lis     net.Listener
	http    *http.Server
}

// New listens; [Server.Run] serves. The files it keeps in cfg.Dir have no names
// of keys and are of no use to a later server.
func New(cfg Config) (*Server, error) {
	b, err := newBackend(cfg.Dir)
	if err != nil {
		return nil, err
	}
	for _, name := range cfg.Buckets {
		if err := b.CreateBucket(name); err != nil {
			return nil, fmt.Errorf("bucket %q: %w", name, err)
		}
	}
	addr := cfg.Addr
	if addr == "" {
		addr = "127.0.0.1:0"
	}
	lis, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("s3 server: %w", err)
	}
	s := &Server{backend: b, lis: lis}
	s.Counter = NewCounter(unchunk(pin(gofakes3.New(b).Server())))
	s.http = &http.Server{Handler: s.Counter, ReadHeaderTimeout: 10 * time.Second}
	return s, nil
}

// URL returns the endpoint, as "http://127.0.0.1:34567".
func (s *Server) URL() string { return "http://" + s.lis.Addr().String() }

// Run serves until ctx ends, then cuts what is still open and returns nil.
func (s *Server) Run(ctx context.Context) error {
	stop := context.AfterFunc(ctx, func() {
		_ = s.http.Close() // the listener's error is that of Serve
	})
	defer stop()
	err := s.http.Serve(s.lis)
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return fmt.Errorf("s3 server: %w", err)
}

// Put stores a copy of the file at path as the
// new version of key, without HTTP and without counting. It returns the ETag.
func (s *Server) Put(bucket, key, path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	return s.backend.put(bucket, key, nil, f, nil)
}

// PutBytes stores data as the new version of key, like Put.
func (s *Server) PutBytes(bucket, key string, data []byte) (string, error) {
	return s.backend.putBytes(bucket, key, data)
}

// Delete removes key without counting.
func (s *Server) Delete(bucket, key string) error {
	_, err := s.backend.DeleteObject(bucket, key)
	return err
}
