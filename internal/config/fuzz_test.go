package config

import (
	"errors"
	"reflect"
	"strings"
	"testing"
)

// FuzzYAML wants: no panic, an *Error in one line, and a file that was accepted
// to mean the same when what it set is written as volume attributes and variables.
func FuzzYAML(f *testing.F) {
	for _, s := range []string{
		"", "# nothing\n", "cacheDir: [/a=1Gi, /b]\nzone: z\n", "memory: 512Mi\nuid: 3\n", "zone: &a x\nrack: *a\n",
		"a: [", "? x\n: y", "!!binary zone: x", "consistency: ttl=1h\n", "fileMode: 0o444\n", "---\n...\n", "zone: !!null x", "<<: {zone: a}",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		r := Resolved{Config: Default(), sources: map[string]Source{}}
		err := r.loadYAML(text, "f.yaml")
		if err == nil {
			err = r.check()
		}
		if err != nil {
			wantOneLine(t, err)
			return
		}
		var environ []string
		for _, opt := range fields() {
			texts := opt.texts(&r.Config)
			if _, set := r.sources[opt.name]; !set || strings.ContainsAny(strings.Join(texts, ""), ", \t\x00") {
				continue // a comma separates there
			}
			environ = append(environ, opt.env()+"="+strings.Join(texts, ","))
		}
		again, err := Load(Inputs{Environ: environ})
		if err != nil {
			return // an option that was left out is needed by another
		}
		for _, opt := range fields() {
			if again.Source(opt.name).Kind != "env" {
				continue
			}
			a, b := opt.value(&r.Config), opt.value(&again.Config)
			if !reflect.DeepEqual(a.Interface(), b.Interface()) && a.Len() > 0 {
				t.Errorf("option %s: file says %v, the same as a variable says %v", opt.name, a, b)
			}
		}
	})
}

// FuzzEnvironment wants: no panic, and errors in one line.
func FuzzEnvironment(f *testing.F) {
	f.Add("CACHE_DIR", "/a=1Gi,/b")
	f.Add("MEMORY", "1e3")
	f.Add("CONSISTENCY", "ttl=1ns")
	f.Add("BIND", "[::1]:0")
	f.Add("ENDPOINT", "http://a:b@c/d?e#f")
	f.Add("JOIN", "a:1,[::1]:7946,b")
	f.Add("PROXY", "http://%zz@x")
	f.Fuzz(func(t *testing.T, name, value string) {
		if _, err := Load(Inputs{Environ: []string{envPrefix + name + "=" + value}}); err != nil && name != "CONFIG" {
			wantOneLine(t, err)
		}
	})
}

func wantOneLine(t *testing.T, err error) {
	t.Helper()
	var e *Error
	if !errors.As(err, &e) {
		t.Errorf("error of type %T: %v", err, err)
	}
	if strings.ContainsAny(err.Error(), "\n\x00") {
		t.Errorf("error of more than one line: %q", err)
	}
}
