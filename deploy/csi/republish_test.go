package csi

import (
	"context"
	"encoding/pem"
	"errors"
	"fmt"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/shardwell/shardwell/internal/control"
)

// A volume that is published never fails for good, whatever its Secret, its token or the administrator's
// policy have become: the kubelet would give up a mount that works.
func TestRepublishOfWhatWouldBeRefused(t *testing.T) {
	pod := func(target string) *csi.NodePublishVolumeRequest {
		return inline("a", target, map[string]string{"bucketName": "data", "authenticationSource": "pod", kubeTokens: tokens("sts.amazonaws.com", "token")})
	}
	secret := func(target string) *csi.NodePublishVolumeRequest { return withKeys("a", target, "key", "secret") }
	own := func(target string) *csi.NodePublishVolumeRequest {
		return inline("a", target, map[string]string{"bucketName": "data"})
	}
	for name, c := range map[string]struct {
		request func(target string) *csi.NodePublishVolumeRequest
		spoil   func(s *nodeService, r *csi.NodePublishVolumeRequest)
	}{
		"a Secret without a key":       {secret, func(_ *nodeService, r *csi.NodePublishVolumeRequest) { delete(r.Secrets, secretSecretKey) }},
		"a Secret with a local server": {secret, func(_ *nodeService, r *csi.NodePublishVolumeRequest) { r.Secrets[secretEndpoint] = "http://127.0.0.1" }},
		"a Secret that is too large": {secret, func(_ *nodeService, r *csi.NodePublishVolumeRequest) {
			r.Secrets["more"] = strings.Repeat("x", maxSecretBytes)
		}},
		"no token":       {pod, func(_ *nodeService, r *csi.NodePublishVolumeRequest) { delete(r.VolumeContext, kubeTokens) }},
		"a broken token": {pod, func(_ *nodeService, r *csi.NodePublishVolumeRequest) { r.VolumeContext[kubeTokens] = "{" }},
		"a stricter policy": {own, func(s *nodeService, _ *csi.NodePublishVolumeRequest) {
			s.driver.cfg.Policy.Sources = []string{"secret"}
		}},
	} {
		f := newFake()
		s, _ := fakeDriver(t, f, Policy{})
		req := c.request(s.at("a"))
		s.mustPublish(t, req)
		c.spoil(s, req)
		if _, err := s.NodePublishVolume(t.Context(), req); status.Code(err) != codes.Unavailable || !f.alive(s.at("a")) {
			t.Errorf("%s: got %v, want %v, and the volume as it was", name, err, codes.Unavailable)
		}
		s.mustUnpublish(t, "a", s.at("a"))
		if _, err := s.NodePublishVolume(t.Context(), req); status.Code(err) != codes.InvalidArgument || len(f.mounts) != 0 {
			t.Errorf("%s: published for the first time: got %v, want %v", name, err, codes.InvalidArgument)
		}
	}
}

// The credentials of a volume that has gone are not used any longer than others came with them.
func TestCredentialsOfWhoHasGone(t *testing.T) {
	f := newFake()
	s, _ := fakeDriver(t, f, Policy{})
	for _, id := range []string{"a", "b", "c"} {
		s.mustPublish(t, withKeys(id, s.at(id), "key-1", "secret-1"))
	}
	s.mustPublish(t, withKeys("a", s.at("a"), "key-9", "secret-9"))
	s.mustPublish(t, withKeys("c", s.at("c"), "key-9", "secret-9"))
	s.mustUnpublish(t, "a", s.at("a"))
	s.mustPublish(t, withKeys("b", s.at("b"), "key-1", "secret-1"))
	if c, _ := f.last(); c.AccessKey != "key-9" {
		t.Errorf("the daemon has %q, though a volume with newer keys is there", c.AccessKey)
	}
	s.mustUnpublish(t, "c", s.at("c"))
	for range 2 { // also a driver that has begun anew, whose mount has ended
		s.mustPublish(t, withKeys("b", s.at("b"), "key-1", "secret-1"))
		if c, _ := f.last(); c != (control.Credentials{AccessKey: "key-1", SecretKey: "secret-1"}) {
			t.Errorf("the daemon has %q, which no volume came with", c.AccessKey)
		}
		v, err := openVolumes(s.driver.volumes.volumesConfig)
		if err != nil {
			t.Fatal(err)
		}
		s.driver.volumes = v
		f.die()
	}
	s.mustUnpublish(t, "b", s.at("b"))
}

// Volumes with the certificates of one server and keys of their own come and go at once: whenever the daemon is
// asked for a mount the certificates are there.
func TestCertificatesAreShared(t *testing.T) {
	server := httptest.NewTLSServer(nil)
	ca := string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}))
	server.Close()
	f := newFake()
	f.onMount = func(_ context.Context, r control.MountRequest) error {
		if text, err := os.ReadFile(r.Options["caFile"]); err != nil || string(text) != ca {
			return fmt.Errorf("certificates: %q, %w", text, err)
		}
		return nil
	}
	s, _ := fakeDriver(t, f, Policy{})
	s.driver.cfg.Policy.caDir = filepath.Join(s.driver.volumes.dir, "ca")
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			id := fmt.Sprint("volume-", i)
			for range 40 {
				req := withKeys(id, s.at(id), id, "secret")
				req.Secrets[secretEndpoint], req.Secrets[secretCA] = "https://minio.example.com", ca
				if _, err := s.NodePublishVolume(t.Context(), req); err != nil {
					t.Error(err)
					return
				}
				if _, err := s.NodeUnpublishVolume(t.Context(), &csi.NodeUnpublishVolumeRequest{VolumeId: id, TargetPath: s.at(id)}); err != nil {
					t.Error(err)
					return
				}
				s.driver.volumes.sweep(t.Context())
			}
		})
	}
	all.Wait()
	if left, err := os.ReadDir(s.driver.cfg.Policy.caDir); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

// An unpublish of what is not there is no error on a disk that was made read-only either; one of what cannot be
// removed is.
func TestUnpublishOnAReadOnlyDisk(t *testing.T) {
	needMounts(t)
	root := t.TempDir()
	if err := unix.Mount("tmpfs", root, "tmpfs", 0, "size=64k"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(root, unix.MNT_DETACH) })
	if err := os.MkdirAll(filepath.Join(root, "pods", "a", "mount"), 0o750); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("", root, "", unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
		t.Fatal(err)
	}
	k, err := newKernel(root)
	if err != nil {
		t.Fatal(err)
	}
	for _, gone := range []string{"pods/a/other", "pods/b/mount"} {
		if err := k.detach(filepath.Join(k.root, gone)); err != nil {
			t.Errorf("%s, which is not there: %v", gone, err)
		}
	}
	if err := k.detach(filepath.Join(k.root, "pods/a/mount")); !errors.Is(err, unix.EROFS) {
		t.Errorf("a directory that stays: %v, want %v", err, unix.EROFS)
	}
}
