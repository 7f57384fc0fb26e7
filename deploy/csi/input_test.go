package csi

import (
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Attributes that cannot work are refused by name, before the daemon hears of them.
func TestAttributes(t *testing.T) {
	policy := Policy{AllowEndpoints: []string{"https://s3.example.com"}}
	for _, c := range []struct {
		attributes map[string]string
		secrets    map[string]string
		says       string // "" for one that works
	}{
		{map[string]string{"bucketName": "data"}, nil, ""},
		{map[string]string{"bucketName": "data", "prefix": "/a/b", "consistency": "ttl=5m", "cacheSize": "100Gi", "fileMode": "0440"}, nil, ""},
		{map[string]string{"uri": "file:///mnt/data"}, nil, ""},
		{map[string]string{"bucketName": "data", "mountOptions": "ro,uid=7,--file-mode=0400,consistency=ttl=5s"}, nil, ""},
		{map[string]string{"bucketName": "data", "endpoint": "https://S3.example.com:443/"}, nil, ""},
		{map[string]string{"bucketName": "data", "csi.storage.k8s.io/whatever": "x"}, nil, ""},
		{map[string]string{}, nil, `"bucketName" is missing`},
		{map[string]string{"bucket": "data"}, nil, `did you mean "bucketName"`},
		{map[string]string{"bucketName": "data", "colour": "blue"}, nil, `"colour"`},
		{map[string]string{"bucketName": "data", "cacheDir": "/x"}, nil, `"cacheDir"`},
		{map[string]string{"bucketName": "data", "caFile": "/etc/shadow"}, nil, `"caFile" is the administrator's`},
		{map[string]string{"bucketName": "data", "credentialsFile": "/etc/shadow"}, nil, `"credentialsFile" is the administrator's`},
		{map[string]string{"bucketName": "data", "mountOptions": "proxy=http://x"}, nil, `"proxy" is the administrator's`},
		{map[string]string{"bucketName": "data", "mountOptions": "rw"}, nil, "read-only"},
		{map[string]string{"bucketName": "data", "mountOptions": "uid=1,uid=2"}, nil, "twice"},
		{map[string]string{"bucketName": "data", "cacheSize": "much"}, nil, "size"},
		{map[string]string{"bucketName": "data", "cacheSize": "1Gi", "quota": "1Gi"}, nil, "mean the same"},
		{map[string]string{"bucketName": "data", "consistency": "never"}, nil, "ttl=DURATION"},
		{map[string]string{"bucketName": "data/x"}, nil, "no bucket"},
		{map[string]string{"bucketName": "data", "uri": "s3://data"}, nil, "excludes"},
		{map[string]string{"uri": "http://data"}, nil, "scheme"},
		{map[string]string{"bucketName": "da\nta"}, nil, "control character"},
		{map[string]string{"bucketName": "data", "endpoint": "http://169.254.169.254"}, nil, "administrator allows"},
		{map[string]string{"bucketName": "data", "endpoint": "https://user:pw@s3.example.com"}, nil, "xxxxx"},
		{map[string]string{"bucketName": "data", "mountOptions": "endpoint=http://127.0.0.1"}, nil, "administrator allows"},
		{map[string]string{"bucketName": "data", "authenticationSource": "nobody"}, nil, "none of driver, secret and pod"},
		{map[string]string{"bucketName": "data", "authenticationSource": "secret"}, nil, "nodePublishSecretRef"},
		{map[string]string{"bucketName": "data", "authenticationSource": "pod"}, nil, "tokenRequests"},
		{map[string]string{"bucketName": "data", "roleArn": "x"}, nil, "roleArn"},
		{map[string]string{"bucketName": "data"}, map[string]string{"AWS_ACCESS_KEY_ID": "k"}, "AWS_SECRET_ACCESS_KEY"},
	} {
		f := newFake()
		s, _ := fakeDriver(t, f, policy)
		req := inline("a", s.at("a"), c.attributes)
		req.Secrets = c.secrets
		_, err := s.NodePublishVolume(t.Context(), req)
		_, asked := f.last()
		switch {
		case c.says == "" && err != nil:
			t.Errorf("%v: %v", c.attributes, err)
		case c.says != "" && (status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), c.says) || strings.Contains(err.Error(), "\n")):
			t.Errorf("%v: got %v, want %v saying %q", c.attributes, err, codes.InvalidArgument, c.says)
		case c.says != "" && asked != 0:
			t.Errorf("%v: the daemon heard of it", c.attributes)
		}
	}
}

