package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/shardwell/shardwell/fuse"
	"github.com/shardwell/shardwell/warm"
)

// maxPlanLineBytes bounds a line of a list.
const maxPlanLineBytes = 64 << 10

func newPlan(s streams) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "plan DIR [SHARD]... [flags]",
		Short: "Say in which order shards will be read",
		Long: `Tells the mount that DIR lies in which files are going to be read, in their order, so that the node has
the next ones fetched before they are opened (--prefetch-shards of the mount: how many). A SHARD is a path relative
to DIR, one that begins with DIR, or the object's URI; a template ({000..127}, {a,b}) stands for what shells make of
it. Each rank, or worker, may have a plan of its own: --rank names it, and a plan replaces the one of its rank. Without
shards it shows how far the plans of the mount are.

Whoever may read the mount may do this, also in a container. Nothing depends on it: a plan that is wrong costs
reading ahead in vain, up to what readers of the mount may have ahead of them.`,
		Example: `  shardwell plan /data train-{000000..000127}.tar
  shardwell plan /data --rank 3 -f shards-of-rank-3.txt`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return usagef("DIR is missing: write `%s`", cmd.UseLine())
			}
			return nil
		},
	}
	rank := cmd.Flags().String("rank", "", "Whose plan it is: a `LABEL` of at most 64 bytes.")
	list := cmd.Flags().StringP("file", "f", "", "Take shards from a `FILE`, one a line; - is the standard input.")
	end := cmd.Flags().Bool("end", false, "End the plan of the rank.")
	cmd.RunE = func(_ *cobra.Command, args []string) error {
		dir := args[0]
		shards, err := expand(args[1:])
		if err != nil {
			return err
		}
		if *list != "" {
			more, err := readLines(s.in, *list)
			if err != nil {
				return err
			}
			shards = append(shards, more...)
		}
		switch {
		case *end && len(shards) > 0:
			return usagef("--end takes no shards: drop one")
		case *list != "" && len(shards) == 0:
			return fmt.Errorf("%s: names no shard", *list)
		}
		return runPlan(s, dir, *rank, shards, len(shards) > 0 || *end)
	}
	return cmd
}

func runPlan(s streams, dir, rank string, shards []string, give bool) error {
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("%s: %w", dir, err)
	}
	defer unix.Close(fd)
	if !give {
		text, err := fuse.DescribePlans(fd)
		if err != nil {
			return planError(dir, err)
		}
		if text == "" {
			fmt.Fprintf(s.err, "%s: no plan was given\n", dir)
		}
		_, err = io.WriteString(s.out, text)
		return err
	}
	source, err := fuse.SourceOf(fd)
	if err != nil {
		return planError(dir, syscall.ENOTTY)
	}
	names := make([]string, 0, len(shards))
	for _, shard := range shards {
		name, err := nameIn(dir, source, shard)
		if err != nil {
			return err
		}
		names = append(names, name)
	}
	if err := (fuse.Plan{Label: rank, Names: names}).Give(fd); err != nil {
		return planError(dir, err)
	}
	return nil
}

// expand returns shards without templates: not every shell expands them, and none what is in quotes.
func expand(shards []string) (all []string, err error) {
	for _, shard := range shards {
		if !strings.ContainsRune(shard, '{') {
			all = append(all, shard)
			continue
		}
		names, err := warm.Expand(shard, fuse.MaxPlanNames)
		if err != nil {
			return nil, usagef("%v", err)
		}
		all = append(all, names...)
	}
	return all, nil
}

// nameIn returns a shard relative to a directory of a mount, whose URI is source.
func nameIn(dir, source, shard string) (string, error) {
	switch {
	case strings.Contains(shard, "://"):
		below, ok := strings.CutPrefix(shard, strings.TrimSuffix(source, "/")+"/")
		if !ok {
			return "", fmt.Errorf("%s: is not under %s, which is %s", shard, source, dir)
		}
		return below, nil
	case !filepath.IsAbs(shard):
		return path.Clean(shard), nil
	}
	abs, err := filepath.Abs(dir)
	if err != nil {
		return "", fmt.Errorf("%s: %w", dir, err)
	}
	rel, err := filepath.Rel(abs, shard)
	if err != nil || rel == ".." || strings.HasPrefix(rel, "../") {
		return "", fmt.Errorf("%s: is not under %s", shard, dir)
	}
	return rel, nil
}

// readLines reads a list, without what is empty and comments.
func readLines(in io.Reader, name string) (lines []string, err error) {
	if name != "-" {
		f, err := os.Open(name)
		if err != nil {
			return nil, fmt.Errorf("list of shards %s: %w", name, errors.Unwrap(err))
		}
		defer f.Close()
		in = f
	}
	sc := bufio.NewScanner(in)
	sc.Buffer(nil, maxPlanLineBytes)
	for sc.Scan() {
		if line := strings.TrimRight(sc.Text(), "\r"); line != "" && !strings.HasPrefix(line, "#") {
			lines = append(lines, line)
		}
	}
	if err := sc.Err(); err != nil {
		return nil, fmt.Errorf("list of shards %s: line %d: %w", name, len(lines)+1, err)
	}
	return lines, nil
}

// planError says what is wrong with a plan, or where it was given.
func planError(dir string, err error) error {
	switch {
	case errors.Is(err, syscall.ENOTTY):
		return fmt.Errorf("%s: is in no mount of Shardwell: name the mountpoint or a directory below it", dir)
	case errors.Is(err, syscall.EOPNOTSUPP):
		return fmt.Errorf("%s: the mount fetches nothing ahead: mount it with --prefetch-shards", dir)
	case errors.Is(err, syscall.ENOSPC):
		return fmt.Errorf("%s: the plan is too long: give at most %d names of %d bytes together", dir, fuse.MaxPlanNames, fuse.MaxPlanBytes)
	case errors.Is(err, syscall.EINVAL):
		return usagef("the rank or the name of a shard has a character that cannot be, or is too long")
	}
	return fmt.Errorf("%s: plan: %w", dir, err)
}
