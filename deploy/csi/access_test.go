package csi

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/shardwell/shardwell/internal/control"
	"github.com/shardwell/shardwell/objstore"
)

// withKeys is a publish with a Secret.
func withKeys(id, target, access, secret string) *csi.NodePublishVolumeRequest {
	req := inline(id, target, map[string]string{"bucketName": "data"})
	req.Secrets = map[string]string{"AWS_ACCESS_KEY_ID": access, "AWS_SECRET_ACCESS_KEY": secret}
	return req
}

func (s *nodeService) mustPublish(t *testing.T, req *csi.NodePublishVolumeRequest) {
	t.Helper()
	if _, err := s.NodePublishVolume(t.Context(), req); err != nil {
		t.Fatal(err)
	}
}

func (s *nodeService) mustUnpublish(t *testing.T, id, target string) {
	t.Helper()
	if _, err := s.NodeUnpublishVolume(t.Context(), &csi.NodeUnpublishVolumeRequest{VolumeId: id, TargetPath: target}); err != nil {
		t.Fatal(err)
	}
}

// underneath counts the mounts of the daemon.
func (s *nodeService) underneath(t *testing.T) int {
	t.Helper()
	all, err := s.driver.volumes.host.table()
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, e := range all {
		if strings.Contains(e.Dir, "/plugins/") {
			n++
		}
	}
	return n
}

// SEMANTICS V2: Volumes share a mount only with the same dataset, credentials of the same namespace,
// owner, group, permissions and consistency; a Secret or token that changes is used from the next
// publish on, without another mount.
//
// Volumes share a mount with equal credentials of one namespace only, and a Secret that changes
// reaches the mount without another one, whichever volume tells first.
func TestRotatedSecret(t *testing.T) {
	f := newFake()
	s, log := fakeDriver(t, f, Policy{})
	a, b := s.at("a"), s.at("b")
	s.mustPublish(t, withKeys("a", a, "key-1", "secret-1"))
	s.mustPublish(t, withKeys("b", b, "key-1", "secret-1"))
	if n := s.underneath(t); n != 1 {
		t.Fatalf("%d mounts for one Secret, want 1", n)
	}
	other := withKeys("c", s.at("c"), "key-1", "secret-1")
	other.VolumeContext["csi.storage.k8s.io/pod.namespace"] = "another"
	s.mustPublish(t, other)
	s.mustPublish(t, withKeys("d", s.at("d"), "key-2", "secret-2"))
	if n := s.underneath(t); n != 3 {
		t.Fatalf("%d mounts, want one more for another namespace, and one for other keys", n)
	}

	s.mustPublish(t, withKeys("a", a, "key-9", "secret-9"))
	if c, _ := f.last(); c != (control.Credentials{AccessKey: "key-9", SecretKey: "secret-9"}) {
		t.Errorf("after the Secret changed the daemon has %#v", c.AccessKey)
	}
	s.mustPublish(t, withKeys("b", b, "key-1", "secret-1")) // the kubelet has not heard of it for this Pod
	if c, _ := f.last(); c.AccessKey != "key-9" {
		t.Errorf("an older Secret replaced the newer one: the daemon has %q", c.AccessKey)
	}
	s.mustPublish(t, withKeys("b", b, "key-9", "secret-9"))
	if c, _ := f.last(); c.AccessKey != "key-9" || s.underneath(t) != 3 {
		t.Errorf("the daemon has %q, %d mounts", c.AccessKey, s.underneath(t))
	}
	if strings.Contains(log.String(), "secret-") {
		t.Errorf("a secret was logged:\n%s", log)
	}
	for id, target := range map[string]string{"a": a, "b": b, "c": s.at("c"), "d": s.at("d")} {
		s.mustUnpublish(t, id, target)
	}
	if n := s.underneath(t); n != 0 {
		t.Errorf("%d mounts are left", n)
	}
}

// tokens is what the kubelet sends of a service account.
func tokens(audience, token string) string {
	return fmt.Sprintf(`{%q:{"token":%q,"expirationTimestamp":"2030-01-01T00:00:00Z"}}`, audience, token)
}

// A volume that reads as its Pod has the token of the service account, from the attributes or the
// secrets, and the fresh one after each publish.
func TestPodIdentity(t *testing.T) {
	f := newFake()
	s, log := fakeDriver(t, f, Policy{STSEndpoint: "https://sts.example.com"})
	attributes := map[string]string{"bucketName": "data", "authenticationSource": "pod", "roleArn": "arn:role",
		"csi.storage.k8s.io/serviceAccount.tokens": tokens("sts.amazonaws.com", "token-1")}
	req := inline("a", s.at("a"), attributes)
	s.mustPublish(t, req)
	want := control.Credentials{WebIdentityToken: "token-1", RoleARN: "arn:role", STSEndpoint: "https://sts.example.com"}
	if c, _ := f.last(); c != want {
		t.Errorf("the daemon has %v with role %q", c, c.RoleARN)
	}
	delete(req.VolumeContext, "csi.storage.k8s.io/serviceAccount.tokens")
	req.Secrets = map[string]string{"csi.storage.k8s.io/serviceAccount.tokens": tokens("sts.amazonaws.com", "token-2")}
	s.mustPublish(t, req)
	want.WebIdentityToken = "token-2"
	if c, _ := f.last(); c != want || s.underneath(t) != 1 {
		t.Errorf("after the token changed the daemon has %v, %d mounts", c, s.underneath(t))
	}
	// Another Pod of the account has a token of its own; what came before is not sent again, so that the STS
	// is asked once for each token.
	second := inline("c", s.at("c"), attributes)
	second.VolumeContext["csi.storage.k8s.io/serviceAccount.tokens"] = tokens("sts.amazonaws.com", "token-3")
	s.mustPublish(t, second)
	s.mustPublish(t, req)
	if c, _ := f.last(); c.WebIdentityToken != "token-3" || s.underneath(t) != 1 {
		t.Errorf("with a second Pod the daemon has another token than the last one, or %d mounts", s.underneath(t))
	}
	s.mustUnpublish(t, "c", s.at("c")) // and the token with it
	s.mustPublish(t, req)
	if c, _ := f.last(); c.WebIdentityToken != "token-2" {
		t.Error("the token of a Pod that is gone is still in use")
	}
	account := inline("b", s.at("b"), attributes)
	account.VolumeContext["csi.storage.k8s.io/serviceAccount.name"] = "other"
	s.mustPublish(t, account)
	if n := s.underneath(t); n != 2 {
		t.Errorf("%d mounts for two service accounts", n)
	}
	if strings.Contains(log.String(), "token-") {
		t.Errorf("a token was logged:\n%s", log)
	}
}

