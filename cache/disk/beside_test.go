package disk

import (
	"testing"

	"github.com/shardwell/shardwell/internal/chunk"
)

// What others keep in the directory counts in its budget.
func TestBesideCountsInTheBudget(t *testing.T) {
	cfg := testConfig(t.TempDir())
	cfg.BudgetBytes = 64 * chunk.MinBlockBytes
	d := openDir(t, cfg)
	before, _ := d.Usage()
	if !d.Beside(cfg.BudgetBytes / 2) {
		t.Fatal("half of the budget is not admitted")
	}
	if used, _ := d.Usage(); used != before+cfg.BudgetBytes/2 {
		t.Errorf("%d bytes used, want %d", used, before+cfg.BudgetBytes/2)
	}
	if d.Beside(cfg.BudgetBytes) {
		t.Error("more than the budget is admitted")
	}
	d.Beside(-cfg.BudgetBytes / 2)
	if used, _ := d.Usage(); used != before {
		t.Errorf("%d bytes used at the end, want %d", used, before)
	}
}
