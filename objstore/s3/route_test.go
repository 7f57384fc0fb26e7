package s3_test

import (
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/shardwell/shardwell/objstore"
	"github.com/shardwell/shardwell/objstore/s3"
)

// COS, OSS and OBS demand the bucket in the host name, each by a code of its
// own. The fake is the proxy of the requests, so that any host name reaches it.
func TestAddressingIsLearned(t *testing.T) {
	for _, code := range []string{"PathStyleDomainForbidden", "SecondLevelDomainForbidden", "VirtualHostDomainRequired"} {
		f := serve(t, func(_ int, w http.ResponseWriter, r *http.Request) {
			if r.Host != "data.store.example.com" {
				refuse(w, 403, code, "")
				return
			}
			if r.URL.Path == "/" {
				page(w, entry("key"))
				return
			}
			object(w, r, "e1", []byte("0123456789"))
		})
		s := newStore(t, s3.Config{Endpoint: "http://store.example.com", Proxy: f.URL})
		if _, err := s.List(t.Context(), objstore.ListRequest{}); err != nil {
			t.Errorf("%s: %v", code, err)
		}
		if got, err := get(t, s, 0, 10); err != nil || string(got) != "0123456789" {
			t.Errorf("%s: %q, %v", code, got, err)
		}
		if n := len(f.requests()); n != 3 {
			t.Errorf("%s: %d requests, want one more than two", code, n)
		}
		fixed := newStore(t, s3.Config{Endpoint: "http://store.example.com", Proxy: f.URL, Addressing: s3.AddressPath})
		if _, err := get(t, fixed, 0, 10); !errors.Is(err, objstore.ErrPermission) || !strings.Contains(err.Error(), code) {
			t.Errorf("%s with path addressing: %v", code, err)
		}
	}
}

func TestAddressing(t *testing.T) {
	for _, c := range []struct{ endpoint, bucket, addressing, host, path string }{
		{"http://cos.ap-shanghai.myqcloud.com", "data-125", "", "data-125.cos.ap-shanghai.myqcloud.com", "/a//b"},
		{"http://obs.eu-de.myhuaweicloud.com", "data", "auto", "data.obs.eu-de.myhuaweicloud.com", "/a//b"},
		{"http://oss-cn-hangzhou.aliyuncs.com", "data", "", "data.oss-cn-hangzhou.aliyuncs.com", "/a//b"},
		{"http://minio.example.com:9000", "data", "", "minio.example.com:9000", "/data/a//b"},
		{"http://minio.example.com:80", "data", "virtual", "data.minio.example.com", "/a//b"},
		{"http://10.0.0.1:9000/", "da.ta", "", "10.0.0.1:9000", "/da.ta/a//b"},
		{"http://s3.eu-central-1.amazonaws.com", "data", "path", "s3.eu-central-1.amazonaws.com", "/data/a//b"},
	} {
		f := serve(t, func(_ int, w http.ResponseWriter, r *http.Request) {
			// A request for AWS is sent by TLS whatever the endpoint says, so it
			// comes as CONNECT and ends here.
			object(w, r, "e1", []byte("x"))
		})
		s := newStore(t, s3.Config{Endpoint: c.endpoint, Bucket: c.bucket, Addressing: c.addressing, Proxy: f.URL})
		_, _ = s.Head(t.Context(), "a//b") // what was asked is what counts
		r := f.requests()[0]
		if r.Method == http.MethodConnect {
			if r.Host != c.host+":443" {
				t.Errorf("%+v: CONNECT %s", c, r.Host)
			}
			continue
		}
		if r.Host != c.host || r.URL.Path != c.path {
			t.Errorf("%+v: asked %s for %s", c, r.Host, r.URL.Path)
		}
	}
}

