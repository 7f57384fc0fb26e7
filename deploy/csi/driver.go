// Package csi is the driver through which Pods get Shardwell volumes: the Identity
// and Node services of CSI, spoken on a unix socket to the kubelet of this machine.
//
// It promises that a volume is a read-only bind of a mount that the node daemon
// serves, and that volumes of one dataset, identity and set of options share that
// mount; that publishing what is published changes nothing and ends no reader; that
// a publish which fails leaves nothing behind; that an unpublish ends in time whatever the
// daemon and the readers do; that what an earlier life left without an owner is
// taken away; and that no secret is written to a log, a file or a message.
//
// It reads no object and holds no mount itself: that is left to the daemon, which it
// asks over the control socket. The driver may be replaced at any time, and so may
// the daemon: mounts that ended with it are made again.
package csi

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"path/filepath"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"

	"github.com/shardwell/shardwell/internal/config"
)

// DriverName is the name of the CSIDriver object and in volumes.
const DriverName = "csi.shardwell.io"

// Defaults and limits of a driver.
const (
	DefaultKubeletDir = "/var/lib/kubelet"
	DefaultMaxVolumes = 1000 // at once; a node serves 1024 mounts, and a kubelet runs some hundred Pods
	maxRequestBytes   = 4 << 20
	stopPatience      = 5 * time.Second // with calls at work when the driver stops
)

// Config says how a driver runs. Endpoint, NodeID and Daemon are needed.
type Config struct {
	Endpoint   string // unix:///PATH of the socket on which the kubelet calls
	NodeID     string // name of this node in Kubernetes
	KubeletDir string // where the kubelet keeps Pods; "" means DefaultKubeletDir
	Daemon     Daemon // the node of this machine
	Version    string // of the program

	SelfRegister     bool   // make the driver known to the kubelet without a registrar beside it
	RegistrationPath string // of the socket as the kubelet sees it; "" means that of Endpoint

	MaxVolumes int    // at once; 0 means DefaultMaxVolumes
	Policy     Policy // what volumes may ask for

	Logger *slog.Logger // nil discards
}

// Driver serves the volumes of one machine.
type Driver struct {
	cfg     Config
	log     *slog.Logger
	socket  string
	host    *kernel
	volumes *volumes // set by Run before anybody can ask
}

// New prepares a driver. Errors are in words meant for the user; those of type
// *[config.Error] are about cfg.
func New(cfg Config) (*Driver, error) {
	if cfg.KubeletDir == "" {
		cfg.KubeletDir = DefaultKubeletDir
	}
	if cfg.MaxVolumes == 0 {
		cfg.MaxVolumes = DefaultMaxVolumes
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	socket, err := socketPath(cfg.Endpoint)
	switch {
	case err != nil:
		return nil, err
	case cfg.NodeID == "" || len(cfg.NodeID) > maxNodeIDBytes:
		return nil, &config.Error{What: fmt.Sprintf("%q is no name of a node", cfg.NodeID), Where: "--node-id", Do: fmt.Sprintf("give its name in Kubernetes, at most %d bytes", maxNodeIDBytes)}
	case cfg.Daemon == nil:
		return nil, errors.New("no daemon to ask")
	}
	if cfg.RegistrationPath == "" {
		cfg.RegistrationPath = socket
	}
	if err := cfg.Policy.validate(); err != nil {
		return nil, err
	}
	host, err := newKernel(cfg.KubeletDir)
	if err != nil {
		return nil, err
	}
	return &Driver{cfg: cfg, log: cfg.Logger, socket: socket, host: host}, nil
}

// Run takes over what an earlier driver left, and serves until ctx ends (nil) or a part fails. Volumes stay
// as they are then. Errors are in words meant for the user.
func (d *Driver) Run(ctx context.Context) error {
	dir := filepath.Join(d.host.root, "plugins", DriverName)
	unlock, err := lockDir(ctx, dir)
	if err != nil {
		return err
	}
	defer unlock()
	d.cfg.Policy.caDir = filepath.Join(dir, "ca")
	d.volumes, err = openVolumes(volumesConfig{
		daemon: d.cfg.Daemon, host: d.host, log: d.log, maxVolumes: d.cfg.MaxVolumes, root: d.host.root, dir: dir,
	})
	if err != nil {
		return err
	}
	l, err := listen(d.socket)
	if err != nil {
		return err
	}
	group, run := errgroup.WithContext(ctx)
	group.Go(func() error { return d.serve(run, l) })
	group.Go(func() error { return d.volumes.Run(run) })
	if d.cfg.SelfRegister {
		group.Go(func() error {
			return register(run, registration{dir: filepath.Join(d.cfg.KubeletDir, "plugins_registry"), path: d.cfg.RegistrationPath, log: d.log})
		})
	}
	d.log.Info("csi: serving", "socket", d.socket, "node", d.cfg.NodeID, "version", d.cfg.Version)
	err = group.Wait()
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// serve answers on a listener until ctx ends, and closes it.
func (d *Driver) serve(ctx context.Context, l net.Listener) error {
	g := grpc.NewServer(grpc.UnaryInterceptor(d.logged), grpc.MaxRecvMsgSize(maxRequestBytes), grpc.WaitForHandlers(true))
	csi.RegisterIdentityServer(g, &identityService{driver: d})
	csi.RegisterNodeServer(g, &nodeService{driver: d})
	return serveGRPC(ctx, g, l)
}

// serveGRPC serves until ctx ends (nil) or the listener fails, and ends what is at work.
func serveGRPC(ctx context.Context, g *grpc.Server, l net.Listener) error {
	served := make(chan error, 1)
	go func() { served <- g.Serve(l) }()
	select {
	case err := <-served:
		g.Stop()
		return fmt.Errorf("socket %s: %w", l.Addr(), err)
	case <-ctx.Done():
	}
	cut := time.AfterFunc(stopPatience, g.Stop)
	g.GracefulStop()
	cut.Stop()
	<-served
	return nil
}
