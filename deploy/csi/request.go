package csi

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
)

// Limits of what a request names.
const (
	maxVolumeIDBytes = 1024
	maxPathBytes     = 4095
	maxNodeIDBytes   = 256
)

// parsePublish works out what a request asks for, without touching anything. target is its
// target path as the mount table has it.
func parsePublish(req *csi.NodePublishVolumeRequest, target string, policy Policy) (w wish, err error) {
	if err := checkVolumeID(req.GetVolumeId()); err != nil {
		return w, err
	}
	if err := checkCapability(req.GetVolumeCapability()); err != nil {
		return w, err
	}
	own, options, err := split(req.GetVolumeContext())
	if err != nil {
		return w, err
	}
	mount := req.GetVolumeCapability().GetMount()
	if err := addMountOptions(options, append([]string{own[attrMountOptions]}, mount.GetMountFlags()...)); err != nil {
		return w, err
	}
	w = wish{volumeID: req.GetVolumeId(), target: target, fingerprint: fingerprint(req)}
	w.alone = req.GetVolumeCapability().GetAccessMode().GetMode() == csi.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER
	if w.uri, err = uriOf(own); err != nil {
		return w, err
	}
	if w.access, err = policy.admit(own, options, req.GetVolumeContext(), req.GetSecrets()); err != nil {
		return w, err
	}
	w.options, err = complete(options, mount.GetVolumeMountGroup())
	return w, err
}

func checkVolumeID(id string) error {
	switch {
	case id == "":
		return refused(codes.InvalidArgument, "volume_id is missing")
	case len(id) > maxVolumeIDBytes:
		return refused(codes.InvalidArgument, "volume_id is longer than %d bytes", maxVolumeIDBytes)
	}
	return nil
}

// checkCapability refuses what is no directory. All access modes are served, read-only:
// an inline volume is always asked for as one with a single writer.
func checkCapability(c *csi.VolumeCapability) error {
	switch {
	case c == nil:
		return refused(codes.InvalidArgument, "volume_capability is missing")
	case c.GetBlock() != nil:
		return refused(codes.InvalidArgument, "a dataset is no block device: give volumeMode Filesystem")
	case c.GetMount() == nil:
		return refused(codes.InvalidArgument, "volume_capability has no access type")
	case c.GetAccessMode() == nil || c.GetAccessMode().GetMode() == csi.VolumeCapability_AccessMode_UNKNOWN:
		return refused(codes.InvalidArgument, "volume_capability has no access mode")
	}
	return nil
}

// fingerprint stands for all of a request that may not change while a volume is published, as it was written, so
// that it is the same for a driver of another version. Secrets, and what the kubelet adds, are no part of it.
func fingerprint(req *csi.NodePublishVolumeRequest) string {
	attributes := map[string]string{}
	for key, value := range req.GetVolumeContext() {
		if !strings.HasPrefix(key, kubePrefix) {
			attributes[key] = value
		}
	}
	c := req.GetVolumeCapability()
	text, _ := json.Marshal([]any{attributes, c.GetMount().GetMountFlags(), c.GetMount().GetVolumeMountGroup(), c.GetAccessMode().GetMode(), req.GetReadonly()})
	sum := sha256.Sum256(text) // maps of strings are sorted, and always encode
	return hex.EncodeToString(sum[:16])
}
