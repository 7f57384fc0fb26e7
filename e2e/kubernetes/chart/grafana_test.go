package chart_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// metric matches a name of the product in a query.
var metric = regexp.MustCompile(`shardwell_[a-z_]+`)

// TestDashboardKnowsTheMetrics wants every metric of the dashboard to be one whose name docs/OPERATIONS.md promises.
func TestDashboardKnowsTheMetrics(t *testing.T) {
	root := filepath.Join(dir(t), "..", "..", "..")
	text, err := os.ReadFile(filepath.Join(root, "deploy", "grafana", "shardwell.json"))
	if err != nil {
		t.Fatal(err)
	}
	manual, err := os.ReadFile(filepath.Join(root, "docs", "OPERATIONS.md"))
	if err != nil {
		t.Fatal(err)
	}
	var dashboard struct {
		Panels []struct {
			ID      int
			Title   string
			GridPos struct{ X, Y, W, H int }
			Targets []struct{ Expr string }
		}
	}
	if err := json.Unmarshal(text, &dashboard); err != nil {
		t.Fatal(err)
	}
	seen, ids := 0, map[int]bool{}
	for _, p := range dashboard.Panels {
		if ids[p.ID] || p.GridPos.X+p.GridPos.W > 24 || len(p.Targets) == 0 {
			t.Errorf("panel %q: its id or place is wrong, or it shows nothing", p.Title)
		}
		ids[p.ID] = true
		for _, target := range p.Targets {
			for _, name := range metric.FindAllString(target.Expr, -1) {
				seen++
				if !strings.Contains(string(manual), "`"+strings.TrimSuffix(name, "_bucket")) {
					t.Errorf("panel %q asks for %s, which docs/OPERATIONS.md does not know", p.Title, name)
				}
			}
		}
	}
	if seen < 15 {
		t.Errorf("only %d metrics were looked at", seen)
	}
}
