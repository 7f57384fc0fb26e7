package config

import (
	"errors"
	"fmt"
	"net/url"
	"os"
	"slices"
	"strings"
)

// envPrefix opens the name of every variable of Shardwell.
const envPrefix = "SHARDWELL_"

// EnvFile is the variable that names the configuration file.
const EnvFile = envPrefix + "CONFIG"

// Source says where a value comes from.
type Source struct {
	Kind  string // default, file, env or flag
	Where string // as a user finds it: "--bind", "SHARDWELL_BIND", "/etc/shardwell.yaml:3"
}

func (s Source) String() string { return s.Where }

// Resolved is a configuration whose values know where they come from.
type Resolved struct {
	Config
	// Ignored names variables that look like options and are none, such as those
	// that Kubernetes makes for a Service called shardwell.
	Ignored []string

	sources map[string]Source // by name of the flag; none for defaults
}

// Inputs is what [Load] reads. The zero value yields the defaults.
type Inputs struct {
	Flags   *Flags   // nil for none
	Environ []string // as os.Environ returns it
	File    string   // path of a YAML file; "" takes that of [EnvFile]
}

// Error is one thing that is wrong with a configuration.
type Error struct {
	What  string // wrong
	Where string // it was set
	Do    string // to put it right
}

func (e *Error) Error() string {
	parts := slices.DeleteFunc([]string{e.What, e.Where, e.Do}, func(s string) bool { return s == "" })
	return strings.Join(parts, ": ")
}

// Load reads the views in the order of their precedence, flags over environment
// over file over defaults, and validates the result. Errors are of type *[Error].
func Load(in Inputs) (Resolved, error) {
	r := Resolved{Config: Default(), sources: map[string]Source{}}
	env, err := environment(in.Environ)
	if err != nil {
		return r, err
	}
	file, where := in.File, "--config"
	if file == "" {
		file, where = env[EnvFile], EnvFile
	}
	if file != "" {
		if err := r.loadFile(file, where); err != nil {
			return r, err
		}
	}
	if err := r.loadEnv(env); err != nil {
		return r, err
	}
	if err := r.loadFlags(in.Flags); err != nil {
		return r, err
	}
	return r, r.check()
}

// environment returns the variables with our prefix that are not empty: an empty
// one is as good as none, as templates of manifests would have it.
func environment(environ []string) (map[string]string, error) {
	out := map[string]string{}
	for _, kv := range environ {
		name, value, found := strings.Cut(kv, "=")
		if !found || value == "" || !strings.HasPrefix(name, envPrefix) {
			continue
		}
		if len(value) > maxFileBytes {
			return nil, &Error{What: "value too long", Where: name, Do: "use --config for long lists"}
		}
		out[name] = value
	}
	return out, nil
}

func (r *Resolved) loadEnv(env map[string]string) error {
	for _, f := range fields() {
		text, ok := env[f.env()]
		if !ok {
			continue
		}
		if err := r.set(f, f.split(text), Source{Kind: "env", Where: f.env()}); err != nil {
			return err
		}
		delete(env, f.env())
	}
	delete(env, EnvFile)
	for name := range env {
		r.Ignored = append(r.Ignored, name)
	}
	slices.Sort(r.Ignored)
	return nil
}

func (r *Resolved) loadFlags(flags *Flags) error {
	if flags == nil {
		return nil
	}
	for _, f := range fields() {
		texts, ok := flags.given[f.name]
		if !ok {
			continue
		}
		if err := r.set(f, *texts, Source{Kind: "flag", Where: "--" + f.name}); err != nil {
			return err
		}
	}
	return nil
}

// loadFile reads a YAML file that where named.
func (r *Resolved) loadFile(path, where string) error {
	text, err := readFile(path)
	if err != nil {
		return &Error{What: "cannot read the configuration file: " + err.Error(), Where: where}
	}
	return r.loadYAML(text, path)
}

// readFile reads a file of bounded size.
func readFile(path string) ([]byte, error) {
	st, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if st.Size() > maxFileBytes {
		return nil, fmt.Errorf("%s is larger than %d bytes", path, maxFileBytes)
	}
	return os.ReadFile(path)
}

// set gives an option its value and notes where it comes from.
func (r *Resolved) set(f field, texts []string, from Source) error {
	if err := f.set(&r.Config, texts); err != nil {
		return &Error{What: fmt.Sprintf("%q %v", f.masked(strings.Join(texts, ",")), err), Where: from.Where}
	}
	r.sources[f.name] = from
	return nil
}

// Source returns where the value of an option comes from, by its name as a flag.
func (r Resolved) Source(name string) Source {
	if s, ok := r.sources[name]; ok {
		return s
	}
	return Source{Kind: "default", Where: "default"}
}

// check validates the configuration and adds to an error where the values
// that cannot work were set.
func (r Resolved) check() error {
	err := r.Validate()
	var p *problem
	if !errors.As(err, &p) {
		return err
	}
	var where []string
	for _, name := range p.options {
		if s, ok := r.sources[name]; ok && !slices.Contains(where, s.Where) {
			where = append(where, s.Where)
		}
	}
	return &Error{What: p.what, Where: strings.Join(where, ", "), Do: p.do}
}

// Setting is one line of what `shardwell config` prints.
type Setting struct {
	Name   string // as a flag
	Key    string // in YAML
	Values []string
	List   bool
	// NodeOnly says that neither a mount nor a command that talks to a node may set it.
	NodeOnly bool
	Source   Source
}

// Settings returns all options in their order, secrets masked.
func (r Resolved) Settings() []Setting {
	out := make([]Setting, 0, len(fields()))
	for _, f := range fields() {
		values := f.texts(&r.Config)
		for i := range values {
			values[i] = f.masked(values[i])
		}
		out = append(out, Setting{
			Name: f.name, Key: f.key(), Values: values, List: f.isList(),
			NodeOnly: !f.in(ScopeOrigin, ScopeMount, ScopeClient), Source: r.Source(f.name),
		})
	}
	return out
}

// masked hides the password in a URL.
func (f field) masked(text string) string {
	if f.secret != "url" {
		return text
	}
	u, err := url.Parse(text)
	if err != nil {
		if strings.Contains(text, "@") { // may hold a password all the same
			return "xxxxx"
		}
		return text
	}
	return u.Redacted()
}
