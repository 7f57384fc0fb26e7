package config

import (
	_ "embed"
	"encoding"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
)

// field is one option: what the tag on a field of [Config] says about it.
type field struct {
	name   string  // as a flag: cache-dir
	scopes []Scope // who may set it
	secret string  // "url": a password inside is masked when it is shown
	help   string  // the comment on the field
	index  int     // in Config
}

// Scope says who may set an option.
type Scope string

// The scopes of options.
const (
	ScopeNode   Scope = "node"   // the daemon
	ScopeOrigin Scope = "origin" // also a mount or a listing that names another origin
	ScopeMount  Scope = "mount"  // also a mount
	ScopeClient Scope = "client" // also commands that talk to the daemon
	ScopeCSI    Scope = "csi"    // the CSI driver
)

// limits of what a user can give.
const (
	maxValueBytes  = 4096 // one value
	maxListEntries = 1024 // of one option
)

// source is this package's own manual: the comments on the fields of Config are
// what --help prints, so that there is one text.
//
//go:embed config.go
var source string

// fields returns all options in the order of [Config].
var fields = sync.OnceValue(func() []field {
	comments := fieldComments()
	t := reflect.TypeFor[Config]()
	out := make([]field, 0, t.NumField())
	for i := range t.NumField() {
		f := field{name: t.Field(i).Tag.Get("name"), secret: t.Field(i).Tag.Get("secret"), help: comments[t.Field(i).Name], index: i}
		for s := range strings.SplitSeq(t.Field(i).Tag.Get("scope"), ",") {
			f.scopes = append(f.scopes, Scope(s))
		}
		out = append(out, f)
	}
	return out
})

// fieldComments returns the comment of each field of Config.
func fieldComments() map[string]string {
	file, err := parser.ParseFile(token.NewFileSet(), "config.go", source, parser.ParseComments)
	if err != nil {
		panic("config: own source: " + err.Error()) // it was compiled
	}
	out := map[string]string{}
	ast.Inspect(file, func(n ast.Node) bool {
		t, ok := n.(*ast.TypeSpec)
		if !ok || t.Name.Name != "Config" {
			return true
		}
		for _, f := range t.Type.(*ast.StructType).Fields.List {
			out[f.Names[0].Name] = strings.Join(strings.Fields(f.Doc.Text()), " ")
		}
		return false
	})
	return out
}

// lookup finds an option by its name as a flag.
func lookup(name string) (field, bool) {
	all := fields()
	i := slices.IndexFunc(all, func(f field) bool { return f.name == name })
	if i < 0 {
		return field{}, false
	}
	return all[i], true
}

// env returns the name of the option as a variable: SHARDWELL_CACHE_DIR.
func (f field) env() string {
	return envPrefix + strings.ToUpper(strings.ReplaceAll(f.name, "-", "_"))
}

// key returns the name of the option in YAML and volume attributes: cacheDir.
func (f field) key() string {
	parts := strings.Split(f.name, "-")
	for i, p := range parts[1:] {
		parts[i+1] = strings.ToUpper(p[:1]) + p[1:]
	}
	return strings.Join(parts, "")
}

func (f field) in(scopes ...Scope) bool {
	return slices.ContainsFunc(scopes, func(s Scope) bool { return slices.Contains(f.scopes, s) })
}

func (f field) value(c *Config) reflect.Value { return reflect.ValueOf(c).Elem().Field(f.index) }

// isList reports whether the option takes several values.
func (f field) isList() bool {
	return reflect.TypeFor[Config]().Field(f.index).Type.Kind() == reflect.Slice
}

func (f field) isBool() bool {
	return reflect.TypeFor[Config]().Field(f.index).Type.Kind() == reflect.Bool
}

// set gives the option its value. texts has one element unless the option is a
// list. Errors read on behind the value: "is not a size".
func (f field) set(c *Config, texts []string) error {
	v := f.value(c)
	if !f.isList() {
		if len(texts) != 1 {
			return errors.New("takes one value")
		}
		return setOne(v, texts[0])
	}
	if len(texts) > maxListEntries {
		return fmt.Errorf("has more than %d entries", maxListEntries)
	}
	list := reflect.MakeSlice(v.Type(), len(texts), len(texts))
	for i, t := range texts {
		if err := setOne(list.Index(i), t); err != nil {
			return err
		}
	}
	v.Set(list)
	return nil
}

func setOne(v reflect.Value, text string) error {
	if len(text) > maxValueBytes {
		return fmt.Errorf("is longer than %d bytes", maxValueBytes)
	}
	if u, ok := v.Addr().Interface().(encoding.TextUnmarshaler); ok {
		return u.UnmarshalText([]byte(text))
	}
	switch v.Kind() {
	case reflect.String:
		if strings.ContainsAny(text, "\x00\n\r") {
			return errors.New("contains a control character")
		}
		v.SetString(text)
	case reflect.Bool:
		b, err := strconv.ParseBool(text)
		if err != nil {
			return errors.New("is neither true nor false")
		}
		v.SetBool(b)
	case reflect.Int:
		n, err := strconv.ParseInt(text, 10, 32)
		if err != nil {
			return errors.New("is not a whole number")
		}
		v.SetInt(n)
	default:
		panic("config: field of unknown kind " + v.Kind().String())
	}
	return nil
}

// texts returns the value of the option as a user would write it, one text for
// each entry of a list.
func (f field) texts(c *Config) []string {
	v := f.value(c)
	if !f.isList() {
		return []string{textOf(v)}
	}
	out := make([]string, v.Len())
	for i := range out {
		out[i] = textOf(v.Index(i))
	}
	return out
}

func textOf(v reflect.Value) string {
	if v.Kind() == reflect.String {
		return v.String()
	}
	return fmt.Sprint(v.Interface())
}

// split cuts a value of the flag or variable view, where entries of a list are
// separated by commas.
func (f field) split(text string) []string {
	if !f.isList() {
		return []string{text}
	}
	var out []string
	for part := range strings.SplitSeq(text, ",") {
		if part = strings.TrimSpace(part); part != "" {
			out = append(out, part)
		}
	}
	return out
}
