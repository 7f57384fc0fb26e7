package main

import (
	"encoding/json"
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"

	"github.com/shardwell/shardwell/internal/node"
)

func newVersion(s streams) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Print the version of this program",
		Args:  exactArgs(),
	}
	asJSON := cmd.Flags().Bool("json", false, "Print one JSON document.")
	cmd.RunE = func(*cobra.Command, []string) error {
		platform := runtime.GOOS + "/" + runtime.GOARCH
		if *asJSON {
			return json.NewEncoder(s.out).Encode(map[string]string{
				"version": node.Version, "revision": revision(), "go": runtime.Version(), "platform": platform,
			})
		}
		_, err := fmt.Fprintln(s.out, versionLine())
		return err
	}
	return cmd
}

// versionLine is what `shardwell version` and `shardwell --version` print.
func versionLine() string {
	return fmt.Sprintf("shardwell %s (revision %s, %s, %s/%s)", node.Version, revision(), runtime.Version(), runtime.GOOS, runtime.GOARCH)
}

// revision is what the Go command noted when it built, "unknown" outside of a checkout.
func revision() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	out, modified := "unknown", ""
	for _, s := range info.Settings {
		switch {
		case s.Key == "vcs.revision":
			out = s.Value[:min(12, len(s.Value))]
		case s.Key == "vcs.modified" && s.Value == "true":
			modified = "+changes"
		}
	}
	return out + modified
}
