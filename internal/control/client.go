package control

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/shardwell/shardwell/internal/control/controlpb"
)

// ErrNoNode says that no node answers on the socket.
var ErrNoNode = errors.New("no node is running")

// Limits of a client.
const (
	maxReplyBytes = 64 << 20 // the status of a large cluster
	dialTimeout   = 5 * time.Second
)

// Client asks the node behind a control socket. Its methods are safe for
// concurrent use. Their errors are those of [Node], by text and class.
type Client struct {
	conn *grpc.ClientConn
	rpc  controlpb.ControlClient
	warm controlpb.WarmClient
}

// Dial connects to the node behind socket. The error matches [ErrNoNode] when
// there is none.
func Dial(ctx context.Context, socket string) (*Client, error) {
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	var d net.Dialer
	probe, err := d.DialContext(ctx, "unix", socket)
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ECONNREFUSED):
		return nil, &classed{text: fmt.Sprintf("no node is running: nothing answers on %s", socket), class: ErrNoNode}
	case errors.Is(err, fs.ErrPermission):
		return nil, fmt.Errorf("control socket %s: permission denied: ask as root or as the node's user", socket)
	case err != nil:
		return nil, fmt.Errorf("control socket %s: %w", socket, unwrapPath(err))
	}
	_ = probe.Close()
	conn, err := grpc.NewClient("passthrough:///control",
		grpc.WithTransportCredentials(insecure.NewCredentials()), // a unix socket; the server asks the kernel who we are
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, "unix", socket)
		}),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxReplyBytes)),
	)
	if err != nil {
		return nil, fmt.Errorf("control socket %s: %w", socket, err)
	}
	return &Client{conn: conn, rpc: controlpb.NewControlClient(conn), warm: controlpb.NewWarmClient(conn)}, nil
}

// Close ends the connection; calls that are at work fail.
func (c *Client) Close() error { return c.conn.Close() }

// Mount is [Node.Mount].
func (c *Client) Mount(ctx context.Context, req MountRequest) (MountReply, error) {
	reply, err := c.rpc.Mount(ctx, &controlpb.MountRequest{Uri: req.URI, Dir: req.Dir, Options: req.Options, Credentials: credentialsToWire(req.Credentials)})
	if err != nil {
		return MountReply{}, fromWire(err)
	}
	return MountReply{Source: reply.GetSource(), Existing: reply.GetExisting()}, nil
}

// Umount is [Node.Umount].
func (c *Client) Umount(ctx context.Context, dir string) error {
	_, err := c.rpc.Umount(ctx, &controlpb.UmountRequest{Dir: dir})
	return fromWire(err)
}

// Release is [Node.Release].
func (c *Client) Release(ctx context.Context, dir string) error {
	_, err := c.rpc.Release(ctx, &controlpb.ReleaseRequest{Dir: dir})
	return fromWire(err)
}

// Usage is [Node.Usage].
func (c *Client) Usage(ctx context.Context, dir string) (Usage, error) {
	reply, err := c.rpc.Usage(ctx, &controlpb.UsageRequest{Dir: dir})
	if err != nil {
		return Usage{}, fromWire(err)
	}
	return Usage{Objects: reply.GetObjects(), Bytes: reply.GetBytes(), LocalBytes: reply.GetLocalBytes()}, nil
}

// Status is [Node.Status].
func (c *Client) Status(ctx context.Context) (Status, error) {
	var st Status
	reply, err := c.rpc.Status(ctx, &controlpb.StatusRequest{})
	if err != nil {
		return st, fromWire(err)
	}
	if err := json.Unmarshal(reply.GetJson(), &st); err != nil {
		return st, fmt.Errorf("decode status: %w", err)
	}
	return st.normal(), nil
}

// Refresh is [Node.Refresh].
func (c *Client) Refresh(ctx context.Context, uri string) (int, error) {
	reply, err := c.rpc.Refresh(ctx, &controlpb.RefreshRequest{Uri: uri})
	if err != nil {
		return 0, fromWire(err)
	}
	return int(reply.GetForgotten()), nil
}

// List is [Node.List].
func (c *Client) List(ctx context.Context, req ListRequest, yield func(Entry) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // ends the stream when yield fails
	stream, err := c.rpc.List(ctx, &controlpb.ListRequest{Uri: req.URI, Options: req.Options, Credentials: credentialsToWire(req.Credentials), Members: req.Members})
	if err != nil {
		return fromWire(err)
	}
	for {
		reply, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fromWire(err)
		}
		for _, w := range reply.GetEntries() {
			if err := yield(entryFromWire(w)); err != nil {
				return err
			}
		}
	}
}

// Read is [Node.Read].
func (c *Client) Read(ctx context.Context, req ReadRequest, begin func(Entry) error, write func([]byte) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // ends the stream when begin or write fails
	stream, err := c.rpc.Read(ctx, &controlpb.ReadRequest{Uri: req.URI, Name: []byte(req.Name), Options: req.Options, Credentials: credentialsToWire(req.Credentials)})
	if err != nil {
		return fromWire(err)
	}
	var size, got int64
	for first := true; ; first = false {
		reply, err := stream.Recv()
		switch {
		case errors.Is(err, io.EOF) && (first || got != size):
			return fmt.Errorf("read %s: %d of %d bytes came", req.URI, got, size)
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return fromWire(err)
		case first:
			size = reply.GetSize()
			err = begin(Entry{Name: req.Name, Size: size, ETag: reply.GetEtag()})
		default:
			got += int64(len(reply.GetData()))
			err = write(reply.GetData())
		}
		if err != nil {
			return err
		}
	}
}

// Pin is [Node.Pin].
func (c *Client) Pin(ctx context.Context, uri string, ttl time.Duration) (objects, bytes int64, err error) {
	reply, err := c.rpc.Pin(ctx, &controlpb.PinRequest{Uri: uri, TtlNs: int64(ttl)})
	if err != nil {
		return 0, 0, fromWire(err)
	}
	return reply.GetObjects(), reply.GetBytes(), nil
}

// Drain is [Node.Drain].
func (c *Client) Drain(ctx context.Context, tell func(DrainProgress) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // ends the stream when tell fails
	stream, err := c.rpc.Drain(ctx, &controlpb.DrainRequest{})
	if err != nil {
		return fromWire(err)
	}
	for {
		reply, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fromWire(err)
		}
		if err := tell(DrainProgress{DoneBytes: reply.GetDoneBytes(), TotalBytes: reply.GetTotalBytes(), FailedBytes: reply.GetFailedBytes()}); err != nil {
			return err
		}
	}
}

// Version tells what answers.
func (c *Client) Version(ctx context.Context) (Version, error) {
	reply, err := c.rpc.Version(ctx, &controlpb.VersionRequest{})
	if err != nil {
		return Version{}, fromWire(err)
	}
	return Version{Version: reply.GetVersion(), PID: int(reply.GetPid())}, nil
}
