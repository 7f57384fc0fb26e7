package objstore_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/shardwell/shardwell/objstore"
	"github.com/shardwell/shardwell/objstore/objstoretest"
)

var errFlaky = errors.New("connection reset by a test")

// object returns an origin that fails as told, with one object in it.
func object(n int) (*objstoretest.Mem, *objstoretest.Fault, objstore.Info, []byte) {
	m := objstoretest.NewMem()
	data := objstoretest.Bytes(7, n)
	return m, objstoretest.NewFault(m), m.Put("k", data), data
}

func readAll(ctx context.Context, s objstore.Store, info objstore.Info, off, n int64) ([]byte, error) {
	body, err := s.Get(ctx, info.Key, info.ETag, off, n)
	if err != nil {
		return nil, err
	}
	data, err := io.ReadAll(body)
	return data, errors.Join(err, body.Close())
}

func TestRetryResumesWhereTheBodyBroke(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, f, info, data := object(1000)
		f.Next(objstore.OpGet,
			objstoretest.Failure{Err: errFlaky},
			objstoretest.Failure{Body: true, At: 300},
			objstoretest.Failure{Body: true, At: 0},
			objstoretest.Failure{Body: true, At: 200, BodyErr: io.EOF}) // a store that breaks its promise
		got, err := readAll(t.Context(), objstore.NewRetry(f, objstore.RetryConfig{}), info, 100, 900)
		if err != nil || !bytes.Equal(got, data[100:]) {
			t.Fatalf("%d bytes, %v", len(got), err)
		}
		want := "[{k E 100 900} {k E 400 600} {k E 400 600} {k E 600 400}]"
		var gets []string
		for _, g := range m.Gets() {
			gets = append(gets, fmt.Sprintf("{%s E %d %d}", g.Key, g.Off, g.N))
			if g.ETag != info.ETag {
				t.Errorf("resumed version %q, not %q", g.ETag, info.ETag)
			}
		}
		if s := fmt.Sprint(gets); s != want {
			t.Errorf("asked for %s, want %s", s, want)
		}
		if m.Bytes() != 900 {
			t.Errorf("%d bytes from the origin, want 900", m.Bytes())
		}
	})
}

func TestRetryGivesUpAfterTheBudget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, f, info, _ := object(10)
		always := func(int64, string) objstoretest.Failure { return objstoretest.Failure{Err: errFlaky} }
		for op := range objstore.NumOps {
			f.Set(op, always)
		}
		r := objstore.NewRetry(f, objstore.RetryConfig{})
		for op, try := range map[objstore.Op]func() error{
			objstore.OpGet:  func() error { _, err := readAll(t.Context(), r, info, 0, 10); return err },
			objstore.OpHead: func() error { _, err := r.Head(t.Context(), "k"); return err },
			objstore.OpList: func() error { _, err := r.List(t.Context(), objstore.ListRequest{}); return err },
		} {
			start := time.Now()
			err := try()
			if took := time.Since(start); !errors.Is(err, errFlaky) || took < 50*time.Second || took > 60*time.Second {
				t.Errorf("%v: %v after %v", op, err, took)
			}
			if n := f.Requests(op); n < 10 || n > 100 {
				t.Errorf("%v: %d attempts in a minute", op, n)
			}
		}
	})
}

func TestRetryLeavesFinalErrorsAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, class := range []error{objstore.ErrNotExist, objstore.ErrNoBucket, objstore.ErrPermission, objstore.ErrCredentials,
			objstore.ErrChanged, objstore.ErrClockSkew, objstore.ErrInvalid} {
			_, f, info, _ := object(10)
			f.Next(objstore.OpGet, objstoretest.Failure{Err: fmt.Errorf("no: %w", class)})
			if _, err := readAll(t.Context(), objstore.NewRetry(f, objstore.RetryConfig{}), info, 0, 10); !errors.Is(err, class) {
				t.Errorf("%v, want %v", err, class)
			}
			if n := f.Requests(objstore.OpGet); n != 1 {
				t.Errorf("%v: %d requests", class, n)
			}
		}
	})
}

func TestRetryWaitsAsLongAsTheOriginSays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, f, info, _ := object(10)
		f.Next(objstore.OpGet, objstoretest.Failure{Err: &objstore.Throttled{After: 7 * time.Second, Err: errors.New("SlowDown")}},
			objstoretest.Failure{Err: objstore.ErrThrottled})
		start := time.Now()
		if _, err := readAll(t.Context(), objstore.NewRetry(f, objstore.RetryConfig{}), info, 0, 10); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(start); took < 7*time.Second || took > 12*time.Second {
			t.Errorf("waited %v", took)
		}
	})
}

// An object that changes while a broken body is mended is an error, not a mix.
func TestRetryNeverMixesVersions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, f, info, data := object(1000)
		f.Next(objstore.OpGet, objstoretest.Failure{Body: true, At: 400})
		body, err := objstore.NewRetry(f, objstore.RetryConfig{}).Get(t.Context(), info.Key, info.ETag, 0, 1000)
		if err != nil {
			t.Fatal(err)
		}
		defer body.Close()
		got := make([]byte, 400)
		if _, err := io.ReadFull(body, got); err != nil || !bytes.Equal(got, data[:400]) {
			t.Fatal(err)
		}
		m.Put("k", objstoretest.Bytes(8, 1000))
		if rest, err := io.ReadAll(body); !errors.Is(err, objstore.ErrChanged) || len(rest) != 0 {
			t.Errorf("%d bytes, %v; want ErrChanged", len(rest), err)
		}
	})
}

func TestRetryEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, f, info, _ := object(1000)
		f.Next(objstore.OpGet, objstoretest.Failure{Body: true, At: 10})
		f.Set(objstore.OpGet, func(int64, string) objstoretest.Failure { return objstoretest.Failure{Err: errFlaky} })
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		start := time.Now()
		_, err := readAll(ctx, objstore.NewRetry(f, objstore.RetryConfig{}), info, 0, 1000)
		if !errors.Is(err, context.DeadlineExceeded) || time.Since(start) != 3*time.Second {
			t.Errorf("%v after %v", err, time.Since(start))
		}
	})
}

// SEMANTICS O3: Throttling (429, 503) is waited out with jittered backoff and never
// becomes an error that says a file does not exist.
//
// A third of the requests fail, half of them so, and the reader sees right bytes and no error.
func TestRetryHidesAThirdOfFailures(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 1))
	synctest.Test(t, func(t *testing.T) {
		_, f, info, data := object(10000)
		f.Set(objstore.OpGet, func(int64, string) objstoretest.Failure {
			switch rng.IntN(6) {
			case 0:
				return objstoretest.Failure{Err: &objstore.Throttled{After: time.Second, Err: errors.New("503 SlowDown")}}
			case 1:
				return objstoretest.Failure{Body: true, At: rng.Int64N(500)}
			}
			return objstoretest.Failure{}
		})
		r := objstore.NewRetry(f, objstore.RetryConfig{})
		for off := int64(0); off < 10000; off += 500 {
			got, err := readAll(t.Context(), r, info, off, 500)
			if err != nil || !bytes.Equal(got, data[off:off+500]) {
				t.Fatalf("range at %d: %d bytes, %v", off, len(got), err)
			}
		}
	})
}
