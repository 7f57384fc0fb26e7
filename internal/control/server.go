package control

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"time"

	"google.golang.org/grpc"

	"github.com/shardwell/shardwell/internal/control/controlpb"
)

// Limits of the socket.
const (
	maxRequestBytes      = 1 << 20 // options of a mount
	maxConcurrentStreams = 64      // of one connection
	maxReplyEntries      = 256     // of a listing, in one message
	stopTimeout          = 3 * time.Second
)

// Server answers on the control socket for one node.
type Server struct {
	node     Node
	version  string
	log      *slog.Logger
	patience time.Duration // with requests at work when the server stops
}

// NewServer returns a server for node. version is what [Client.Version] gets to
// see. A nil log discards.
func NewServer(node Node, version string, log *slog.Logger) *Server {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	return &Server{node: node, version: version, log: log, patience: stopTimeout}
}

// Run serves on a listener made by [Listen] until ctx ends or the listener
// fails, and closes it. It returns nil when ctx ended; requests that are
// then at work have stopTimeout to end.
func (s *Server) Run(ctx context.Context, l net.Listener) error {
	g := grpc.NewServer(
		grpc.Creds(peerCredentials{}),
		grpc.MaxRecvMsgSize(maxRequestBytes),
		grpc.MaxConcurrentStreams(maxConcurrentStreams),
		grpc.WaitForHandlers(true),
	)
	h := &handlers{server: s}
	controlpb.RegisterControlServer(g, h)
	controlpb.RegisterWarmServer(g, &warmHandlers{handlers: h})
	served := make(chan error, 1)
	go func() { served <- g.Serve(l) }()
	select {
	case err := <-served:
		g.Stop()
		return fmt.Errorf("control socket %s: %w", l.Addr(), err)
	case <-ctx.Done():
	}
	cut := time.AfterFunc(s.patience, g.Stop)
	g.GracefulStop()
	cut.Stop()
	<-served
	return nil
}

// handlers are the methods of the wire, kept off the exported [Server].
type handlers struct {
	controlpb.UnimplementedControlServer
	server *Server
}

// admit decides whether the caller may do something, and logs what it asks.
func (h *handlers) admit(ctx context.Context, op Operation, object string) (Caller, error) {
	caller, ok := callerFrom(ctx)
	if !ok {
		return caller, toWire(refusal("the caller is not known"))
	}
	err := Authorize(caller, uint32(os.Geteuid()), op)
	if err != nil {
		h.server.log.Warn("control: refused", "op", op, "object", object, "uid", caller.UID, "pid", caller.PID)
		return caller, toWire(err)
	}
	h.server.log.Debug("control", "op", op, "object", object, "uid", caller.UID, "pid", caller.PID)
	return caller, nil
}

func (h *handlers) Mount(ctx context.Context, in *controlpb.MountRequest) (*controlpb.MountReply, error) {
	caller, err := h.admit(ctx, OpMount, in.GetDir())
	if err != nil {
		return nil, err
	}
	if err := checkDir(in.GetDir()); err != nil {
		return nil, toWire(err)
	}
	reply, err := h.server.node.Mount(ctx, MountRequest{URI: in.GetUri(), Dir: in.GetDir(), Options: in.GetOptions(), Caller: caller, Credentials: credentialsFromWire(in.GetCredentials())})
	if err != nil {
		return nil, toWire(err)
	}
	return &controlpb.MountReply{Source: reply.Source, Existing: reply.Existing}, nil
}

func (h *handlers) Umount(ctx context.Context, in *controlpb.UmountRequest) (*controlpb.UmountReply, error) {
	if _, err := h.admit(ctx, OpUmount, in.GetDir()); err != nil {
		return nil, err
	}
	if err := checkDir(in.GetDir()); err != nil {
		return nil, toWire(err)
	}
	if err := h.server.node.Umount(ctx, in.GetDir()); err != nil {
		return nil, toWire(err)
	}
	return &controlpb.UmountReply{}, nil
}

func (h *handlers) Release(ctx context.Context, in *controlpb.ReleaseRequest) (*controlpb.ReleaseReply, error) {
	if _, err := h.admit(ctx, OpUmount, in.GetDir()); err != nil {
		return nil, err
	}
	if err := checkDir(in.GetDir()); err != nil {
		return nil, toWire(err)
	}
	if err := h.server.node.Release(ctx, in.GetDir()); err != nil {
		return nil, toWire(err)
	}
	return &controlpb.ReleaseReply{}, nil
}

func (h *handlers) Usage(ctx context.Context, in *controlpb.UsageRequest) (*controlpb.UsageReply, error) {
	if _, err := h.admit(ctx, OpUsage, in.GetDir()); err != nil {
		return nil, err
	}
	u, err := h.server.node.Usage(ctx, in.GetDir())
	if err != nil {
		return nil, toWire(err)
	}
	return &controlpb.UsageReply{Objects: u.Objects, Bytes: u.Bytes, LocalBytes: u.LocalBytes}, nil
}

func (h *handlers) Status(ctx context.Context, _ *controlpb.StatusRequest) (*controlpb.StatusReply, error) {
	if _, err := h.admit(ctx, OpStatus, ""); err != nil {
		return nil, err
	}
	st, err := h.server.node.Status(ctx)
	if err != nil {
		return nil, toWire(err)
	}
	doc, err := json.Marshal(st.normal())
	if err != nil {
		return nil, toWire(fmt.Errorf("encode status: %w", err))
	}
	return &controlpb.StatusReply{Json: doc}, nil
}

