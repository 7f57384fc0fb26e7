// Package kube asks the API server of Kubernetes the few things that Shardwell wants
// of it: the labels of its own node, and to take the start-up taint away once Pods
// of the node can have volumes.
//
// It promises to need no more rights than get and patch of nodes and get of
// csinodes, to read the token anew for each call, as it is rotated, to bound what
// it reads, and to change nothing but the one taint. It is no client for anything
// else, and caches nothing. Whether the node can mount is left to its caller. It is a part.
package kube

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// Limits of a call to the API server.
const (
	callTimeout   = 10 * time.Second
	maxReplyBytes = 8 << 20 // a Node lists the images it has: a megabyte or two
	maxTokenBytes = 64 << 10
)

// ErrNotInCluster says that this process runs in no Pod that may ask the API server.
var ErrNotInCluster = errors.New("not in a Pod with a service account")

// Client asks the API server in the name of the Pod it runs in. Methods are safe for
// concurrent use and return within 10 s.
type Client struct {
	server string // URL without a path
	dir    string // that has the token and the certificate
	http   *http.Client
}

// InCluster returns a client with what Kubernetes gives a Pod: the variables
// KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT, and the service account's files in dir, "" for
// where they usually are. The error is [ErrNotInCluster] where these are missing.
func InCluster(dir string) (*Client, error) {
	if dir == "" {
		dir = "/var/run/secrets/kubernetes.io/serviceaccount"
	}
	host, port := os.Getenv("KUBERNETES_SERVICE_HOST"), os.Getenv("KUBERNETES_SERVICE_PORT")
	if host == "" || port == "" {
		return nil, fmt.Errorf("%w: KUBERNETES_SERVICE_HOST is not set", ErrNotInCluster)
	}
	pem, err := os.ReadFile(filepath.Join(dir, "ca.crt"))
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNotInCluster, err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("%w: no certificate in %s", ErrNotInCluster, filepath.Join(dir, "ca.crt"))
	}
	return &Client{
		server: "https://" + net.JoinHostPort(host, port), dir: dir,
		http: &http.Client{Timeout: callTimeout, Transport: &http.Transport{
			TLSClientConfig: &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}, MaxIdleConns: 1, IdleConnTimeout: time.Minute,
		}},
	}, nil
}

// StatusError is an answer of the API server that is no success.
type StatusError struct {
	Code    int    // of HTTP
	Message string // of the API server
}

func (e *StatusError) Error() string { return fmt.Sprintf("%s (HTTP %d)", e.Message, e.Code) }

// Final reports whether asking again is of no use: the Pod may not, or there is no such thing.
func Final(err error) bool {
	var s *StatusError
	return errors.As(err, &s) && (s.Code == http.StatusUnauthorized || s.Code == http.StatusForbidden || s.Code == http.StatusNotFound)
}

// call asks for a path and decodes the answer into out.
func (c *Client) call(ctx context.Context, method, path, contentType string, body []byte, out any) error {
	token, err := readBounded(filepath.Join(c.dir, "token"))
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, method, c.server+path, bytes.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("Authorization", "Bearer "+strings.TrimSpace(string(token)))
	req.Header.Set("Accept", "application/json")
	req.Header.Set("User-Agent", "shardwell")
	if contentType != "" {
		req.Header.Set("Content-Type", contentType)
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(io.LimitReader(resp.Body, maxReplyBytes+1))
	if err != nil {
		return err
	}
	if resp.StatusCode/100 != 2 {
		var status struct{ Message string }
		if json.Unmarshal(text, &status) != nil || status.Message == "" {
			status.Message = http.StatusText(resp.StatusCode)
		}
		return &StatusError{resp.StatusCode, status.Message}
	}
	if len(text) > maxReplyBytes {
		return fmt.Errorf("the answer has more than %d bytes", maxReplyBytes)
	}
	return json.Unmarshal(text, out)
}

func readBounded(name string) ([]byte, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, maxTokenBytes))
}

// node is what is read of a Node.
type node struct {
	Metadata struct {
		Labels map[string]string `json:"labels"`
	} `json:"metadata"`
	Spec struct {
		// Taints are kept as they came, so that those of others go back unchanged.
		Taints []json.RawMessage `json:"taints"`
	} `json:"spec"`
}

func nodePath(name string) string { return "/api/v1/nodes/" + url.PathEscape(name) }

// Labels returns the labels of a node.
func (c *Client) Labels(ctx context.Context, name string) (map[string]string, error) {
	var n node
	if err := c.call(ctx, http.MethodGet, nodePath(name), "", nil, &n); err != nil {
		return nil, fmt.Errorf("labels of node %s: %w", name, err)
	}
	return n.Metadata.Labels, nil
}

// Registered reports whether the kubelet of a node knows a CSI driver.
func (c *Client) Registered(ctx context.Context, name, driver string) (bool, error) {
	var n struct {
		Spec struct {
			Drivers []struct{ Name string }
		}
	}
	err := c.call(ctx, http.MethodGet, "/apis/storage.k8s.io/v1/csinodes/"+url.PathEscape(name), "", nil, &n)
	var status *StatusError
	if errors.As(err, &status) && status.Code == http.StatusNotFound {
		return false, nil // the kubelet makes it with its first driver
	}
	if err != nil {
		return false, fmt.Errorf("drivers of node %s: %w", name, err)
	}
	return slices.ContainsFunc(n.Spec.Drivers, func(d struct{ Name string }) bool { return d.Name == driver }), nil
}

// Lift takes all taints with a key off a node and reports whether there were any.
// Taints that somebody else changes at that moment are an error; try again then.
func (c *Client) Lift(ctx context.Context, name, key string) (lifted bool, err error) {
	var n node
	if err := c.call(ctx, http.MethodGet, nodePath(name), "", nil, &n); err != nil {
		return false, fmt.Errorf("taints of node %s: %w", name, err)
	}
	kept := []json.RawMessage{}
	for _, raw := range n.Spec.Taints {
		var t struct{ Key string }
		if err := json.Unmarshal(raw, &t); err != nil {
			return false, fmt.Errorf("taints of node %s: %w", name, err)
		}
		if t.Key != key {
			kept = append(kept, raw)
		}
	}
	if len(kept) == len(n.Spec.Taints) {
		return false, nil
	}
	type step struct {
		Op    string            `json:"op"`
		Path  string            `json:"path"`
		Value []json.RawMessage `json:"value"`
	}
	// The test makes the server refuse when the list is no longer the one that was read.
	patch, err := json.Marshal([]step{{"test", "/spec/taints", n.Spec.Taints}, {"replace", "/spec/taints", kept}})
	if err != nil {
		return false, err
	}
	if err := c.call(ctx, http.MethodPatch, nodePath(name), "application/json-patch+json", patch, &n); err != nil {
		return false, fmt.Errorf("take taint %s off node %s: %w", key, name, err)
	}
	return true, nil
}
