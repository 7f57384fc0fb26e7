package config

import (
	"slices"
	"strings"

	"github.com/spf13/pflag"
)

// Flags holds what was given on a command line.
type Flags struct {
	given map[string]*[]string // by name; only those that were given
}

// Bind adds the options of the scopes to a flag set. The result goes to [Load]
// after the set was parsed.
func Bind(fs *pflag.FlagSet, scopes ...Scope) *Flags {
	flags := &Flags{given: map[string]*[]string{}}
	def := Default()
	for _, f := range fields() {
		if !f.in(scopes...) {
			continue
		}
		v := &flagValue{field: f, flags: flags}
		usage, preset := f.help, strings.Join(f.texts(&def), ",")
		flag := fs.VarPF(v, f.name, "", usage)
		flag.DefValue = preset
		if f.isBool() {
			flag.NoOptDefVal = "true"
		}
	}
	return flags
}

// Completions returns, by the name of a flag, the values that one with few of them may have.
func Completions() map[string][]string {
	return map[string][]string{
		"consistency":  {"ttl=60s", ConsistencyOpen, ConsistencyImmutable},
		"log-level":    logLevels,
		"log-format":   logFormats,
		"addressing":   addressings,
		"verify-reads": verifyReads,

		"background-fill": backgroundFills,
	}
}

// flagValue collects the texts of one flag; they are parsed at once, so that
// the error is the command line's, and again by Load.
type flagValue struct {
	field field
	flags *Flags
	texts []string
}

func (v *flagValue) Set(text string) error {
	texts := v.field.split(text)
	if v.field.isList() {
		texts = append(slices.Clone(v.texts), texts...)
	}
	var scratch Config
	if err := v.field.set(&scratch, texts); err != nil {
		return err
	}
	v.texts = texts
	v.flags.given[v.field.name] = &v.texts
	return nil
}

func (v *flagValue) String() string { return strings.Join(v.texts, ",") }

// Type is the word for the value in the list of flags.
func (v *flagValue) Type() string {
	var c Config
	switch v.field.value(&c).Interface().(type) {
	case Bytes:
		return "SIZE"
	case Duration:
		return "DURATION"
	case []CacheDir:
		return "DIR[=SIZE]"
	case []string:
		return "LIST"
	case Consistency:
		return "MODE"
	case Mode:
		return "OCTAL"
	case bool:
		return "bool" // pflag prints none for this word
	case int:
		return "N"
	default:
		return "TEXT"
	}
}
