package config

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// managed are the options that the chart sets itself, from values of its own or from the Pod.
var managed = map[Scope][]string{
	ScopeNode: {
		"cacheDir", "join", "bind", "peerBind", "advertise", "secretFile", "insecure", "name", "zone", "rack", "metricsBind", "controlSocket", "keeperSocket",
		"endpoint", "region", "caFile", "credentialsFile", "originDir",
	},
	ScopeCSI: {"nodeId", "kubeletDir", "selfRegister", "registrationPath", "controlSocket"},
}

// TestChartKnowsTheOptions compares the options that the chart's schema allows with those there
// are: a new option goes there as well, or among those that the chart manages.
func TestChartKnowsTheOptions(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("..", "..", "deploy", "helm", "shardwell", "values.schema.json"))
	if err != nil {
		t.Fatal(err)
	}
	type object struct{ Properties map[string]json.RawMessage }
	var schema struct {
		Properties struct {
			Config object
			CSI    struct{ Properties struct{ Config object } }
		}
	}
	if err := json.Unmarshal(text, &schema); err != nil {
		t.Fatal(err)
	}
	for scope, in := range map[Scope]object{ScopeNode: schema.Properties.Config, ScopeCSI: schema.Properties.CSI.Properties.Config} {
		for _, f := range fields() {
			_, allowed := in.Properties[f.key()]
			want := f.in(scope) && !slices.Contains(managed[scope], f.key())
			switch {
			case want && !allowed:
				t.Errorf("deploy/helm/shardwell/values.schema.json does not know %q of %s: add it there, below config", f.key(), scope)
			case !want && allowed:
				t.Errorf("deploy/helm/shardwell/values.schema.json allows %q, which %s has not or the chart sets itself", f.key(), scope)
			}
			delete(in.Properties, f.key())
		}
		for key := range in.Properties {
			t.Errorf("deploy/helm/shardwell/values.schema.json allows %q of %s, which is no option", key, scope)
		}
	}
}
