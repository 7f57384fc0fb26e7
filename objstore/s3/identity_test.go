package s3

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/minio/minio-go/v7/pkg/credentials"

	"github.com/shardwell/shardwell/objstore"
)

// issuer is a source of keys that are valid for ttl, or of failures.
type issuer struct {
	ttl   time.Duration // 0: for ever
	fail  error
	calls int
}

func (i *issuer) identity() *identity {
	get := func(context.Context) (credentials.Value, error) {
		i.calls++
		if i.fail != nil {
			return credentials.Value{}, i.fail
		}
		v := credentials.Value{AccessKeyID: fmt.Sprintf("KEY%d", i.calls), SecretAccessKey: "s"}
		if i.ttl > 0 {
			v.Expiration = time.Now().Add(i.ttl)
		}
		return v, nil
	}
	return &identity{places: []place{{"test", get}}, log: slog.New(slog.DiscardHandler)}
}

// Keys are refreshed before they expire, and a source that fails meanwhile is
// borne with as long as the old ones are good.
func TestKeysAreRefreshedBeforeTheyExpire(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		i := &issuer{ttl: time.Hour}
		c := i.identity()
		var expires time.Time
		for range 300 {
			v, err := c.get(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if expires = v.Expiration; !time.Now().Before(expires) {
				t.Fatalf("expired keys at %v", time.Now())
			}
			time.Sleep(time.Minute)
		}
		if i.calls != 7 { // 300 minutes, one set for 48
			t.Errorf("%d sets of keys in 5 hours", i.calls)
		}
		i.fail = errors.New("STS is down")
		for time.Until(expires) > 10*time.Second {
			if _, err := c.get(t.Context()); err != nil {
				t.Fatalf("%v before the keys expire: %v", time.Until(expires), err)
			}
			time.Sleep(time.Second)
		}
		time.Sleep(10 * time.Second)
		if _, err := c.get(t.Context()); !errors.Is(err, objstore.ErrCredentials) {
			t.Errorf("after they expired: %v", err)
		}
		i.fail = nil
		time.Sleep(retryFailedAfter)
		if _, err := c.get(t.Context()); err != nil {
			t.Errorf("the source is back: %v", err)
		}
	})
}

// Keys without an expiry are looked up again, since their file may be another.
func TestLastingKeysAreReadAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		i := &issuer{}
		c := i.identity()
		for range 10 {
			if _, err := c.get(t.Context()); err != nil {
				t.Fatal(err)
			}
			time.Sleep(30 * time.Second)
		}
		if i.calls != 5 {
			t.Errorf("%d look-ups in 5 minutes", i.calls)
		}
	})
}

// A source that fails is not asked by every request.
func TestFailuresAreRemembered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		i := &issuer{fail: errors.New("no answer")}
		c := i.identity()
		for range 100 {
			if _, err := c.get(t.Context()); !errors.Is(err, objstore.ErrCredentials) {
				t.Fatal(err)
			}
			time.Sleep(100 * time.Millisecond)
		}
		if i.calls != 2 {
			t.Errorf("%d look-ups in 10 s", i.calls)
		}
		// A caller that gave up says nothing about the source.
		time.Sleep(retryFailedAfter)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := c.get(ctx); !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	})
}

// A source that does not answer holds up nobody whose context ends.
func TestWaitingForKeysEndsWithTheContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		get := func(context.Context) (credentials.Value, error) {
			time.Sleep(10 * time.Second)
			return credentials.Value{AccessKeyID: "K", SecretAccessKey: "s"}, nil
		}
		c := &identity{places: []place{{"slow", get}}, log: slog.New(slog.DiscardHandler)}
		start := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := c.get(ctx); !errors.Is(err, context.DeadlineExceeded) || time.Since(start) != time.Second {
			t.Errorf("%v after %v", err, time.Since(start))
		}
		if v, err := c.get(t.Context()); err != nil || v.AccessKeyID != "K" || time.Since(start) != 10*time.Second {
			t.Errorf("%+v, %v after %v: the search that was under way should serve", v, err, time.Since(start))
		}
	})
}