// AWS is found by its region, also where minio-go has never heard of that.
func TestRegionChoosesTheHost(t *testing.T) {
	for _, c := range []struct{ endpoint, region, host string }{
		{"", "", "data.s3.us-east-1.amazonaws.com:443"},
		{"", "eu-central-1", "data.s3.eu-central-1.amazonaws.com:443"},
		{"", "cn-north-1", "data.s3.cn-north-1.amazonaws.com.cn:443"},
		{"", "xx-brandnew-7", "data.s3.xx-brandnew-7.amazonaws.com:443"},
		{"https://s3.amazonaws.com", "eu-west-3", "data.s3.eu-west-3.amazonaws.com:443"},
		{"https://s3.xx-brandnew-7.amazonaws.com", "", "data.s3.xx-brandnew-7.amazonaws.com:443"},
		{"https://s3-fips.us-east-2.amazonaws.com", "", "data.s3-fips.us-east-2.amazonaws.com:443"},
		{"https://s3.dualstack.us-east-2.amazonaws.com", "", ""},
	} {
		f := serve(t, func(_ int, w http.ResponseWriter, _ *http.Request) { w.WriteHeader(502) })
		s := newStore(t, s3.Config{Endpoint: c.endpoint, Region: c.region, Proxy: f.URL})
		_, _ = s.Head(t.Context(), "key")                  // both end at the proxy;
		_, _ = s.List(t.Context(), objstore.ListRequest{}) // where they were bound for counts
		for _, r := range f.requests() {
			if r.Method != http.MethodConnect || (c.host != "" && r.Host != c.host) || r.Host != f.requests()[0].Host {
				t.Errorf("%+v: %s %s", c, r.Method, r.Host)
			}
		}
	}
}

// Without a region in the configuration the server's word is taken, by its code
// or, on a HEAD, by its header.
func TestRegionIsLearned(t *testing.T) {
	for name, wrong := range map[string]func(w http.ResponseWriter, r *http.Request){
		"by code": func(w http.ResponseWriter, _ *http.Request) {
			refuse(w, 400, "AuthorizationHeaderMalformed", "<Region>eu-west-3</Region>")
		},
		"by header": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("X-Amz-Bucket-Region", "eu-west-3")
			w.WriteHeader(400)
		},
		"by redirect": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("X-Amz-Bucket-Region", "eu-west-3")
			refuse(w, 301, "PermanentRedirect", "<Endpoint>elsewhere</Endpoint>")
		},
	} {
		f := serve(t, func(_ int, w http.ResponseWriter, r *http.Request) {
			if !strings.Contains(r.Header.Get("Authorization"), "/eu-west-3/s3/aws4_request") {
				wrong(w, r)
				return
			}
			object(w, r, "e1", []byte("x"))
		})
		s := newStore(t, s3.Config{Endpoint: f.URL})
		for range 2 {
			if _, err := s.Head(t.Context(), "key"); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
		want := 3
		if name == "by code" {
			want = 5 // the answer to a HEAD has no code: a GET found it, and was made again
		}
		if n := len(f.requests()); n != want {
			t.Errorf("%s: %d requests for two HEADs, want %d", name, n, want)
		}
	}
	// A region that could become another host's name is not believed.
	f := serve(t, func(_ int, w http.ResponseWriter, _ *http.Request) {
		refuse(w, 400, "AuthorizationHeaderMalformed", "<Region>x.evil.example/</Region>")
	})
	if _, err := get(t, newStore(t, s3.Config{Endpoint: f.URL}), 0, 1); !errors.Is(err, objstore.ErrInvalid) || len(f.requests()) != 1 {
		t.Errorf("%v after %d requests", err, len(f.requests()))
	}
}

