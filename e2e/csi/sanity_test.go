package csi_test

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/kubernetes-csi/csi-test/v5/pkg/sanity"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/shardwell/shardwell/e2e/cluster"
)

// idempotentCalls is how often the suite repeats calls that must bear it; its own default is 10.
const idempotentCalls = 25

// The official suite runs against the driver with its real mounts. Volumes of Shardwell are not
// created: a controller that only this test has names the bucket for those that the suite makes.
func TestSanity(t *testing.T) {
	c := start(t, cluster.Options{Nodes: 1})
	put(t, c, "a.txt", "hello")
	d := drive(t, c)
	proxy := filepath.Join(d.Dir, "sanity.sock")
	serveProxy(t, d.Conn, proxy)

	config := sanity.NewTestConfig()
	config.Address = "unix://" + proxy
	config.TargetPath = filepath.Join(d.Dir, "pods", "sanity")
	config.StagingPath = filepath.Join(d.Dir, "pods", "sanity-staging")
	config.IdempotentCount = idempotentCalls
	config.CheckPath = func(path string) (sanity.PathKind, error) {
		switch _, err := os.Lstat(path); {
		case err == nil:
			return sanity.PathIsDir, nil
		case os.IsNotExist(err):
			return sanity.PathIsNotFound, nil
		default:
			return "", err
		}
	}
	sanity.Test(t, config)
}

// serveProxy passes Identity and Node on to the driver, and adds a controller.
func serveProxy(t *testing.T, driver *grpc.ClientConn, socket string) {
	t.Helper()
	l, err := net.Listen("unix", socket)
	must(t, err)
	g := grpc.NewServer()
	csi.RegisterIdentityServer(g, identity{driver: csi.NewIdentityClient(driver)})
	csi.RegisterControllerServer(g, &controller{volumes: make(map[string]*csi.CreateVolumeRequest)})
	csi.RegisterNodeServer(g, node{driver: csi.NewNodeClient(driver)})
	served := make(chan error, 1)
	go func() { served <- g.Serve(l) }()
	t.Cleanup(func() {
		g.Stop()
		<-served
	})
}

// identity is the driver's, which also claims to have a controller.
type identity struct {
	csi.UnimplementedIdentityServer
	driver csi.IdentityClient
}

func (i identity) GetPluginInfo(ctx context.Context, r *csi.GetPluginInfoRequest) (*csi.GetPluginInfoResponse, error) {
	return i.driver.GetPluginInfo(ctx, r)
}

func (i identity) Probe(ctx context.Context, r *csi.ProbeRequest) (*csi.ProbeResponse, error) {
	return i.driver.Probe(ctx, r)
}

func (i identity) GetPluginCapabilities(ctx context.Context, r *csi.GetPluginCapabilitiesRequest) (*csi.GetPluginCapabilitiesResponse, error) {
	out, err := i.driver.GetPluginCapabilities(ctx, r)
	if err == nil {
		out.Capabilities = append(out.Capabilities, &csi.PluginCapability{Type: &csi.PluginCapability_Service_{
			Service: &csi.PluginCapability_Service{Type: csi.PluginCapability_Service_CONTROLLER_SERVICE},
		}})
	}
	return out, err
}

// node is the driver's.
type node struct {
	csi.UnimplementedNodeServer
	driver csi.NodeClient
}

func (n node) NodePublishVolume(ctx context.Context, r *csi.NodePublishVolumeRequest) (*csi.NodePublishVolumeResponse, error) {
	return n.driver.NodePublishVolume(ctx, r)
}

func (n node) NodeUnpublishVolume(ctx context.Context, r *csi.NodeUnpublishVolumeRequest) (*csi.NodeUnpublishVolumeResponse, error) {
	return n.driver.NodeUnpublishVolume(ctx, r)
}

