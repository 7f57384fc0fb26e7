package s3_test

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/shardwell/shardwell/objstore"
	"github.com/shardwell/shardwell/objstore/s3"
)

// all lists everything and returns the names in the order in which they came.
func all(t *testing.T, s *s3.Store, req objstore.ListRequest) ([]string, error) {
	t.Helper()
	var names []string
	for range 20 {
		page, err := s.List(t.Context(), req)
		if err != nil {
			return names, err
		}
		for _, o := range page.Objects {
			names = append(names, o.Key)
		}
		names = append(names, page.Prefixes...)
		if req.Token = page.Next; req.Token == "" {
			return names, nil
		}
	}
	return names, errors.New("the listing does not end")
}

// quirks are listings as servers are documented, or were seen, to give them.
var quirks = []struct {
	name   string
	req    objstore.ListRequest
	answer func(n int, w http.ResponseWriter, r *http.Request)
	want   []string
}{
	{
		// AWS: url.QueryEscape but for "/"; a space is "+".
		name: "AWS encoding", req: objstore.ListRequest{Delimiter: "/"},
		answer: func(_ int, w http.ResponseWriter, _ *http.Request) {
			page(w, "<EncodingType>url</EncodingType><KeyCount>4</KeyCount><IsTruncated>false</IsTruncated>"+
				entry("a+b.txt")+entry("a%2Bb.txt")+entry("100%25.csv")+entry("%ED%95%9C%EA%B8%80/x%01")+prefix("run+books/"))
		},
		want: []string{"a b.txt", "a+b.txt", "100%.csv", "한글/x\x01", "run books/"},
	},
	{
		// Ceph RGW up to Mimic says "url" and encodes keys, not prefixes and markers.
		name: "RGW encodes keys only", req: objstore.ListRequest{Prefix: "d d/", Delimiter: "/"},
		answer: func(_ int, w http.ResponseWriter, r *http.Request) {
			q := r.URL.Query()
			if q.Get("marker") == "" {
				page(w, "<EncodingType>url</EncodingType><Prefix>d d/</Prefix><Marker></Marker><NextMarker>d d/é+/</NextMarker>"+
					"<IsTruncated>true</IsTruncated>"+entry("d%20d/a%20b")+prefix("d d/é+/"))
				return
			}
			if q.Get("marker") != "d d/é+/" {
				refuse(w, 400, "InvalidArgument", "")
				return
			}
			page(w, "<EncodingType>url</EncodingType><IsTruncated>false</IsTruncated>"+entry("d%20d/z"))
		},
		want: []string{"d d/a b", "d d/é+/", "d d/z"},
	},
	{
		// Swift and others leave KeyCount out.
		name: "no KeyCount",
		answer: func(_ int, w http.ResponseWriter, r *http.Request) {
			if r.URL.Query().Get("continuation-token") == "t/1+=" {
				page(w, "<IsTruncated>false</IsTruncated>"+entry("b"))
				return
			}
			page(w, "<IsTruncated>true</IsTruncated><NextContinuationToken>t/1+=</NextContinuationToken>"+entry("a"))
		},
		want: []string{"a", "b"},
	},
	{
		// A server that knows only the first version ignores list-type, and gives
		// NextMarker only where there is a delimiter, or never.
		name: "only version 1, ignored",
		answer: func(_ int, w http.ResponseWriter, r *http.Request) {
			switch q := r.URL.Query(); q.Get("marker") {
			case "":
				page(w, "<Marker></Marker><IsTruncated>true</IsTruncated>"+entry("a")+entry("b &amp; c"))
			case "b & c":
				page(w, "<Marker>b &amp; c</Marker><IsTruncated>false</IsTruncated>"+entry("b &amp; c")+entry("d"))
			default:
				refuse(w, 400, "InvalidArgument", "")
			}
		},
		want: []string{"a", "b & c", "d"},
	},
	{
		name: "only version 1, refused",
		answer: func(_ int, w http.ResponseWriter, r *http.Request) {
			switch q := r.URL.Query(); {
			case q.Has("list-type"):
				refuse(w, 501, "NotImplemented", "")
			case q.Get("marker") == "":
				page(w, "<IsTruncated>true</IsTruncated><NextMarker>b</NextMarker>"+entry("a")+entry("b"))
			default:
				page(w, "<IsTruncated>false</IsTruncated>"+entry("c"))
			}
		},
		want: []string{"a", "b", "c"},
	},
	{
		name: "repetitions, disorder, strangers", req: objstore.ListRequest{Prefix: "p/", Delimiter: "/"},
		answer: func(_ int, w http.ResponseWriter, _ *http.Request) {
			page(w, "<Prefix>p</Prefix><IsTruncated>false</IsTruncated>"+entry("p/z")+entry("p/a")+entry("p/z")+entry("other")+entry("")+
				prefix("p/d/")+prefix("p/c")+prefix("p/d/")+prefix("q/")+prefix(""))
		},
		want: []string{"p/z", "p/a", "p/d/", "p/c/"},
	},
	{
		name: "empty pages on the way",
		answer: func(n int, w http.ResponseWriter, _ *http.Request) {
			if n < 4 {
				page(w, fmt.Sprintf("<IsTruncated>true</IsTruncated><NextContinuationToken>%d</NextContinuationToken>", n))
				return
			}
			page(w, "<IsTruncated>false</IsTruncated>"+entry("a"))
		},
		want: []string{"a"},
	},
	{
		name: "control characters, raw and by number",
		answer: func(_ int, w http.ResponseWriter, _ *http.Request) {
			page(w, "<IsTruncated>false</IsTruncated>"+entry("a\x01b")+entry("c&#x2;d")+entry("e&#3;f")+entry("g&#xD;&#xA;h")+entry("&#x41;"))
		},
		want: []string{"a\x01b", "c\x02d", "e\x03f", "g\r\nh", "A"},
	},
	{
		name: "says url but encodes nothing",
		answer: func(_ int, w http.ResponseWriter, _ *http.Request) {
			page(w, "<EncodingType>url</EncodingType><IsTruncated>false</IsTruncated>"+entry("100% sure")+entry("é+x")+entry("50%"))
		},
		want: []string{"100% sure", "é+x", "50%"},
	},
}