// After a restart of the driver, credentials are known again when the kubelet publishes; until then what is
// mounted stays.
func TestDriverRestartKeepsVolumes(t *testing.T) {
	f := newFake()
	s, _ := fakeDriver(t, f, Policy{})
	a, b := s.at("a"), s.at("b")
	s.mustPublish(t, withKeys("a", a, "key-1", "secret-1"))
	s.mustPublish(t, inline("b", b, map[string]string{"bucketName": "data"}))
	v, err := openVolumes(s.driver.volumes.volumesConfig)
	if err != nil {
		t.Fatal(err)
	}
	s.driver.volumes = v
	f.die()
	v.mend(t.Context())
	if c, n := f.last(); n != 3 || c.Given() {
		t.Errorf("the daemon was asked %d times, last with %v: want the volume with its own credentials mended, no other", n, c)
	}
	s.mustPublish(t, withKeys("a", a, "key-1", "secret-1"))
	for _, target := range []string{a, b} {
		if !f.alive(target) {
			t.Errorf("%s shows a mount that is dead", target)
		}
	}
	s.mustUnpublish(t, "a", a)
	s.mustUnpublish(t, "b", b)
	if n := s.underneath(t); n != 0 {
		t.Errorf("%d mounts are left", n)
	}
}

// What goes wrong is told with its code; a first publish that fails leaves nothing, and one of a volume that is
// published never fails for good.
func TestFailures(t *testing.T) {
	for _, c := range []struct {
		err  error
		code codes.Code
		says string
	}{
		{fmt.Errorf("no bucket: %w", objstore.ErrNoBucket), codes.NotFound, "bucketName"},
		{fmt.Errorf("x: %w", objstore.ErrPermission), codes.PermissionDenied, "authenticationSource"},
		{fmt.Errorf("x: %w", objstore.ErrCredentials), codes.Unauthenticated, "Secret"},
		{fmt.Errorf("x: %w", control.ErrNoNode), codes.Unavailable, "is its Pod running?"},
		{fmt.Errorf("x: %w", control.ErrUsage), codes.InvalidArgument, "x"},
		{fmt.Errorf("x: %w", control.ErrUnreachable), codes.Unavailable, "x"},
		{fmt.Errorf("something"), codes.Internal, "something"},
	} {
		f := newFake()
		s, _ := fakeDriver(t, f, Policy{})
		req := inline("a", s.at("a"), map[string]string{"bucketName": "data"})
		f.down = c.err
		if _, err := s.NodePublishVolume(t.Context(), req); status.Code(err) != c.code || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%v: got %v, want %v saying %q", c.err, err, c.code, c.says)
		}
		f.down = nil
		if len(s.driver.volumes.shared) != 0 || s.underneath(t) != 0 {
			t.Errorf("%v: something is left behind", c.err)
		}
		s.mustPublish(t, req)
		f.down = c.err
		if _, err := s.NodePublishVolume(t.Context(), req); status.Code(err) != codes.Unavailable {
			t.Errorf("%v: published again: got %v, want %v", c.err, err, codes.Unavailable)
		}
		if !f.alive(req.GetTargetPath()) {
			t.Errorf("%v: the volume went", c.err)
		}
		s.mustUnpublish(t, "a", req.GetTargetPath())
	}
}

// An unpublish ends the publish of the same volume, which hangs; nothing is left of either.
func TestUnpublishDuringPublish(t *testing.T) {
	f := newFake()
	s, _ := fakeDriver(t, f, Policy{})
	req := inline("a", s.at("a"), map[string]string{"bucketName": "data"})
	at := make(chan struct{})
	f.onMount = func(ctx context.Context, _ control.MountRequest) error {
		close(at)
		<-ctx.Done()
		return ctx.Err()
	}
	failed := make(chan error, 1)
	go func() {
		_, err := s.NodePublishVolume(t.Context(), req)
		failed <- err
	}()
	<-at
	f.set(func() { f.onMount = nil })
	s.mustUnpublish(t, "a", req.GetTargetPath())
	if err := <-failed; status.Code(err) != codes.Canceled {
		t.Errorf("publish: got %v, want %v", err, codes.Canceled)
	}
	if len(s.driver.volumes.shared) != 0 || s.underneath(t) != 0 || len(s.driver.volumes.operations.byKey) != 0 {
		t.Error("something is left behind")
	}
}