func (n node) NodeGetVolumeStats(ctx context.Context, r *csi.NodeGetVolumeStatsRequest) (*csi.NodeGetVolumeStatsResponse, error) {
	return n.driver.NodeGetVolumeStats(ctx, r)
}

func (n node) NodeGetVolumeHealth(ctx context.Context, r *csi.NodeGetVolumeHealthRequest) (*csi.NodeGetVolumeHealthResponse, error) {
	return n.driver.NodeGetVolumeHealth(ctx, r)
}

func (n node) NodeGetCapabilities(ctx context.Context, r *csi.NodeGetCapabilitiesRequest) (*csi.NodeGetCapabilitiesResponse, error) {
	return n.driver.NodeGetCapabilities(ctx, r)
}

func (n node) NodeGetInfo(ctx context.Context, r *csi.NodeGetInfoRequest) (*csi.NodeGetInfoResponse, error) {
	return n.driver.NodeGetInfo(ctx, r)
}

// controller creates volumes that show the bucket of the test.
type controller struct {
	csi.UnimplementedControllerServer
	mu      sync.Mutex
	volumes map[string]*csi.CreateVolumeRequest // by name, which is the id
}

func (c *controller) ControllerGetCapabilities(context.Context, *csi.ControllerGetCapabilitiesRequest) (*csi.ControllerGetCapabilitiesResponse, error) {
	var out csi.ControllerGetCapabilitiesResponse
	for _, t := range []csi.ControllerServiceCapability_RPC_Type{
		csi.ControllerServiceCapability_RPC_CREATE_DELETE_VOLUME, csi.ControllerServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER,
	} {
		out.Capabilities = append(out.Capabilities, &csi.ControllerServiceCapability{
			Type: &csi.ControllerServiceCapability_Rpc{Rpc: &csi.ControllerServiceCapability_RPC{Type: t}},
		})
	}
	return &out, nil
}

func (c *controller) CreateVolume(_ context.Context, r *csi.CreateVolumeRequest) (*csi.CreateVolumeResponse, error) {
	switch {
	case r.GetName() == "":
		return nil, status.Error(codes.InvalidArgument, "no name")
	case len(r.GetVolumeCapabilities()) == 0:
		return nil, status.Error(codes.InvalidArgument, "no capabilities")
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if have, ok := c.volumes[r.GetName()]; ok && have.GetCapacityRange().GetRequiredBytes() != r.GetCapacityRange().GetRequiredBytes() {
		return nil, status.Error(codes.AlreadyExists, "of another size")
	}
	c.volumes[r.GetName()] = r
	return &csi.CreateVolumeResponse{Volume: &csi.Volume{
		VolumeId: r.GetName(), CapacityBytes: r.GetCapacityRange().GetRequiredBytes(), VolumeContext: map[string]string{"bucketName": bucket},
	}}, nil
}

func (c *controller) DeleteVolume(_ context.Context, r *csi.DeleteVolumeRequest) (*csi.DeleteVolumeResponse, error) {
	if r.GetVolumeId() == "" {
		return nil, status.Error(codes.InvalidArgument, "no volume id")
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.volumes, r.GetVolumeId())
	return &csi.DeleteVolumeResponse{}, nil
}

func (c *controller) ValidateVolumeCapabilities(_ context.Context, r *csi.ValidateVolumeCapabilitiesRequest) (*csi.ValidateVolumeCapabilitiesResponse, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case r.GetVolumeId() == "" || len(r.GetVolumeCapabilities()) == 0:
		return nil, status.Error(codes.InvalidArgument, "no volume id or no capabilities")
	case c.volumes[r.GetVolumeId()] == nil:
		return nil, status.Error(codes.NotFound, fmt.Sprintf("no volume %s", r.GetVolumeId()))
	}
	return &csi.ValidateVolumeCapabilitiesResponse{
		Confirmed: &csi.ValidateVolumeCapabilitiesResponse_Confirmed{VolumeCapabilities: r.GetVolumeCapabilities()},
	}, nil
}
