package cage

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// MemoryGroup is a control group (version 1 or 2) that bounds the memory of the processes in it, page cache
// included, and kills them beyond.
type MemoryGroup struct {
	Dir string // for [Command.Cgroup]

	root, events string
}

// NewMemoryGroup makes a group of so many bytes. name tells groups of this process apart.
func NewMemoryGroup(name string, limit int64) (*MemoryGroup, error) {
	g := &MemoryGroup{root: "/sys/fs/cgroup/memory", events: "memory.oom_control"}
	file := "memory.limit_in_bytes"
	if _, err := os.Stat(g.root); err != nil {
		g.root, file, g.events = "/sys/fs/cgroup", "memory.max", "memory.events"
	}
	g.Dir = filepath.Join(g.root, fmt.Sprintf("%s%d-%s", prefix, os.Getpid(), name))
	if err := os.MkdirAll(g.Dir, 0o755); err != nil {
		return nil, fmt.Errorf("cage: %w", err)
	}
	if err := os.WriteFile(filepath.Join(g.Dir, file), strconv.AppendInt(nil, limit, 10), 0); err != nil {
		_ = os.Remove(g.Dir)
		return nil, fmt.Errorf("cage: %w", err)
	}
	return g, nil
}

// Add moves a process into the group.
func (g *MemoryGroup) Add(pid int) error {
	if err := os.WriteFile(filepath.Join(g.Dir, "cgroup.procs"), strconv.AppendInt(nil, int64(pid), 10), 0); err != nil {
		return fmt.Errorf("cage: %w", err)
	}
	return nil
}

// Kills returns how many processes the kernel has killed for want of memory.
func (g *MemoryGroup) Kills() int64 {
	data, _ := os.ReadFile(filepath.Join(g.Dir, g.events))
	for line := range strings.Lines(string(data)) {
		if rest, ok := strings.CutPrefix(strings.TrimSpace(line), "oom_kill "); ok {
			n, _ := strconv.ParseInt(rest, 10, 64)
			return n
		}
	}
	return 0
}

// Close moves what is left in the group out of it, and removes it.
func (g *MemoryGroup) Close() error {
	data, _ := os.ReadFile(filepath.Join(g.Dir, "cgroup.procs"))
	for pid := range strings.FieldsSeq(string(data)) {
		_ = os.WriteFile(filepath.Join(g.root, "cgroup.procs"), []byte(pid), 0) // gone, perhaps
	}
	if err := os.Remove(g.Dir); err != nil {
		return fmt.Errorf("cage: %w", err)
	}
	return nil
}