// SEMANTICS V4: A volume reads from an endpoint that the administrator allows, or from that of its own
// Secret with the keys there, and then not from this machine, its link or a metadata service.
//
// The endpoint of a Secret goes with its keys, unless it is this machine or its link.
func TestEndpointOfSecret(t *testing.T) {
	for endpoint, ok := range map[string]bool{
		"https://minio.example.com:9000": true, "http://10.1.2.3:9000": true, "https://[2001:db8::1]": true,
		"http://169.254.169.254": false, "http://169.254.170.2": false, "http://127.0.0.1:9000": false, "http://localhost:9000": false,
		"http://[::1]:9000": false, "http://[fe80::1%25eth0]": false, "http://[fd00:ec2::254]": false, "http://[fd00:ec2::23]": false, "http://[64:ff9b::a9fe:a9fe]": false, "http://[::ffff:a9fe:a9fe]": false,
		"http://0251.0376.0251.0376": false, "http://169.254.43518": false, "http://169.254.169.254.": false, "http://127.0.0.1.:80": false, "http://LOCALHOST": false,
		"http://169.254.169.254:80@minio.example.com": false, "http://minio.example.com\\@169.254.169.254": false,
		"http://0.0.0.0": false, "http://[::ffff:127.0.0.1]": false,
		"http://2130706433": false, "http://0x7f.1": false, "http://127.1": false, "http://x.localhost.": false, "http://224.0.0.1": false,
		"ftp://x": false, "nonsense": false, "http://user:pw@minio.example.com": false,
	} {
		for _, local := range []bool{false, true} {
			f := newFake()
			s, _ := fakeDriver(t, f, Policy{AllowLocal: local})
			req := withKeys("a", s.at("a"), "key", "secret")
			req.Secrets["endpoint"] = endpoint
			_, err := s.NodePublishVolume(t.Context(), req)
			want := ok || local && strings.HasPrefix(endpoint, "http") && !strings.Contains(endpoint, "@")
			if (err == nil) != want {
				t.Errorf("endpoint %q, local addresses allowed %v: %v", endpoint, local, err)
			}
			if err == nil && f.asked[0].Options["endpoint"] != endpoint {
				t.Errorf("endpoint %q: the daemon was told %q", endpoint, f.asked[0].Options["endpoint"])
			}
		}
	}
}

// A volume has only credentials of sources that the administrator allows.
func TestAllowedSources(t *testing.T) {
	for _, c := range []struct {
		sources []string
		change  func(*csi.NodePublishVolumeRequest)
		ok      bool
	}{
		{nil, nil, true},
		{[]string{"driver"}, nil, true},
		{[]string{"secret", "pod"}, nil, false},
		{[]string{"secret", "pod"}, func(r *csi.NodePublishVolumeRequest) { r.VolumeContext = map[string]string{"uri": "file:///x"} }, false},
		{[]string{"secret"}, func(r *csi.NodePublishVolumeRequest) { r.Secrets = withKeys("", "", "k", "s").Secrets }, true},
		{[]string{"driver"}, func(r *csi.NodePublishVolumeRequest) { r.Secrets = withKeys("", "", "k", "s").Secrets }, false},
		{[]string{"driver", "secret"}, func(r *csi.NodePublishVolumeRequest) { r.VolumeContext["authenticationSource"] = "pod" }, false},
	} {
		s, _ := fakeDriver(t, newFake(), Policy{Sources: c.sources})
		req := inline("a", s.at("a"), map[string]string{"bucketName": "data"})
		if c.change != nil {
			c.change(req)
		}
		if _, err := s.NodePublishVolume(t.Context(), req); (err == nil) != c.ok || err != nil && status.Code(err) != codes.InvalidArgument {
			t.Errorf("sources %v: %v", c.sources, err)
		}
	}
}

