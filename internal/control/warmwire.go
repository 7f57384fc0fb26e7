package control

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"google.golang.org/grpc"

	"github.com/shardwell/shardwell/internal/control/controlpb"
	"github.com/shardwell/shardwell/warm"
)

// How documents about warm-ups travel.
const (
	listPartBytes   = 512 << 10
	maxFoundAtOnce  = 256 // findings of a look in one message
	maxFoundPending = 64 << 10
)

// errNoWarmer is the answer of a node that warms nothing up.
var errNoWarmer = &classed{text: "this node does no warm-ups", class: ErrUsage}

// warmHandlers are the methods of warm.proto.
type warmHandlers struct {
	controlpb.UnimplementedWarmServer
	*handlers
}

// warmer admits a call and returns who answers it.
func (h *warmHandlers) warmer(ctx context.Context, object string) (Warmer, Caller, error) {
	caller, err := h.admit(ctx, OpWarm, object)
	if err != nil {
		return nil, caller, err
	}
	w, ok := h.server.node.(Warmer)
	if !ok {
		return nil, caller, toWire(errNoWarmer)
	}
	return w, caller, nil
}

// specDocument is what travels of a request beside its list.
type specDocument struct {
	warm.Spec
	Options map[string]string `json:"options,omitempty"`
}

// receiver is the side of a stream that gets a request in parts.
type receiver interface {
	Recv() (*controlpb.WarmRequest, error)
}

// receiveRequest puts a request together.
func receiveRequest(in receiver) (req WarmRequest, look WarmLook, err error) {
	for first := true; ; first = false {
		part, err := in.Recv()
		switch {
		case errors.Is(err, io.EOF) && first:
			return req, look, &classed{text: "no request came", class: ErrUsage}
		case errors.Is(err, io.EOF):
			return req, look, nil
		case err != nil:
			return req, look, err
		}
		if first {
			look = WarmLook(part.GetLook())
			var doc specDocument
			if err := json.Unmarshal(part.GetSpec(), &doc); err != nil {
				return req, look, &classed{text: fmt.Sprintf("request: %v", err), class: ErrUsage}
			}
			req.Spec, req.Options = doc.Spec, doc.Options
		}
		if len(req.List)+len(part.GetList()) > warm.MaxListBytes {
			return req, look, &classed{text: fmt.Sprintf("the list takes more than %d bytes, compressed: give it in several parts", warm.MaxListBytes), class: ErrUsage}
		}
		req.List = append(req.List, part.GetList()...)
	}
}

func (h *warmHandlers) Start(in grpc.ClientStreamingServer[controlpb.WarmRequest, controlpb.WarmJob]) error {
	w, caller, err := h.warmer(in.Context(), "")
	if err != nil {
		return err
	}
	req, _, err := receiveRequest(in)
	if err != nil {
		return toWire(err)
	}
	req.Caller = caller
	rec, joined, err := w.StartWarm(in.Context(), req)
	if err != nil {
		return toWire(err)
	}
	doc, err := json.Marshal(rec)
	if err != nil {
		return toWire(err)
	}
	return in.SendAndClose(&controlpb.WarmJob{Record: doc, Joined: joined})
}

func (h *warmHandlers) Follow(in *controlpb.WarmID, out grpc.ServerStreamingServer[controlpb.WarmJob]) error {
	w, _, err := h.warmer(out.Context(), in.GetId())
	if err != nil {
		return err
	}
	return toWire(w.FollowWarm(out.Context(), in.GetId(), func(rec warm.Record) error {
		doc, err := json.Marshal(rec)
		if err != nil {
			return err
		}
		return out.Send(&controlpb.WarmJob{Record: doc})
	}))
}

func (h *warmHandlers) Jobs(ctx context.Context, _ *controlpb.WarmJobsRequest) (*controlpb.WarmJobs, error) {
	w, _, err := h.warmer(ctx, "")
	if err != nil {
		return nil, err
	}
	recs, err := w.WarmJobs(ctx)
	if err != nil {
		return nil, toWire(err)
	}
	reply := &controlpb.WarmJobs{}
	for _, rec := range recs {
		doc, err := json.Marshal(rec)
		if err != nil {
			return nil, toWire(err)
		}
		reply.Records = append(reply.Records, doc)
	}
	return reply, nil
}

func (h *warmHandlers) Cancel(ctx context.Context, in *controlpb.WarmID) (*controlpb.WarmCanceled, error) {
	w, _, err := h.warmer(ctx, in.GetId())
	if err != nil {
		return nil, err
	}
	if err := w.CancelWarm(ctx, in.GetId()); err != nil {
		return nil, toWire(err)
	}
	return &controlpb.WarmCanceled{}, nil
}

