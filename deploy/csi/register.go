package csi

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"strings"

	"google.golang.org/grpc"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

// registration is what the kubelet is told of the driver.
type registration struct {
	dir  string // in which the kubelet looks for sockets of plugins
	path string // of the driver's socket, as the kubelet sees it
	log  *slog.Logger
}

// register serves the kubelet's questions on a socket of its own until ctx ends, and removes the socket. The
// kubelet asks when the socket appears, and again when it has restarted.
func register(ctx context.Context, r registration) error {
	l, err := listen(filepath.Join(r.dir, DriverName+"-reg.sock"))
	if err != nil {
		return err
	}
	g := grpc.NewServer(grpc.WaitForHandlers(true))
	registerapi.RegisterRegistrationServer(g, &registrar{registration: r})
	return serveGRPC(ctx, g, l)
}

type registrar struct {
	registerapi.UnimplementedRegistrationServer
	registration
}

// GetInfo tells the kubelet where the driver is. 1.0.0 is a version of the plugin interface, not of CSI.
func (r *registrar) GetInfo(context.Context, *registerapi.InfoRequest) (*registerapi.PluginInfo, error) {
	return &registerapi.PluginInfo{Type: registerapi.CSIPlugin, Name: DriverName, Endpoint: r.path, SupportedVersions: []string{"1.0.0"}}, nil
}

// NotifyRegistrationStatus hears whether the kubelet took the driver. It tries again by itself.
func (r *registrar) NotifyRegistrationStatus(_ context.Context, s *registerapi.RegistrationStatus) (*registerapi.RegistrationStatusResponse, error) {
	if s.GetPluginRegistered() {
		r.log.Info("csi: registered with the kubelet")
	} else {
		r.log.Error("csi: the kubelet does not take the driver", "error", s.GetError())
	}
	return &registerapi.RegistrationStatusResponse{}, nil
}

// Hostname is the default of Config.NodeID: the kubelet names a node so when it is not told otherwise.
func Hostname() string {
	name, err := os.Hostname()
	if err != nil {
		return ""
	}
	return strings.ToLower(name)
}