func TestListQuirks(t *testing.T) {
	for _, q := range quirks {
		t.Run(q.name, func(t *testing.T) {
			f := serve(t, q.answer)
			got, err := all(t, newStore(t, s3.Config{Endpoint: f.URL}), q.req)
			if err != nil || !slices.Equal(got, q.want) {
				t.Errorf("got %q, %v\nwant %q", got, err, q.want)
			}
		})
	}
}

// A server that was seen to refuse the second version is not asked for it again.
func TestListRemembersVersion1(t *testing.T) {
	f := serve(t, func(_ int, w http.ResponseWriter, r *http.Request) {
		if r.URL.Query().Has("list-type") {
			refuse(w, 501, "NotImplemented", "")
			return
		}
		page(w, "<IsTruncated>false</IsTruncated>")
	})
	s := newStore(t, s3.Config{Endpoint: f.URL})
	for range 3 {
		if _, err := s.List(t.Context(), objstore.ListRequest{}); err != nil {
			t.Fatal(err)
		}
	}
	if n := len(f.requests()); n != 4 {
		t.Errorf("%d requests for 3 listings", n)
	}
}

func TestListFindsWrongAnswers(t *testing.T) {
	for name, c := range map[string]struct {
		answer func(w http.ResponseWriter)
		class  objstore.Class
	}{
		"a web site":     {func(w http.ResponseWriter) { fmt.Fprint(w, "<!DOCTYPE html><html><body>Hi<br></body></html>") }, objstore.ClassInvalid},
		"other XML":      {func(w http.ResponseWriter) { fmt.Fprint(w, "<ListAllMyBucketsResult/>") }, objstore.ClassInvalid},
		"nothing":        {func(http.ResponseWriter) {}, objstore.ClassInvalid},
		"a missing page": {func(w http.ResponseWriter) { w.WriteHeader(404); fmt.Fprint(w, "<html>Not Found</html>") }, objstore.ClassInvalid},
		"no bucket":      {func(w http.ResponseWriter) { refuse(w, 404, "NoSuchBucket", "") }, objstore.ClassNoBucket},
		"200 with an error": {func(w http.ResponseWriter) {
			fmt.Fprint(w, "<Error><Code>SlowDown</Code><Message>later</Message></Error>")
		}, objstore.ClassThrottled},
		"200 with another error": {func(w http.ResponseWriter) {
			fmt.Fprint(w, "<Error><Code>InternalError</Code><Message>later</Message></Error>")
		}, objstore.ClassTransient},
		"more, but not where": {func(w http.ResponseWriter) { page(w, "<IsTruncated>true</IsTruncated>") }, objstore.ClassTransient},
		"cut": {func(w http.ResponseWriter) {
			w.Header().Set("Content-Length", "1000")
			fmt.Fprint(w, "<ListBucketResult>")
		}, objstore.ClassTransient},
	} {
		t.Run(name, func(t *testing.T) {
			f := serve(t, func(_ int, w http.ResponseWriter, _ *http.Request) { c.answer(w) })
			_, err := newStore(t, s3.Config{Endpoint: f.URL}).List(t.Context(), objstore.ListRequest{Prefix: "p"})
			if got := objstore.ClassOf(err); got != c.class {
				t.Errorf("%v: %v, want %v", err, got, c.class)
			}
		})
	}
	// The same token twice.
	f := serve(t, func(_ int, w http.ResponseWriter, _ *http.Request) {
		page(w, "<IsTruncated>true</IsTruncated><NextContinuationToken>same</NextContinuationToken>"+entry("a"))
	})
	if _, err := all(t, newStore(t, s3.Config{Endpoint: f.URL}), objstore.ListRequest{}); err == nil || strings.Contains(err.Error(), "does not end") {
		t.Errorf("a listing in a circle: %v", err)
	}
}

func TestListAsks(t *testing.T) {
	f := serve(t, func(_ int, w http.ResponseWriter, _ *http.Request) { page(w, entry("a b")) })
	s := newStore(t, s3.Config{Endpoint: f.URL})
	p, err := s.List(t.Context(), objstore.ListRequest{Prefix: "a b", Delimiter: "/", Limit: 5000})
	if err != nil {
		t.Fatal(err)
	}
	if o := p.Objects[0]; o.ETag != "e-1" || o.Size != 5 || o.ModTime.Year() != 2024 {
		t.Errorf("%+v", o)
	}
	r := f.requests()[0]
	if r.URL.RawQuery != "delimiter=%2F&encoding-type=url&list-type=2&max-keys=1000&prefix=a%20b" || r.URL.Path != "/data/" {
		t.Errorf("%v", r.URL)
	}
	if _, err := s.List(t.Context(), objstore.ListRequest{Token: "made up"}); !errors.Is(err, objstore.ErrInvalid) {
		t.Errorf("a token of nobody: %v", err)
	}
}