// Requests that make no sense have the code that CSI gives them, and leave nothing.
func TestBadRequests(t *testing.T) {
	m := newMachine(t, map[string]string{"a.txt": "hello"})
	conn, _ := m.driver(nil)
	node := csi.NewNodeClient(conn)
	elsewhere := t.TempDir()
	pod := filepath.Join(m.kubelet, "pods", "link")
	if err := os.MkdirAll(filepath.Dir(pod), 0o750); err != nil {
		t.Fatal(err)
	}
	for _, err := range []error{os.Symlink(elsewhere, pod), os.WriteFile(m.target("file", "data"), nil, 0o600)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	attributes := map[string]string{"bucketName": "data"}
	block := inline("a", m.target("a", "data"), attributes)
	block.VolumeCapability.AccessType = &csi.VolumeCapability_Block{Block: &csi.VolumeCapability_BlockVolume{}}
	for name, c := range map[string]struct {
		req  *csi.NodePublishVolumeRequest
		code codes.Code
	}{
		"no id":           {inline("", m.target("a", "data"), attributes), codes.InvalidArgument},
		"a long id":       {inline(strings.Repeat("x", 2000), m.target("a", "data"), attributes), codes.InvalidArgument},
		"no target":       {inline("a", "", attributes), codes.InvalidArgument},
		"relative":        {inline("a", "pods/a", attributes), codes.InvalidArgument},
		"dots":            {inline("a", m.kubelet+"/pods/../x", attributes), codes.InvalidArgument},
		"elsewhere":       {inline("a", elsewhere+"/x", attributes), codes.InvalidArgument},
		"driver's own":    {inline("a", filepath.Join(m.kubelet, "plugins", DriverName, "mounts", "x"), attributes), codes.InvalidArgument},
		"link on the way": {inline("a", pod+"/x", attributes), codes.InvalidArgument},
		"target is link":  {inline("a", pod, attributes), codes.InvalidArgument},
		"a file":          {inline("a", m.target("file", "data"), attributes), codes.InvalidArgument},
		"no parent":       {inline("a", m.kubelet+"/pods/none/x", attributes), codes.Internal},
		"block":           {block, codes.InvalidArgument},
		"no such bucket":  {inline("a", m.target("a", "data"), map[string]string{"bucketName": "none"}), codes.NotFound},
		"nothing below":   {inline("a", m.target("a", "data"), map[string]string{"bucketName": "data", "prefix": "none"}), codes.NotFound},
		"an object":       {inline("a", m.target("a", "data"), map[string]string{"bucketName": "data", "prefix": "a.txt"}), codes.InvalidArgument},
	} {
		if _, err := node.NodePublishVolume(t.Context(), c.req); status.Code(err) != c.code || strings.Contains(status.Convert(err).Message(), "\n") {
			t.Errorf("%s: got %v, want %v", name, err, c.code)
		}
		if _, err := os.Lstat(m.target("a", "data")); err == nil {
			t.Errorf("%s: the target stays behind", name)
		}
	}
	good := inline("a", m.target("a", "data"), attributes)
	publish(t, conn, good)
	changed := inline("a", m.target("a", "data"), map[string]string{"bucketName": "data", "uid": "7"})
	if _, err := node.NodePublishVolume(t.Context(), changed); status.Code(err) != codes.AlreadyExists {
		t.Errorf("other attributes: got %v, want %v", err, codes.AlreadyExists)
	}
	if _, err := node.NodeUnpublishVolume(t.Context(), &csi.NodeUnpublishVolumeRequest{VolumeId: "a", TargetPath: pod + "/x"}); status.Code(err) != codes.InvalidArgument {
		t.Errorf("unpublish through a link: got %v", err)
	}
	unpublish(t, conn, "a", good.GetTargetPath())
	if left, _ := os.ReadDir(elsewhere); len(left) != 0 {
		t.Errorf("something was made behind the link: %v", left)
	}
}

// FuzzPublish gives the driver attributes, secrets and paths of chance: it never panics, never tells a
// secret, leaves nothing after a failure, and after a success all goes with the unpublish.
func FuzzPublish(f *testing.F) {
	seed := func(id, target string, attributes, secrets map[string]string, group string) {
		a, _ := json.Marshal(attributes)
		s, _ := json.Marshal(secrets)
		f.Add(id, target, a, s, group, int32(1))
	}
	seed("csi-1", "/pods/a/mount", map[string]string{"bucketName": "data", "prefix": "a", "mountOptions": "uid=1,ro"}, nil, "2000")
	seed("csi-2", "/pods/../x", map[string]string{"bucketName": "data", "authenticationSource": "secret", "endpoint": "http://169.254.169.254"},
		map[string]string{"AWS_ACCESS_KEY_ID": "kkkkkkkk", "AWS_SECRET_ACCESS_KEY": "ssssssss", "endpoint": "http://[::1]"}, "")
	seed("csi-3", "relative", map[string]string{"uri": "file:///x", "authenticationSource": "pod", "roleArn": "r",
		"csi.storage.k8s.io/serviceAccount.tokens": tokens("", "tttttttt"), "csi.storage.k8s.io/pod.namespace": "n", "csi.storage.k8s.io/serviceAccount.name": "s"}, nil, "-1")
	f.Fuzz(func(t *testing.T, id, target string, attributes, secrets []byte, group string, mode int32) {
		fake := newFake()
		s, log := fakeDriver(t, fake, Policy{AllowEndpoints: []string{"https://s3.example.com"}})
		if strings.HasPrefix(target, "/") {
			target = s.driver.cfg.KubeletDir + target
		}
		req := inline(id, target, nil)
		_ = json.Unmarshal(attributes, &req.VolumeContext)
		_ = json.Unmarshal(secrets, &req.Secrets)
		req.VolumeCapability.GetMount().VolumeMountGroup = group
		req.VolumeCapability.AccessMode.Mode = csi.VolumeCapability_AccessMode_Mode(mode)
		before := maps.Clone(req.VolumeContext)
		_, err := s.NodePublishVolume(t.Context(), req)
		if !maps.Equal(before, req.VolumeContext) {
			t.Error("the request was changed")
		}
		if err != nil && (len(fake.mounts) != 0 || len(s.driver.volumes.shared) != 0) {
			t.Errorf("a failed publish left something behind: %v", err)
		}
		if err == nil {
			if len(fake.mounts) != 2 {
				t.Errorf("published with %d mounts", len(fake.mounts))
			}
			s.mustUnpublish(t, id, target)
			if len(fake.mounts) != 0 {
				t.Errorf("left after the unpublish: %v", fake.mounts)
			}
		}
		said := log.String()
		if err != nil {
			said += err.Error()
		}
		for _, secret := range []string{"AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"} {
			if v := req.GetSecrets()[secret]; len(v) > 7 && strings.Contains(said, v) && !strings.Contains(id+target+string(attributes)+group, v) {
				t.Errorf("%s was told: %s", secret, said)
			}
		}
	})
}
