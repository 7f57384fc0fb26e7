// Package kubeletclient holds the driver against the kubelet's own client of CSI: the volume plugin
// kubernetes.io/csi, in this process, with a fake API server behind it, calls the real driver beside a real
// node, after the kubelet's plugin manager has found its registration socket.
//
// It promises what a kubelet would see: what is asked for in which order, what is left in a Pod's directory after
// a failure, and what happens when volumes are published again. Containers, the scheduler and a real API server are
// left to the tests in e2e/kubernetes. It has a module of its own, as it compiles a part of Kubernetes.
package kubeletclient
