package pods_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/shardwell/shardwell/e2e/kubernetes/kube"
	"github.com/shardwell/shardwell/e2e/origin"
)

// secret returns a Secret with credentials in the names of AWS.
func secret(name, access, key string) string {
	return fmt.Sprintf(`
apiVersion: v1
kind: Secret
metadata: {name: %s, namespace: %s}
stringData: {AWS_ACCESS_KEY_ID: %q, AWS_SECRET_ACCESS_KEY: %q}
`, name, users, access, key)
}

// withSecret returns an inline volume that reads with a Secret.
func withSecret(prefix, name string) string {
	return strings.Replace(inline(prefix, "authenticationSource: secret"), "volumeAttributes:", fmt.Sprintf("nodePublishSecretRef: {name: %s}, volumeAttributes:", name), 1)
}

// TestSecretOfAVolume reads with the credentials of a volume's own Secret.
func TestSecretOfAVolume(t *testing.T) {
	f := put(t, "secret", 2, 1<<20)
	apply(t, secret("mine", w.origin.AccessKey, w.origin.SecretKey))
	runPods(t, pod{name: "with-secret", script: f.check("/data"), volume: withSecret("secret", "mine")})
}

// TestWrongSecret says in an event that the credentials are no good, and mounts when the Secret is right.
func TestWrongSecret(t *testing.T) {
	f := put(t, "wrong-secret", 2, 1<<20)
	apply(t, secret("wrong", w.origin.AccessKey, "not-the-key"))
	p := begin(t, pod{name: "wrong-secret", script: f.check("/data"), volume: withSecret("wrong-secret", "wrong")})
	p.waitEvent(t, "FailedMount", "no valid credentials")
	if text := kubectl(t, "-n", system, "logs", "daemonset/shardwell", "--all-containers") + events(t, p.name); strings.Contains(text, "not-the-key") {
		t.Error("a secret is in a log or an event")
	}
	apply(t, secret("wrong", w.origin.AccessKey, w.origin.SecretKey))
	waitEnd(t, p.pod)
}

// TestMissingSecret says in an event that there is none, and mounts when there is.
func TestMissingSecret(t *testing.T) {
	f := put(t, "no-secret", 2, 1<<20)
	p := begin(t, pod{name: "no-secret", script: f.check("/data"), volume: withSecret("no-secret", "missing")})
	p.waitEvent(t, "FailedMount", "missing")
	apply(t, secret("missing", w.origin.AccessKey, w.origin.SecretKey))
	waitEnd(t, p.pod)
}

// allow lets accounts read the private bucket, and no others.
func allow(t *testing.T, accounts ...string) {
	t.Helper()
	var statements []string
	for _, a := range accounts {
		for action, on := range map[string]string{"s3:ListBucket": private, "s3:GetObject": private + "/*"} {
			statements = append(statements, fmt.Sprintf(`{"Effect":"Allow","Principal":{"AWS":[%q]},"Action":[%q],"Resource":["arn:aws:s3:::%s"]}`, a, action, on))
		}
	}
	err := w.origin.SetPolicy(t.Context(), private, `{"Version":"2012-10-17","Statement":[`+strings.Join(statements, ",")+`]}`)
	if err != nil {
		t.Fatal(err)
	}
}

// inPrivate makes a volume one of the private bucket.
func inPrivate(volume string) string {
	return strings.Replace(volume, "bucketName: "+bucket, "bucketName: "+private, 1)
}

// mountOf returns the mounts of a Pod as the kernel has them, with their ids.
func mountOf(t *testing.T, uid string) string {
	t.Helper()
	var own []string
	for line := range strings.Lines(mounts(t)) {
		if strings.Contains(line, uid) && strings.Contains(line, "csi") {
			own = append(own, line)
		}
	}
	return strings.Join(own, "")
}

// identityOf returns the identity that the daemon reads a prefix of the private bucket with, "" for none.
func identityOf(s status, prefix string) string {
	for _, m := range s.Mounts {
		if strings.TrimSuffix(m.URI, "/") == "s3://"+private+"/"+prefix {
			return m.Identity
		}
	}
	return ""
}

