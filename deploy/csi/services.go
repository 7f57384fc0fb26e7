package csi

import (
	"context"
	"path"
	"strings"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// identityService implements the Identity service of CSI.
type identityService struct {
	csi.UnimplementedIdentityServer
	driver *Driver
}

func (s *identityService) GetPluginInfo(context.Context, *csi.GetPluginInfoRequest) (*csi.GetPluginInfoResponse, error) {
	version := s.driver.cfg.Version
	if version == "" {
		version = "unknown"
	}
	return &csi.GetPluginInfoResponse{Name: DriverName, VendorVersion: version}, nil
}

func (s *identityService) GetPluginCapabilities(context.Context, *csi.GetPluginCapabilitiesRequest) (*csi.GetPluginCapabilitiesResponse, error) {
	return &csi.GetPluginCapabilitiesResponse{}, nil
}

// Probe says whether volumes can be published: whether the daemon answers.
func (s *identityService) Probe(ctx context.Context, _ *csi.ProbeRequest) (*csi.ProbeResponse, error) {
	_, err := s.driver.cfg.Daemon.Version(ctx)
	if err != nil {
		s.driver.log.Warn("csi: not ready: the daemon does not answer", "error", err)
	}
	return &csi.ProbeResponse{Ready: wrapperspb.Bool(err == nil)}, nil
}

// nodeService implements the Node service of CSI.
type nodeService struct {
	csi.UnimplementedNodeServer
	driver *Driver
}

func (s *nodeService) NodeGetInfo(context.Context, *csi.NodeGetInfoRequest) (*csi.NodeGetInfoResponse, error) {
	return &csi.NodeGetInfoResponse{NodeId: s.driver.cfg.NodeID, MaxVolumesPerNode: int64(s.driver.cfg.MaxVolumes)}, nil
}

func (s *nodeService) NodeGetCapabilities(context.Context, *csi.NodeGetCapabilitiesRequest) (*csi.NodeGetCapabilitiesResponse, error) {
	var out csi.NodeGetCapabilitiesResponse
	for _, t := range []csi.NodeServiceCapability_RPC_Type{
		csi.NodeServiceCapability_RPC_GET_VOLUME_STATS,
		csi.NodeServiceCapability_RPC_GET_VOLUME_HEALTH,
		csi.NodeServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER,
		csi.NodeServiceCapability_RPC_VOLUME_MOUNT_GROUP,
	} {
		out.Capabilities = append(out.Capabilities, &csi.NodeServiceCapability{
			Type: &csi.NodeServiceCapability_Rpc{Rpc: &csi.NodeServiceCapability_RPC{Type: t}},
		})
	}
	return &out, nil
}

func (s *nodeService) NodePublishVolume(ctx context.Context, req *csi.NodePublishVolumeRequest) (*csi.NodePublishVolumeResponse, error) {
	if err := checkVolumeID(req.GetVolumeId()); err != nil {
		return nil, toStatus(err)
	}
	target, err := s.driver.target(req.GetTargetPath())
	if err != nil {
		return nil, toStatus(err)
	}
	w, err := parsePublish(req, target, s.driver.cfg.Policy)
	switch {
	case err != nil && s.driver.volumes.find(keyOf(req.GetVolumeId(), target)) != nil: // a Secret that was spoilt, a policy that is stricter now
		return nil, transient(err)
	case err != nil:
		return nil, toStatus(err)
	}
	if err := s.driver.volumes.publish(ctx, w); err != nil {
		return nil, err
	}
	return &csi.NodePublishVolumeResponse{}, nil
}

func (s *nodeService) NodeUnpublishVolume(ctx context.Context, req *csi.NodeUnpublishVolumeRequest) (*csi.NodeUnpublishVolumeResponse, error) {
	if err := checkVolumeID(req.GetVolumeId()); err != nil {
		return nil, toStatus(err)
	}
	target, err := s.driver.target(req.GetTargetPath())
	if err != nil {
		return nil, toStatus(err)
	}
	if err := s.driver.volumes.unpublish(ctx, req.GetVolumeId(), target); err != nil {
		return nil, err
	}
	return &csi.NodeUnpublishVolumeResponse{}, nil
}

// NodeGetVolumeStats tells the size of the dataset, as far as it was listed, as capacity, and what this node
// holds of it as used. All of it is available, as a volume that cannot be written to never fills up: the usual
// alerts would tell of one that is cached as a whole.
func (s *nodeService) NodeGetVolumeStats(ctx context.Context, req *csi.NodeGetVolumeStatsRequest) (*csi.NodeGetVolumeStatsResponse, error) {
	if err := checkVolumeID(req.GetVolumeId()); err != nil {
		return nil, toStatus(err)
	}
	if req.GetVolumePath() == "" {
		return nil, status.Error(codes.InvalidArgument, "volume_path is missing")
	}
	v := s.driver.volumes
	shared := (*shared)(nil)
	if target, err := s.driver.target(req.GetVolumePath()); err == nil {
		shared = v.find(keyOf(req.GetVolumeId(), target))
	}
	if shared == nil {
		return nil, status.Errorf(codes.NotFound, "volume %s is not published at %s", req.GetVolumeId(), req.GetVolumePath())
	}
	u, err := v.daemon.Usage(ctx, shared.dir)
	if err != nil {
		return nil, transient(err)
	}
	return &csi.NodeGetVolumeStatsResponse{
		Usage: []*csi.VolumeUsage{
			{Unit: csi.VolumeUsage_BYTES, Total: u.Bytes, Used: u.LocalBytes, Available: u.Bytes},
			{Unit: csi.VolumeUsage_INODES, Total: u.Objects, Used: u.Objects, Available: u.Objects},
		},
	}, nil
}

// NodeGetVolumeHealth says whether a volume can be read: whether its mount and the daemon are there.
func (s *nodeService) NodeGetVolumeHealth(ctx context.Context, req *csi.NodeGetVolumeHealthRequest) (*csi.NodeGetVolumeHealthResponse, error) {
	if err := checkVolumeID(req.GetVolumeId()); err != nil {
		return nil, toStatus(err)
	}
	v := s.driver.volumes
	shared := v.findID(req.GetVolumeId())
	if path := req.GetVolumePublishPath(); path != "" {
		shared = nil
		if target, err := s.driver.target(path); err == nil {
			shared = v.find(keyOf(req.GetVolumeId(), target))
		}
	}
	if shared == nil {
		return nil, status.Errorf(codes.NotFound, "volume %s is not published here", req.GetVolumeId())
	}
	health := &csi.VolumeHealth{VolumeId: req.GetVolumeId()}
	add := func(reason, message string) {
		health.HealthStatuses = append(health.HealthStatuses, &csi.VolumeHealth_VolumeHealthEntry{
			Status: csi.VolumeHealthErrorType_INACCESSIBLE, Reason: reason, Message: message,
		})
	}
	if !v.served(shared) {
		add("MountEnded", "the mount of "+shared.URI+" has ended with the daemon that served it; it is made again when that is back")
	}
	if _, err := v.daemon.Version(ctx); err != nil {
		add("DaemonUnreachable", status.Convert(transient(err)).Message())
	}
	return &csi.NodeGetVolumeHealthResponse{VolumeHealth: health}, nil
}

// target checks a target path and returns it as the mount table has it.
func (d *Driver) target(path string) (string, error) {
	target, err := targetPath(path, d.cfg.KubeletDir, d.volumes.root)
	if err == nil && (target == d.volumes.dir || strings.HasPrefix(target, d.volumes.dir+"/")) {
		err = refused(codes.InvalidArgument, "target_path %q lies in the driver's own directory", path)
	}
	return target, err
}

// logged writes a line for each call: what, of which volume, for how long, and what was wrong. Requests are never
// printed, as they hold secrets.
func (d *Driver) logged(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	began := time.Now()
	reply, err := handler(ctx, req)
	args := []any{"call", path.Base(info.FullMethod), "took", time.Since(began).Round(time.Millisecond)}
	if v, ok := req.(interface{ GetVolumeId() string }); ok {
		args = append(args, "volume", v.GetVolumeId())
	}
	if v, ok := req.(interface{ GetTargetPath() string }); ok {
		args = append(args, "target", v.GetTargetPath())
	}
	if err != nil {
		d.log.Error("csi: call failed", append(args, "code", status.Code(err).String(), "error", status.Convert(err).Message())...)
	} else {
		d.log.Debug("csi: call", args...)
	}
	return reply, withoutRequest(err)
}
