package config

import (
	"math"
	"reflect"
	"testing"
	"time"
)

func TestAttributesTravelFromCommandToNode(t *testing.T) {
	r, err := Load(Inputs{Flags: flagsOf(t, "--consistency=open", "--uid=7", "--cache-dir=/x"), Environ: []string{"SHARDWELL_ENDPOINT=http://127.0.0.1:9000"}})
	if err != nil {
		t.Fatal(err)
	}
	attributes := r.Attributes()
	want := map[string]string{"consistency": "open", "uid": "7", "endpoint": "http://127.0.0.1:9000"}
	if !reflect.DeepEqual(attributes, want) {
		t.Fatalf("attributes: got %v, want %v", attributes, want)
	}
	node := Default()
	node.Weight = 9
	c, err := node.WithAttributes(attributes)
	if err != nil {
		t.Fatal(err)
	}
	if c.Consistency.Mode != ConsistencyOpen || c.UID != 7 || c.Endpoint != "http://127.0.0.1:9000" || c.Weight != 9 {
		t.Errorf("got %+v", c)
	}
}

func TestAttributesThatAreRefused(t *testing.T) {
	for _, c := range []struct{ key, value, want string }{
		{"cacheDir", "/x", `option "cacheDir" is the node's: set it where the node is started`},
		{"insecure", "true", `option "insecure" is the node's: set it where the node is started`},
		{"consistancy", "open", `unknown option "consistancy": did you mean "consistency"?`},
		{"consistency", "eventual", `"eventual" is none of ttl=DURATION, open, immutable: consistency`},
		{"uid", "-2", `-2 is no user or group: uid: give its number, or -1 for the one who mounts`},
	} {
		_, err := Default().WithAttributes(map[string]string{c.key: c.value})
		if err == nil || err.Error() != c.want {
			t.Errorf("%s=%s: got  %v\nwant %s", c.key, c.value, err, c.want)
		}
	}
}

func TestMaxAge(t *testing.T) {
	for text, want := range map[string][2]time.Duration{
		"ttl=90s":   {90 * time.Second, 90 * time.Second},
		"ttl=0s":    {0, 0},
		"open":      {time.Minute, 0},
		"immutable": {math.MaxInt64, math.MaxInt64},
	} {
		var c Consistency
		if err := c.UnmarshalText([]byte(text)); err != nil {
			t.Fatal(err)
		}
		if lookup, open := c.MaxAge(); lookup != want[0] || open != want[1] {
			t.Errorf("%s: got %v and %v, want %v", text, lookup, open, want)
		}
	}
}

func TestParseURI(t *testing.T) {
	for text, want := range map[string]URI{
		"s3://b":              {Bucket: "b"},
		"s3://b/":             {Bucket: "b"},
		"s3://b/p/q":          {Bucket: "b", Prefix: "p/q"},
		"s3://b/p/":           {Bucket: "b", Prefix: "p/"},
		"s3://b//p":           {Bucket: "b", Prefix: "/p"},
		"s3://b/a%20b?c#d e":  {Bucket: "b", Prefix: "a%20b?c#d e"},
		"file:///mnt/data":    {Dir: "/mnt/data"},
		"file:///mnt/data/":   {Dir: "/mnt/data"},
		"file:///":            {Dir: "/"},
		"s3://my.bucket/../x": {Bucket: "my.bucket", Prefix: "../x"},
	} {
		got, err := ParseURI(text)
		if err != nil || got != want {
			t.Errorf("%s: got %+v, %v, want %+v", text, got, err, want)
		}
	}
	for _, text := range []string{"", "b/p", "s3:/b", "s3://", "s3:///p", "gs://b/p", "file://host/x", "file:///a/../b", "file://a", "s3://b d/p", "s3://b/\x00"} {
		if got, err := ParseURI(text); err == nil {
			t.Errorf("%q: got %+v, want an error", text, got)
		}
	}
}

func TestSizes(t *testing.T) {
	for text, want := range map[string]Bytes{
		"0": 0, "1024": 1024, "1Ki": 1024, "1k": 1000, "0.5Gi": 512 << 20, "1e3": 1000, "7Ei": 7 << 60, "9223372036854775807": math.MaxInt64, "1000m": 1, "8Ei": math.MaxInt64, // the parser stops there
	} {
		var got Bytes
		if err := got.UnmarshalText([]byte(text)); err != nil || got != want {
			t.Errorf("%s: got %d, %v, want %d", text, got, err, want)
		}
	}
	for _, text := range []string{"", "x", "1Kb", "1 Gi", "-1", "0.5", "1e99", "1e999999999", "1e-999999999", "99999999999999999999"} {
		var got Bytes
		if err := got.UnmarshalText([]byte(text)); err == nil {
			t.Errorf("%s: got %d, want an error", text, got)
		}
	}
}