// TestRotatedSecret gives a volume's Secret other keys while a Pod reads, and then takes the rights of the former
// ones: the Pod reads on through the same mount.
func TestRotatedSecret(t *testing.T) {
	const prefix = "rotated"
	f := putIn(t, private, prefix, 3, 1<<20)
	allow(t, "first", "second")
	apply(t, secret("rotated", "first", accounts["first"]))
	r := keepReadingAs(t, pod{name: "rotated", volume: inPrivate(withSecret(prefix, "rotated"))}, f)
	before, mounted := "", mountOf(t, r.uid(t))
	waitStatus(t, "the volume reads with its keys", func(s status) bool { before = identityOf(s, prefix); return before != "" })
	apply(t, secret("rotated", "second", accounts["second"]))
	at := time.Now()
	waitStatus(t, "the new keys are taken over", func(s status) bool {
		now := identityOf(s, prefix)
		return now != "" && now != before
	})
	t.Logf("new keys were in use %.1f s after the Secret had changed; the kubelet looks each 10 s here", time.Since(at).Seconds())
	allow(t, "second")
	w.origin.Reset()
	eventually(t, "the origin is asked in the name of the new keys", func() bool {
		asked := w.origin.Requests().Where(func(q origin.Request) bool {
			return q.Bucket == private && strings.HasPrefix(q.Key, prefix+"/") && q.Status == 200
		})
		return len(asked) > 3
	})
	r.readMore(t)
	if now := mountOf(t, r.uid(t)); now != mounted || now == "" {
		t.Errorf("the mount is another one:\n%s\nit was\n%s", now, mounted)
	}
	r.end(t)
	if refused := w.origin.Requests().Where(func(q origin.Request) bool { return q.Bucket == private && q.Status == 403 }); len(refused) > 0 {
		t.Errorf("the origin refused: %s", refused)
	}
}

// TestRevokedSecret takes the rights of a volume's keys: the Pod reads no longer, though everything is cached.
func TestRevokedSecret(t *testing.T) {
	const prefix = "revoked"
	f := putIn(t, private, prefix, 2, 1<<20)
	allow(t, "first")
	apply(t, secret("revoked", "first", accounts["first"]))
	p := pod{name: "revoked", volume: inPrivate(withSecret(prefix, "revoked")),
		script: "while (cat /data/part-0000.bin >/dev/null); do sleep 0.2; done; cat /data/part-0000.bin 2>&1 | grep -q 'Permission denied'"}
	runPods(t, pod{name: "revoked-first", volume: p.volume, script: f.check("/data")})
	waitReady(t, begin(t, p).pod)
	allow(t, "second")
	waitEnd(t, p)
}

// TestPodIdentity reads as the service account of a Pod: its token, which is genuine, gets keys at an STS, again and
// again as they expire, and is followed by another when the kubelet has one. Another account gets none.
func TestPodIdentity(t *testing.T) {
	const prefix = "identity"
	f := putIn(t, private, prefix, 3, 1<<20)
	allow(t, "trainer")
	s := startSTS(t, "system:serviceaccount:"+users+":trainer", "trainer")
	for _, name := range []string{"trainer", "other"} {
		apply(t, fmt.Sprintf("apiVersion: v1\nkind: ServiceAccount\nmetadata: {name: %s, namespace: %s}", name, users))
	}
	volume := inPrivate(inline(prefix, "authenticationSource: pod", "roleArn: 'arn:aws:iam::1:role/reader'"))
	r := keepReadingAs(t, pod{name: "trainer", account: "trainer", volume: volume}, f)
	mounted := mountOf(t, r.uid(t))
	eventually(t, "keys are asked for again before they expire", func() bool { return s.exchanges() > 2 })
	r.readMore(t)
	restart(t, func() {}, kube.Kubelet) // which forgets the tokens that it has
	eventually(t, "another token is used", func() bool { return len(s.tokens()) > 1 })
	r.readMore(t)
	if now := mountOf(t, r.uid(t)); now != mounted || now == "" {
		t.Errorf("the mount is another one:\n%s\nit was\n%s", now, mounted)
	}
	r.end(t)

	other := begin(t, pod{name: "not-trainer", account: "other", volume: volume, script: "true"})
	other.waitEvent(t, "FailedMount", "credentials")
	logs := kubectl(t, "-n", system, "logs", "daemonset/shardwell", "--all-containers") + events(t, other.name)
	for _, token := range s.tokens() {
		if strings.Contains(logs, token) {
			t.Error("a token is in a log or an event")
		}
	}
}
