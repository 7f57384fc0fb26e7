// Package csi runs the product's CSI driver beside a node of a cluster, and asks it as
// a kubelet does, over its socket and with the requests of a kubelet.
//
// It knows the driver by its command line and by CSI. It is a part of the end-to-end tests.
package csi

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/shardwell/shardwell/e2e/cage"
	"github.com/shardwell/shardwell/e2e/cluster"
)

// Driver is `shardwell csi` for one node.
type Driver struct {
	Dir    string // the kubelet's directory
	Socket string
	Proc   *cage.Process // of the last start
	Conn   *grpc.ClientConn
	Node   csi.NodeClient

	tools cluster.Tools
	node  *cluster.Node
	flags []string
}

// Start runs a driver for a node of a cluster, with flags besides those that it needs. Close must be called
// before the cluster is closed.
func Start(c *cluster.Cluster, n *cluster.Node, flags ...string) (*Driver, error) {
	d := &Driver{Dir: filepath.Join(c.Cage.Dir, n.Name, "kubelet"), tools: c.Tools, node: n, flags: flags}
	d.Socket = filepath.Join(d.Dir, "csi.sock")
	for _, dir := range []string{"pods", "plugins_registry"} {
		if err := os.MkdirAll(filepath.Join(d.Dir, dir), 0o750); err != nil {
			return nil, err
		}
	}
	conn, err := grpc.NewClient("passthrough:///csi", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.WaitForReady(true)),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", d.Socket)
		}))
	if err != nil {
		return nil, err
	}
	d.Conn, d.Node = conn, csi.NewNodeClient(conn)
	return d, d.Launch()
}

// startWait bounds the wait for a driver to answer.
const startWait = 30 * time.Second

// Launch runs the process and waits until it answers; also after it was ended.
func (d *Driver) Launch() error {
	args := append([]string{
		d.tools.Shardwell, "csi", "--endpoint", "unix://" + d.Socket, "--node-id", d.node.Name,
		"--kubelet-dir", d.Dir, "--control-socket", d.node.Socket, "--log-level", "debug",
	}, d.flags...)
	p, err := d.node.Host.Start(cage.Command{Name: "csi", Args: args})
	if err != nil {
		return err
	}
	d.Proc = p
	ctx, cancel := context.WithTimeout(context.Background(), startWait)
	defer cancel()
	if _, err := csi.NewIdentityClient(d.Conn).Probe(ctx, &csi.ProbeRequest{}); err != nil {
		return fmt.Errorf("csi: the driver of %s does not answer: %w\n%s", d.node.Name, err, p.Output())
	}
	return nil
}

// Close ends the driver and takes away what is mounted for it. What was still there is an error.
func (d *Driver) Close() error {
	_ = d.Conn.Close()
	_, err := d.Proc.Stop(startWait)
	if left := d.Mounts(); len(left) > 0 {
		err = fmt.Errorf("csi: left mounted: %s", strings.Join(left, ", "))
		for i := len(left) - 1; i >= 0; i-- {
			_ = syscall.Unmount(left[i], syscall.MNT_DETACH)
		}
	}
	return err
}

// Mounts lists what is mounted below the kubelet's directory.
func (d *Driver) Mounts() (all []string) {
	table, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil
	}
	for line := range strings.Lines(string(table)) {
		if f := strings.Fields(line); len(f) > 4 && strings.HasPrefix(f[4], d.Dir+"/") {
			all = append(all, f[4])
		}
	}
	return all
}

// Target makes the directory in which the kubelet wants a volume of a Pod, and returns the path of the volume.
func (d *Driver) Target(pod string) (string, error) {
	dir := filepath.Join(d.Dir, "pods", pod, "volumes", "kubernetes.io~csi", "data")
	return filepath.Join(dir, "mount"), os.MkdirAll(dir, 0o750)
}

// Request is the publish of an inline volume of a Pod, as the kubelet sends it.
func (d *Driver) Request(pod string, attributes map[string]string) (*csi.NodePublishVolumeRequest, error) {
	target, err := d.Target(pod)
	if err != nil {
		return nil, err
	}
	all := map[string]string{
		"csi.storage.k8s.io/ephemeral": "true", "csi.storage.k8s.io/pod.name": pod, "csi.storage.k8s.io/pod.namespace": "team",
		"csi.storage.k8s.io/pod.uid": pod, "csi.storage.k8s.io/serviceAccount.name": "default",
	}
	for k, v := range attributes {
		all[k] = v
	}
	return &csi.NodePublishVolumeRequest{
		VolumeId: "csi-" + pod, TargetPath: target, Readonly: true, VolumeContext: all,
		VolumeCapability: &csi.VolumeCapability{
			AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{}},
			AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER},
		},
	}, nil
}

// Publish gives a Pod an inline volume and returns where it is.
func (d *Driver) Publish(ctx context.Context, pod string, attributes map[string]string) (string, error) {
	req, err := d.Request(pod, attributes)
	if err != nil {
		return "", err
	}
	_, err = d.Node.NodePublishVolume(ctx, req)
	return req.GetTargetPath(), err
}

// Unpublish takes the volume of a Pod away.
func (d *Driver) Unpublish(ctx context.Context, pod string) error {
	target, err := d.Target(pod)
	if err != nil {
		return err
	}
	_, err = d.Node.NodeUnpublishVolume(ctx, &csi.NodeUnpublishVolumeRequest{VolumeId: "csi-" + pod, TargetPath: target})
	return err
}