func (h *handlers) Refresh(ctx context.Context, in *controlpb.RefreshRequest) (*controlpb.RefreshReply, error) {
	if _, err := h.admit(ctx, OpRefresh, in.GetUri()); err != nil {
		return nil, err
	}
	n, err := h.server.node.Refresh(ctx, in.GetUri())
	if err != nil {
		return nil, toWire(err)
	}
	return &controlpb.RefreshReply{Forgotten: int64(n)}, nil
}

func (h *handlers) List(in *controlpb.ListRequest, out grpc.ServerStreamingServer[controlpb.ListReply]) error {
	caller, err := h.admit(out.Context(), OpList, in.GetUri())
	if err != nil {
		return err
	}
	batch := make([]*controlpb.Entry, 0, maxReplyEntries)
	flush := func() error {
		if len(batch) == 0 {
			return nil
		}
		err := out.Send(&controlpb.ListReply{Entries: batch})
		batch = make([]*controlpb.Entry, 0, maxReplyEntries) // the old one may still be on its way
		return err
	}
	req := ListRequest{URI: in.GetUri(), Options: in.GetOptions(), Caller: caller, Credentials: credentialsFromWire(in.GetCredentials()), Members: in.GetMembers()}
	err = h.server.node.List(out.Context(), req, func(e Entry) error {
		batch = append(batch, entryToWire(e))
		if len(batch) < maxReplyEntries {
			return nil
		}
		return flush()
	})
	if flushErr := flush(); err == nil {
		err = flushErr
	}
	return toWire(err)
}

func (h *handlers) Read(in *controlpb.ReadRequest, out grpc.ServerStreamingServer[controlpb.ReadReply]) error {
	caller, err := h.admit(out.Context(), OpRead, in.GetUri())
	if err != nil {
		return err
	}
	req := ReadRequest{URI: in.GetUri(), Name: string(in.GetName()), Options: in.GetOptions(), Caller: caller, Credentials: credentialsFromWire(in.GetCredentials())}
	// Send has encoded a message when it returns, so that what it was lent is free again.
	return toWire(h.server.node.Read(out.Context(), req,
		func(e Entry) error { return out.Send(&controlpb.ReadReply{Size: e.Size, Etag: e.ETag}) },
		func(p []byte) error { return out.Send(&controlpb.ReadReply{Data: p}) }))
}

func (h *handlers) Pin(ctx context.Context, in *controlpb.PinRequest) (*controlpb.PinReply, error) {
	if _, err := h.admit(ctx, OpPin, in.GetUri()); err != nil {
		return nil, err
	}
	if in.GetTtlNs() < 0 {
		return nil, toWire(&classed{text: "a pin cannot last for a negative time", class: ErrUsage})
	}
	objects, bytes, err := h.server.node.Pin(ctx, in.GetUri(), time.Duration(in.GetTtlNs()))
	if err != nil {
		return nil, toWire(err)
	}
	return &controlpb.PinReply{Objects: objects, Bytes: bytes}, nil
}

func (h *handlers) Drain(_ *controlpb.DrainRequest, out grpc.ServerStreamingServer[controlpb.DrainReply]) error {
	if _, err := h.admit(out.Context(), OpDrain, ""); err != nil {
		return err
	}
	err := h.server.node.Drain(out.Context(), func(p DrainProgress) error {
		return out.Send(&controlpb.DrainReply{DoneBytes: p.DoneBytes, TotalBytes: p.TotalBytes, FailedBytes: p.FailedBytes})
	})
	return toWire(err)
}

func (h *handlers) Version(ctx context.Context, _ *controlpb.VersionRequest) (*controlpb.VersionReply, error) {
	if _, err := h.admit(ctx, OpVersion, ""); err != nil {
		return nil, err
	}
	return &controlpb.VersionReply{Version: h.server.version, Pid: int64(os.Getpid())}, nil
}

// checkDir refuses what a client of ours does not send.
func checkDir(dir string) error {
	if !filepath.IsAbs(dir) || filepath.Clean(dir) != dir {
		return &classed{text: fmt.Sprintf("%q is not a clean absolute path", dir), class: ErrUsage}
	}
	return nil
}

func credentialsToWire(c Credentials) *controlpb.Credentials {
	if !c.Given() {
		return nil
	}
	return &controlpb.Credentials{AccessKey: c.AccessKey, SecretKey: c.SecretKey, SessionToken: c.SessionToken,
		WebIdentityToken: c.WebIdentityToken, RoleArn: c.RoleARN, StsEndpoint: c.STSEndpoint}
}

func credentialsFromWire(w *controlpb.Credentials) Credentials {
	return Credentials{AccessKey: w.GetAccessKey(), SecretKey: w.GetSecretKey(), SessionToken: w.GetSessionToken(),
		WebIdentityToken: w.GetWebIdentityToken(), RoleARN: w.GetRoleArn(), STSEndpoint: w.GetStsEndpoint()}
}

func entryToWire(e Entry) *controlpb.Entry {
	w := &controlpb.Entry{Name: []byte(e.Name), Size: e.Size, Etag: e.ETag, LeftOut: e.LeftOut}
	if !e.ModTime.IsZero() {
		w.ModTimeNs = e.ModTime.UnixNano()
	}
	return w
}

func entryFromWire(w *controlpb.Entry) Entry {
	e := Entry{Name: string(w.GetName()), Size: w.GetSize(), ETag: w.GetEtag(), LeftOut: w.GetLeftOut()}
	if w.GetModTimeNs() != 0 {
		e.ModTime = time.Unix(0, w.GetModTimeNs())
	}
	return e
}
