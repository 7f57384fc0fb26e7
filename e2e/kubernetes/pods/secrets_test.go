package pods_test

import (
	"fmt"
	"strings"
	"testing"
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
