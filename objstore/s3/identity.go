package s3

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/minio/minio-go/v7/pkg/credentials"
	"golang.org/x/sync/singleflight"

	"github.com/shardwell/shardwell/objstore"
)

const (
	// rereadAfter is how long values without an expiry of their own are used, so
	// that a rotated file or environment is noticed.
	rereadAfter = 60 * time.Second
	// retryFailedAfter is how long a failure is remembered, so that readers do
	// not queue for a metadata service that does not answer.
	retryFailedAfter = 5 * time.Second
	// renewEvery bounds how often credentials that the server refused are
	// fetched anew.
	renewEvery = 5 * time.Second
)

// identity holds the credentials of the requests and gets new ones in time. It
// is shared by all buckets of an endpoint. minio-go's own holder keeps its lock
// while it asks an STS, where nobody's context can end the wait.
type identity struct {
	places []place // in their order; none when the value is fixed
	log    *slog.Logger
	flight singleflight.Group

	mu      sync.Mutex
	value   credentials.Value
	until   time.Time // when it must be fetched anew
	failed  error     // of the last attempt
	retry   time.Time // when another may be made
	renewed time.Time // when it was last fetched because the server refused it
	source  string    // of the value
}

// fixedIdentity never changes.
func fixedIdentity(v credentials.Value) *identity { return &identity{value: v} }

// get returns the credentials of the next request. Errors are of class
// objstore.ErrCredentials, or that of ctx.
func (i *identity) get(ctx context.Context) (credentials.Value, error) {
	if v, err, ok := i.known(time.Now()); ok {
		return v, err
	}
	if err := ctx.Err(); err != nil {
		return credentials.Value{}, err
	}
	// The search goes on when this caller gives up, since others wait for it as
	// well; the timeouts of the sources end it.
	found := i.flight.DoChan("", func() (any, error) {
		if v, err, ok := i.known(time.Now()); ok {
			return v, err
		}
		return i.fetch(context.WithoutCancel(ctx))
	})
	select {
	case r := <-found:
		v, _ := r.Val.(credentials.Value)
		return v, r.Err
	case <-ctx.Done():
		return credentials.Value{}, ctx.Err()
	}
}

// known returns what is known without asking anybody.
func (i *identity) known(now time.Time) (v credentials.Value, err error, ok bool) {
	i.mu.Lock()
	defer i.mu.Unlock()
	switch {
	case len(i.places) == 0, now.Before(i.until):
		return i.value, nil, true
	case i.failed != nil && now.Before(i.retry):
		return v, i.failed, true
	}
	return v, nil, false
}

// fetch searches the places, and keeps what comes of it.
func (i *identity) fetch(ctx context.Context) (credentials.Value, error) {
	v, source, err := i.search(ctx)
	now := time.Now()
	i.mu.Lock()
	defer i.mu.Unlock()
	if err != nil {
		err = fmt.Errorf("%w: %w", objstore.ErrCredentials, err)
		if left := i.value.Expiration.Sub(now); left > retryFailedAfter {
			// Refreshing comes early, so that it may fail for a while.
			i.log.Warn("s3: credentials not refreshed", "still_valid_for", left.Round(time.Second), "error", err)
			i.until = now.Add(retryFailedAfter)
			return i.value, nil
		}
		i.failed, i.retry = err, now.Add(retryFailedAfter)
		return v, err
	}
	v.SignerType = credentials.SignatureV4
	i.failed, i.value, i.until = nil, v, now.Add(rereadAfter)
	if !v.Expiration.IsZero() {
		// Refreshed when a fifth of the time is left, and never in a loop.
		i.until = now.Add(max(v.Expiration.Sub(now)*4/5, time.Second))
	}
	if source != i.source {
		i.source = source
		i.log.Info("s3: credentials found", "source", source, "expires", v.Expiration)
	}
	return v, nil
}

// search asks the places in their order.
func (i *identity) search(ctx context.Context) (credentials.Value, string, error) {
	var names []string
	for _, p := range i.places {
		v, err := p.get(ctx)
		switch {
		case err == nil:
			return v, p.name, nil
		case errors.Is(err, errAbsent):
			names = append(names, p.name+" ("+err.Error()+")")
		default:
			return v, p.name, fmt.Errorf("from %s: %w", p.name, err)
		}
	}
	return credentials.Value{}, "", fmt.Errorf("none found in %s; for a public bucket ask for anonymous access", strings.Join(names, ", "))
}

// renew gets fresh credentials after the server refused used, and reports
// whether they differ. Of many requests that were refused at once, one fetches
// and the others find its result.
func (i *identity) renew(ctx context.Context, used credentials.Value) bool {
	if len(i.places) == 0 {
		return false
	}
	i.mu.Lock()
	now := time.Now()
	if same(i.value, used) && now.Sub(i.renewed) >= renewEvery {
		i.renewed, i.until = now, time.Time{}
	}
	i.mu.Unlock()
	v, err := i.get(ctx)
	return err == nil && !same(v, used)
}

// same reports whether two credentials are one identity.
func same(a, b credentials.Value) bool {
	return a.AccessKeyID == b.AccessKeyID && a.SecretAccessKey == b.SecretAccessKey && a.SessionToken == b.SessionToken
}

// forCore shows the current value to minio-go, which asks for it with each
// request, under a lock of its own: it never waits.
type forCore struct{ i *identity }

// Retrieve implements credentials.Provider.
func (c forCore) Retrieve() (credentials.Value, error) {
	c.i.mu.Lock()
	defer c.i.mu.Unlock()
	return c.i.value, nil
}

// RetrieveWithCredContext implements credentials.Provider.
func (c forCore) RetrieveWithCredContext(*credentials.CredContext) (credentials.Value, error) {
	return c.Retrieve()
}

// IsExpired implements credentials.Provider: nothing is worth remembering.
func (forCore) IsExpired() bool { return true }
