// Package cluster runs the product's own binary as a cluster: node processes in
// the hosts of a cage, an origin beside them, mounts that the test reads, and the
// words of status and metrics as Go values.
//
// It knows the product only by its command line, its JSON and its metrics, as a
// user does. It is a part of the end-to-end tests.
package cluster

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"time"
)

// Tools is where the things are that the tests need.
type Tools struct {
	Root      string // of the repository
	Shardwell string // the binary under test
	Keeper    string // likewise, the one that holds mounts: beside it
	Versitygw string
	Python    string
	Pictures  string // a directory of photographs
	Model     string // a safetensors file
	Scripts   string // Python programs of the tests
}

// prepareTime bounds set-up: packages over a slow network, and a build.
const prepareTime = 30 * time.Minute

var prepared = sync.OnceValues(prepare)

// Prepare runs e2e/setup and builds the binary under test, unless
// $SHARDWELL_BIN names one. It does so once per process.
func Prepare() (Tools, error) { return prepared() }

func prepare() (Tools, error) {
	ctx, cancel := context.WithTimeout(context.Background(), prepareTime)
	defer cancel()
	root, err := findRoot()
	if err != nil {
		return Tools{}, err
	}
	cache := filepath.Join(root, ".cache")
	t := Tools{
		Root: root, Shardwell: os.Getenv("SHARDWELL_BIN"),
		Versitygw: filepath.Join(cache, "bin", "versitygw"),
		Python:    filepath.Join(cache, "venv", "bin", "python"),
		Pictures:  filepath.Join(cache, "pictures"),
		Model:     filepath.Join(cache, "model", "model.safetensors"),
		Scripts:   filepath.Join(root, "e2e", "py"),
	}
	setup := exec.CommandContext(ctx, filepath.Join(root, "e2e", "setup"))
	setup.Stdout, setup.Stderr = os.Stderr, os.Stderr
	if err := setup.Run(); err != nil {
		return t, fmt.Errorf("e2e/setup: %w", err)
	}
	if t.Shardwell != "" {
		// It is no setting of the product, which mentions names like it that it does not know.
		if err := os.Unsetenv("SHARDWELL_BIN"); err != nil {
			return t, err
		}
		if _, err := os.Stat(t.Shardwell); err != nil {
			return t, err
		}
		t.Keeper = filepath.Join(filepath.Dir(t.Shardwell), "shardwell-keeper")
		if _, err := os.Stat(t.Keeper); err == nil {
			return t, nil
		}
		t.Keeper = filepath.Join(cache, "bin", "shardwell-keeper")
		return t, build(ctx, root, t.Keeper, "./cmd/shardwell-keeper")
	}
	t.Shardwell, t.Keeper = filepath.Join(cache, "bin", "shardwell"), filepath.Join(cache, "bin", "shardwell-keeper")
	return t, build(ctx, root, t.Shardwell, "./cmd/shardwell", "./cmd/shardwell-keeper")
}

// build makes programs in the directory of to, each under the name of its package.
func build(ctx context.Context, root, to string, packages ...string) error {
	cmd := exec.CommandContext(ctx, "go", append([]string{"build", "-o", filepath.Dir(to) + "/"}, packages...)...)
	cmd.Dir, cmd.Env = root, append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build: %w\n%s", err, out)
	}
	return nil
}

// findRoot walks up to the directory that holds e2e/setup.
func findRoot() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "e2e", "setup")); err == nil {
			return dir, nil
		}
		up := filepath.Dir(dir)
		if up == dir {
			return "", fmt.Errorf("e2e/setup: not found above the working directory")
		}
		dir = up
	}
}