func TestRefusalsHaveClasses(t *testing.T) {
	for _, c := range []struct {
		status int
		code   string
		get    objstore.Class
		list   objstore.Class
	}{
		{404, "NoSuchKey", objstore.ClassChanged, objstore.ClassNoBucket},
		{404, "NoSuchBucket", objstore.ClassNoBucket, objstore.ClassNoBucket},
		{404, "", objstore.ClassChanged, objstore.ClassInvalid},
		{403, "AccessDenied", objstore.ClassPermission, objstore.ClassPermission},
		{403, "", objstore.ClassPermission, objstore.ClassPermission},
		{403, "InvalidAccessKeyId", objstore.ClassCredentials, objstore.ClassCredentials},
		{403, "SignatureDoesNotMatch", objstore.ClassCredentials, objstore.ClassCredentials},
		{400, "ExpiredToken", objstore.ClassCredentials, objstore.ClassCredentials},
		{400, "InvalidToken", objstore.ClassCredentials, objstore.ClassCredentials},
		{403, "RequestTimeTooSkewed", objstore.ClassClockSkew, objstore.ClassClockSkew},
		{412, "PreconditionFailed", objstore.ClassChanged, objstore.ClassChanged},
		{416, "InvalidRange", objstore.ClassChanged, objstore.ClassChanged},
		{503, "SlowDown", objstore.ClassThrottled, objstore.ClassThrottled},
		{503, "", objstore.ClassThrottled, objstore.ClassThrottled},
		{429, "", objstore.ClassThrottled, objstore.ClassThrottled},
		{403, "RequestLimitExceeded", objstore.ClassThrottled, objstore.ClassThrottled},
		{500, "InternalError", objstore.ClassTransient, objstore.ClassTransient},
		{400, "RequestTimeout", objstore.ClassTransient, objstore.ClassTransient},
		{502, "", objstore.ClassTransient, objstore.ClassTransient},
		{409, "OperationAborted", objstore.ClassTransient, objstore.ClassTransient},
		{400, "InvalidURI", objstore.ClassInvalid, objstore.ClassInvalid},
		{405, "MethodNotAllowed", objstore.ClassInvalid, objstore.ClassInvalid},
		{403, "InvalidObjectState", objstore.ClassInvalid, objstore.ClassInvalid},
	} {
		f := serve(t, func(_ int, w http.ResponseWriter, _ *http.Request) {
			if c.code == "" {
				w.WriteHeader(c.status)
				return
			}
			refuse(w, c.status, c.code, "")
		})
		s := newStore(t, s3.Config{Endpoint: f.URL})
		_, err := get(t, s, 0, 1)
		if objstore.ClassOf(err) != c.get {
			t.Errorf("get, %d %s: %v, want %v", c.status, c.code, err, c.get)
		}
		if c.code != "" && !strings.Contains(err.Error(), c.code) {
			t.Errorf("%v does not say %s", err, c.code)
		}
		_, err = s.List(t.Context(), objstore.ListRequest{})
		if objstore.ClassOf(err) != c.list {
			t.Errorf("list, %d %s: %v, want %v", c.status, c.code, err, c.list)
		}
	}
}

// The answer to a HEAD has no body; the reason is found out by a GET.
func TestHeadExplainsRefusals(t *testing.T) {
	f := serve(t, func(_ int, w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodHead {
			w.WriteHeader(403)
			return
		}
		refuse(w, 403, "InvalidAccessKeyId", "")
	})
	s := newStore(t, s3.Config{Endpoint: f.URL})
	if _, err := s.Head(t.Context(), "key"); !errors.Is(err, objstore.ErrCredentials) {
		t.Errorf("%v", err)
	}
	// MinIO repeats the code in a header.
	minio := serve(t, func(_ int, w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("X-Minio-Error-Code", "NoSuchBucket")
		w.WriteHeader(404)
	})
	if _, err := newStore(t, s3.Config{Endpoint: minio.URL}).Head(t.Context(), "key"); !errors.Is(err, objstore.ErrNoBucket) {
		t.Errorf("%v", err)
	}
	missing := serve(t, func(_ int, w http.ResponseWriter, _ *http.Request) { w.WriteHeader(404) })
	if _, err := newStore(t, s3.Config{Endpoint: missing.URL}).Head(t.Context(), "key"); !errors.Is(err, objstore.ErrNotExist) {
		t.Errorf("%v", err)
	}
	if n := len(missing.requests()); n != 1 {
		t.Errorf("%d requests for a key that is not there", n)
	}
}

