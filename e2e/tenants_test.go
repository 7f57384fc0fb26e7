package e2e_test

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/shardwell/shardwell/e2e/cluster"
	"github.com/shardwell/shardwell/e2e/dataset"
	"github.com/shardwell/shardwell/e2e/origin"
)

// statement allows a user of versitygw something in the bucket of the tests.
func statement(user, action, resource string) string {
	return fmt.Sprintf(`{"Effect":"Allow","Principal":{"AWS":[%q]},"Action":[%q],"Resource":["arn:aws:s3:::%s"]}`, user, action, resource)
}

func policy(statements ...string) string {
	return `{"Version":"2012-10-17","Statement":[` + strings.Join(statements, ",") + `]}`
}

// credentials writes a user's keys where commands find them, and returns the flags that name them.
func credentials(t *testing.T, user, secret string) []string {
	t.Helper()
	file := filepath.Join(t.TempDir(), user)
	must(t, os.WriteFile(file, fmt.Appendf(nil, "[default]\naws_access_key_id = %s\naws_secret_access_key = %s\n", user, secret), 0o600))
	return []string{"--anonymous=false", "--credentials-file", file}
}

// wantDenied fails the test unless opening a file, which is there, is EACCES.
func wantDenied(t *testing.T, what, path string) {
	t.Helper()
	f, err := os.Open(path)
	if err == nil {
		f.Close()
	}
	if !errors.Is(err, fs.ErrPermission) {
		t.Errorf("%s: open %s: %v, want EACCES", what, filepath.Base(path), err)
	}
}

// Nodes that may do nothing themselves serve tenants that a real store tells apart: the bytes of
// one cross the origin's network once, by grants, and reach no other, wherever they are cached.
func TestTenants(t *testing.T) {
	users := map[string]string{"alice": "alices-secret-key-0123456789", "bob": "bobs-secret-key-0123456789", "carol": "carols-secret-key-0123456789"}
	c := start(t, cluster.Options{Nodes: 3, Origin: origin.Options{Users: users}, Flags: []string{"--anonymous", "--auth-ttl", "2s"}})
	flags := map[string][]string{}
	for user, secret := range users {
		flags[user] = credentials(t, user, secret)
	}
	mayList := statement("bob", "s3:ListBucket", bucket)
	alices := []string{statement("alice", "s3:ListBucket", bucket), statement("alice", "s3:GetObject", bucket+"/alice/*")}
	must(t, c.Origin.SetPolicy(t.Context(), bucket, policy(append(alices, mayList)...)))
	objects := put(t, c, "alice/", 12, 3<<20+17)
	large := dataset.Random{Seed: seed + 99, Size: 40<<20 + 5}
	_, err := c.Origin.Put(t.Context(), bucket, "alice/large", large.Reader(), large.Size)
	must(t, err)
	objects["alice/large"] = large
	c.Origin.Reset()

	n1, n2, n3 := c.Nodes[0], c.Nodes[1], c.Nodes[2]
	dirs := map[*cluster.Node]string{}
	for _, n := range []*cluster.Node{n1, n2} {
		dirs[n] = mountOn(t, n, "s3://"+bucket+"/alice", flags["alice"]...)
	}
	must(t, readAll(dirs, "alice/", objects))
	var got int64
	var clients = map[string]bool{}
	for _, r := range c.Origin.Requests() {
		if r.Op == origin.OpGet && r.Status < 300 {
			got += r.Bytes
			clients[r.Client] = true
		}
	}
	if want := sizeOf(objects); got != want {
		t.Errorf("the origin sent %d bytes, want %d", got, want)
	}
	if !clients[n3.Host.IP] {
		t.Errorf("the third node, which has no credentials, fetched nothing: %v did", clients)
	}
	for _, n := range c.Nodes {
		bobs := mountOn(t, n, "s3://"+bucket+"/alice", flags["bob"]...)
		entries, err := os.ReadDir(bobs)
		if err != nil || len(entries) != len(objects) {
			t.Errorf("bob, who may list, sees %d names on %s, %v", len(entries), n.Name, err)
		}
		for key := range objects {
			wantDenied(t, "bob on "+n.Name, filepath.Join(bobs, strings.TrimPrefix(key, "alice/")))
		}
		for _, args := range [][]string{{"ls", "s3://" + bucket + "/alice/"}, {"get", "s3://" + bucket + "/alice", t.TempDir()}, {"mount", "s3://" + bucket + "/alice", t.TempDir()}} {
			for _, who := range [][]string{flags["carol"], nil} { // nobody, and the nodes themselves
				if r, err := n.Run(append(args, who...)...); err == nil || strings.Contains(r.Stdout+r.Stderr, "large") {
					t.Errorf("%v of %v on %s: %d %s%s", args, who, n.Name, r.Code, r.Stdout, r.Stderr)
				}
			}
		}
	}
	held, err := os.Open(filepath.Join(dirs[n1], "large"))
	must(t, err)
	defer held.Close()
	must(t, c.Origin.SetPolicy(t.Context(), bucket, policy(mayList)))
	for end := time.Now().Add(time.Minute); ; time.Sleep(100 * time.Millisecond) {
		f, err := os.Open(filepath.Join(dirs[n2], "0000"))
		if err == nil {
			f.Close()
		}
		if errors.Is(err, fs.ErrPermission) {
			break
		}
		if err != nil || time.Now().After(end) {
			t.Fatalf("after the permission was revoked: %v", err)
		}
	}
	if err := dataset.Compare(io.NewSectionReader(held, 0, large.Size), large, large.Size); err != nil {
		t.Errorf("a file that was open: %v", err)
	}
	for user, secret := range users {
		if logs := c.Logs(1 << 20); strings.Contains(logs, secret) || strings.Contains(logs, "X-Amz-Signature") {
			t.Errorf("a log shows the secret of %s, or a grant", user)
		}
	}
}
