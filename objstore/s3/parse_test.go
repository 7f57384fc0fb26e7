package s3

import (
	"encoding/xml"
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/shardwell/shardwell/objstore"
)

// Whatever a server sends, a page holds only names that were asked for, once each.
func FuzzParsePage(f *testing.F) {
	for _, s := range []string{
		"", "<ListBucketResult/>", "<Error><Code>SlowDown</Code></Error>",
		"<ListBucketResult><EncodingType>url</EncodingType><IsTruncated>true</IsTruncated><Contents><Key>p%2Fa+b</Key><Size>5</Size></Contents></ListBucketResult>",
		"<ListBucketResult><IsTruncated>true</IsTruncated><NextMarker>p/\x01</NextMarker><CommonPrefixes><Prefix>p/&#x2;</Prefix></CommonPrefixes></ListBucketResult>",
		"<ListBucketResult><Contents><Key>p/&#;&#x;&#xFFFFFFFF;&#99999999999;</Key></Contents></ListBucketResult>",
	} {
		f.Add([]byte(s), "p/", "1:p/a")
	}
	f.Fuzz(func(t *testing.T, data []byte, prefix, token string) {
		page, err := parsePage(data, objstore.ListRequest{Prefix: prefix, Delimiter: "/", Token: token})
		if err != nil {
			return
		}
		seen := make(map[string]bool)
		check := func(name string) {
			if name == "" || !strings.HasPrefix(name, prefix) || seen[name] {
				t.Errorf("name %q under prefix %q", name, prefix)
			}
			seen[name] = true
		}
		for _, o := range page.Objects {
			check(o.Key)
		}
		for _, p := range page.Prefixes {
			check(p)
		}
		if page.Next != "" && (page.Next == token || len(page.Next) < 3) {
			t.Errorf("next %q after %q", page.Next, token)
		}
	})
}

// Every key comes through XML as it is, however a server writes it.
func FuzzNamesSurviveXML(f *testing.F) {
	for _, s := range []string{"plain", "a\x01b", "\r\n\t", "&#x1;", "&amp;", "日本", "+ %2B", "\x1f"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, key string) {
		if key == "" || len(key) > 1024 || !utf8.ValidString(key) || strings.ContainsFunc(key, noXML) {
			return
		}
		var raw, refs strings.Builder
		for _, c := range key {
			if c < 0x20 {
				raw.WriteRune(c)
				fmt.Fprintf(&refs, "&#x%X;", c)
				continue
			}
			for _, b := range []*strings.Builder{&raw, &refs} {
				if err := xml.EscapeText(b, []byte(string(c))); err != nil {
					t.Fatal(err)
				}
			}
		}
		for _, text := range []string{raw.String(), refs.String()} {
			page, err := parsePage([]byte("<ListBucketResult><Contents><Key>"+text+"</Key></Contents></ListBucketResult>"), objstore.ListRequest{})
			if err != nil || len(page.Objects) != 1 || page.Objects[0].Key != key {
				t.Errorf("%q as %q: %+v, %v", key, text, page, err)
			}
		}
	})
}

// noXML reports characters that XML cannot hold and S3 does not allow either, and our
// own private ones.
func noXML(c rune) bool {
	return c == 0 || c == 0xFFFE || c == 0xFFFF || (c >= armourBase && c < armourBase+0x20)
}

func FuzzParseContentRange(f *testing.F) {
	for _, s := range []string{"bytes 0-99/1000", "bytes 0-99/*", "bytes */1000", "bytes 9-1/10", "", "bytes 0-/1", "bytes -1-2/3"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		first, last, err := parseContentRange(s)
		if err == nil && (first < 0 || last < first) {
			t.Errorf("%q: %d-%d", s, first, last)
		}
	})
}