func (h *warmHandlers) Look(io grpc.BidiStreamingServer[controlpb.WarmRequest, controlpb.WarmFound]) error {
	w, caller, err := h.warmer(io.Context(), "")
	if err != nil {
		return err
	}
	req, look, err := receiveRequest(io)
	if err != nil {
		return toWire(err)
	}
	req.Caller = caller
	var pending [][]byte
	bytes := 0
	flush := func() error {
		if len(pending) == 0 {
			return nil
		}
		err := io.Send(&controlpb.WarmFound{Found: pending})
		pending, bytes = nil, 0
		return err
	}
	err = w.LookWarm(io.Context(), req, look, func(f WarmFound) error {
		doc, err := json.Marshal(f)
		if err != nil {
			return err
		}
		pending, bytes = append(pending, doc), bytes+len(doc)
		if len(pending) < maxFoundAtOnce && bytes < maxFoundPending {
			return nil
		}
		return flush()
	})
	if flushErr := flush(); err == nil {
		err = flushErr
	}
	return toWire(err)
}

// sender is the side of a stream that gives a request in parts.
type sender interface {
	Send(*controlpb.WarmRequest) error
}

// sendRequest gives a request in parts. An error of Send says only that the answer tells more.
func sendRequest(out sender, req WarmRequest, look WarmLook) error {
	spec, err := json.Marshal(specDocument{req.Spec, req.Options})
	if err != nil {
		return err
	}
	part := &controlpb.WarmRequest{Spec: spec, Look: string(look)}
	for list := req.List; ; {
		n := min(len(list), listPartBytes)
		part.List, list = list[:n], list[n:]
		if err := out.Send(part); err != nil || len(list) == 0 {
			return nil
		}
		part = &controlpb.WarmRequest{}
	}
}

// StartWarm is [Warmer.StartWarm].
func (c *Client) StartWarm(ctx context.Context, req WarmRequest) (rec warm.Record, joined bool, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := c.warm.Start(ctx)
	if err != nil {
		return rec, false, fromWire(err)
	}
	if err := sendRequest(stream, req, ""); err != nil {
		return rec, false, err
	}
	reply, err := stream.CloseAndRecv()
	if err != nil {
		return rec, false, fromWire(err)
	}
	return rec, reply.GetJoined(), json.Unmarshal(reply.GetRecord(), &rec)
}

// FollowWarm is [Warmer.FollowWarm].
func (c *Client) FollowWarm(ctx context.Context, id string, tell func(warm.Record) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // ends the stream when tell fails
	stream, err := c.warm.Follow(ctx, &controlpb.WarmID{Id: id})
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
		var rec warm.Record
		if err := json.Unmarshal(reply.GetRecord(), &rec); err != nil {
			return fmt.Errorf("decode a job: %w", err)
		}
		if err := tell(rec); err != nil {
			return err
		}
	}
}

// WarmJobs is [Warmer.WarmJobs].
func (c *Client) WarmJobs(ctx context.Context) ([]warm.Record, error) {
	reply, err := c.warm.Jobs(ctx, &controlpb.WarmJobsRequest{})
	if err != nil {
		return nil, fromWire(err)
	}
	recs := make([]warm.Record, len(reply.GetRecords()))
	for i, doc := range reply.GetRecords() {
		if err := json.Unmarshal(doc, &recs[i]); err != nil {
			return nil, fmt.Errorf("decode a job: %w", err)
		}
	}
	return recs, nil
}

// CancelWarm is [Warmer.CancelWarm].
func (c *Client) CancelWarm(ctx context.Context, id string) error {
	_, err := c.warm.Cancel(ctx, &controlpb.WarmID{Id: id})
	return fromWire(err)
}

// LookWarm is [Warmer.LookWarm].
func (c *Client) LookWarm(ctx context.Context, req WarmRequest, do WarmLook, tell func(WarmFound) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // ends the stream when tell fails
	stream, err := c.warm.Look(ctx)
	if err != nil {
		return fromWire(err)
	}
	if err := sendRequest(stream, req, do); err != nil {
		return err
	}
	if err := stream.CloseSend(); err != nil {
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
		for _, doc := range reply.GetFound() {
			var f WarmFound
			if err := json.Unmarshal(doc, &f); err != nil {
				return fmt.Errorf("decode what was found: %w", err)
			}
			if err := tell(f); err != nil {
				return err
			}
		}
	}
}