func TestThrottlingSaysHowLong(t *testing.T) {
	for header, want := range map[string]time.Duration{
		"":   0,
		"7":  7 * time.Second,
		"-1": 0,
		"x":  0,
		time.Now().Add(30 * time.Second).UTC().Format(http.TimeFormat): 30 * time.Second,
	} {
		f := serve(t, func(_ int, w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Retry-After", header)
			refuse(w, 503, "SlowDown", "")
		})
		_, err := get(t, newStore(t, s3.Config{Endpoint: f.URL}), 0, 1)
		var th *objstore.Throttled
		if !errors.As(err, &th) || th.After > want || th.After < want-3*time.Second {
			t.Errorf("Retry-After %q: %v", header, err)
		}
	}
}

func TestClockSkewIsNamed(t *testing.T) {
	f := serve(t, func(_ int, w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Date", time.Now().Add(-3*time.Hour).UTC().Format(http.TimeFormat))
		w.WriteHeader(403) // as the answer to a HEAD
	})
	_, err := newStore(t, s3.Config{Endpoint: f.URL}).Head(t.Context(), "key")
	if !errors.Is(err, objstore.ErrClockSkew) || !strings.Contains(err.Error(), "3h0m") {
		t.Errorf("%v", err)
	}
}

func TestConfigIsChecked(t *testing.T) {
	for _, c := range []struct {
		cfg  s3.Config
		word string
	}{
		{s3.Config{Bucket: ""}, "bucket"},
		{s3.Config{Bucket: "a/b"}, "bucket"},
		{s3.Config{Bucket: "x--use1-az4--x-s3"}, "directory"},
		{s3.Config{Bucket: "data", Endpoint: "s3.example.com"}, "http"},
		{s3.Config{Bucket: "data", Endpoint: "https://"}, "host"},
		{s3.Config{Bucket: "data", Endpoint: "https://host/path"}, "path"},
		{s3.Config{Bucket: "data", Endpoint: "https://user:hunter2@host"}, "user"},
		{s3.Config{Bucket: "data", Addressing: "host"}, "addressing"},
		{s3.Config{Bucket: "data", Credentials: s3.Credentials{Source: "vault"}}, "vault"},
		{s3.Config{Bucket: "data", Credentials: s3.Credentials{AccessKey: "x"}}, "secret key"},
	} {
		err := c.cfg.Validate()
		if !errors.Is(err, objstore.ErrInvalid) || !strings.Contains(err.Error(), c.word) || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%+v: %v", c.cfg, err)
		}
		if _, err := s3.New(c.cfg); err == nil {
			t.Errorf("%+v: accepted", c.cfg)
		}
	}
	for endpoint, want := range map[string]string{
		"":                        "https://s3.amazonaws.com",
		"HTTPS://S3.Example.com/": "https://s3.example.com",
		"http://host:80":          "http://host",
		"https://host:9000":       "https://host:9000",
		"http://[::1]:9000":       "http://[::1]:9000",
	} {
		if got, err := (s3.Config{Bucket: "data", Endpoint: endpoint}).Origin(); err != nil || got != want {
			t.Errorf("origin of %q: %q, %v", endpoint, got, err)
		}
	}
}

func TestBucketsShareAClient(t *testing.T) {
	f := serve(t, func(_ int, w http.ResponseWriter, r *http.Request) { object(w, r, "e1", []byte(r.URL.Path)) })
	s := newStore(t, s3.Config{Endpoint: f.URL})
	other, err := s.Bucket("other")
	if err != nil {
		t.Fatal(err)
	}
	if got, err := get(t, other, 0, 10); err != nil || string(got) != "/other/key" {
		t.Errorf("%q, %v", got, err)
	}
	if _, err := s.Bucket("no/bucket"); err == nil {
		t.Error("a bucket with a slash")
	}
}
