package origin

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"

	"github.com/shardwell/shardwell/e2e/cage"
)

// gatewayStart bounds the wait for versitygw to answer.
const gatewayStart = 30 * time.Second

func (o *Origin) storeAddr() string { return fmt.Sprintf("127.0.0.1:%d", storePort) }

// startGateway runs versitygw over a directory and waits until it answers.
func (o *Origin) startGateway() error {
	for _, sub := range []string{"posix", "empty"} {
		if err := os.MkdirAll(filepath.Join(o.dir, sub), 0o755); err != nil {
			return fmt.Errorf("origin: %w", err)
		}
	}
	args := []string{o.opts.Bin, "--port", o.storeAddr(), "--region", Region, "--keep-alive", "--quiet", "--health", "/health"}
	if len(o.opts.Users) > 0 {
		users, err := o.writeUsers()
		if err != nil {
			return err
		}
		args = append(args, "--iam-dir", users)
	}
	p, err := o.Host.Start(cage.Command{
		Name: "versitygw",
		Args: append(args, "posix", filepath.Join(o.dir, "posix")),
		Env:  []string{"ROOT_ACCESS_KEY=" + o.AccessKey, "ROOT_SECRET_KEY=" + o.SecretKey},
	})
	if err != nil {
		return err
	}
	o.gateway = p
	client := &http.Client{Transport: &http.Transport{DialContext: o.Host.Dial, DisableKeepAlives: true}}
	deadline := time.Now().Add(gatewayStart)
	for {
		resp, err := client.Get("http://" + o.storeAddr() + "/health")
		if err == nil {
			_ = resp.Body.Close()
			if resp.StatusCode == http.StatusOK {
				return nil
			}
		}
		if time.Now().After(deadline) || !p.Running() {
			return fmt.Errorf("origin: versitygw does not answer (%v):\n%s", err, p.Output())
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// writeUsers writes the accounts down in versitygw's own form, and returns their directory.
func (o *Origin) writeUsers() (string, error) {
	type account struct {
		Access string `json:"access"`
		Secret string `json:"secret"`
		Role   string `json:"role"`
	}
	all := make(map[string]account)
	for access, secret := range o.opts.Users {
		all[access] = account{access, secret, "user"}
	}
	text, err := json.Marshal(map[string]any{"accessAccounts": all})
	if err != nil {
		return "", fmt.Errorf("origin: accounts: %w", err)
	}
	dir := filepath.Join(o.dir, "users")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", fmt.Errorf("origin: accounts: %w", err)
	}
	return dir, os.WriteFile(filepath.Join(dir, "users.json"), text, 0o600)
}

// SetPolicy replaces the policy of a bucket, in the words of S3.
func (o *Origin) SetPolicy(ctx context.Context, bucket, policy string) error {
	c, err := o.Client()
	if err != nil {
		return err
	}
	if err := c.SetBucketPolicy(ctx, bucket, policy); err != nil {
		return fmt.Errorf("origin: policy of %s: %w", bucket, err)
	}
	return nil
}

// Client returns a client that writes to versitygw past the counter.
func (o *Origin) Client() (*minio.Client, error) {
	return minio.New(o.storeAddr(), &minio.Options{
		Creds:        credentials.NewStaticV4(o.AccessKey, o.SecretKey, ""),
		Region:       Region,
		BucketLookup: minio.BucketLookupPath,
		Transport:    &http.Transport{DialContext: o.Host.Dial, DisableCompression: true},
	})
}

// MakeBucket makes a bucket.
func (o *Origin) MakeBucket(ctx context.Context, bucket string) error {
	c, err := o.Client()
	if err != nil {
		return err
	}
	return c.MakeBucket(ctx, bucket, minio.MakeBucketOptions{Region: Region})
}

// putPartBytes is the size of the parts in which large objects are written.
const putPartBytes = 64 << 20

// Put writes an object and returns its ETag, without quotes.
func (o *Origin) Put(ctx context.Context, bucket, key string, r io.Reader, size int64) (string, error) {
	c, err := o.Client()
	if err != nil {
		return "", err
	}
	info, err := c.PutObject(ctx, bucket, key, r, size, minio.PutObjectOptions{
		PartSize: putPartBytes, DisableContentSha256: true,
	})
	if err != nil {
		return "", fmt.Errorf("origin: put %s/%s: %w", bucket, key, err)
	}
	return info.ETag, nil
}

// PutBytes is Put for bytes in memory.
func (o *Origin) PutBytes(ctx context.Context, bucket, key string, data []byte) (string, error) {
	return o.Put(ctx, bucket, key, bytes.NewReader(data), int64(len(data)))
}

// PutTree writes all files below dir under prefix ("" or ending in a slash).
func (o *Origin) PutTree(ctx context.Context, bucket, prefix, dir string) error {
	return filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		rel, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		f, err := os.Open(path)
		if err != nil {
			return err
		}
		defer f.Close()
		info, err := f.Stat()
		if err != nil {
			return err
		}
		_, err = o.Put(ctx, bucket, prefix+filepath.ToSlash(rel), f, info.Size())
		return err
	})
}

// Delete removes an object.
func (o *Origin) Delete(ctx context.Context, bucket, key string) error {
	c, err := o.Client()
	if err != nil {
		return err
	}
	return c.RemoveObject(ctx, bucket, key, minio.RemoveObjectOptions{})
}

// Presign returns a URL with which anybody may GET the object, in whatever ranges, for an hour.
func (o *Origin) Presign(ctx context.Context, bucket, key string) (string, error) {
	c, err := minio.New(fmt.Sprintf("%s:%d", o.Host.IP, port), &minio.Options{
		Creds:        credentials.NewStaticV4(o.AccessKey, o.SecretKey, ""),
		Region:       Region,
		BucketLookup: minio.BucketLookupPath,
	})
	if err != nil {
		return "", err
	}
	u, err := c.PresignedGetObject(ctx, bucket, key, time.Hour, nil)
	if err != nil {
		return "", fmt.Errorf("origin: presign %s/%s: %w", bucket, key, err)
	}
	return u.String(), nil
}
