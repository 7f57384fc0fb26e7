// Command manifests writes deploy/manifests from the chart.
//
// It promises the same text for the same chart; a test compares what is committed
// with what it would write. Everything else is package chart's.
package main

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/shardwell/shardwell/e2e/kubernetes/chart"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "manifests:", err)
		os.Exit(1)
	}
}

func run() error {
	root, err := chart.Root()
	if err != nil {
		return err
	}
	text, err := chart.Plain(filepath.Join(root, "deploy", "helm", "shardwell"))
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(root, "deploy", "manifests", "shardwell.yaml"), text, 0o644)
}
