package node

import (
	"fmt"
	"runtime/debug"

	"golang.org/x/sys/unix"

	"github.com/shardwell/shardwell/cache/mem"
	"github.com/shardwell/shardwell/fuse"
	"github.com/shardwell/shardwell/internal/config"
)

// Shares of memory.
const (
	// machineShare is the part of the machine's memory that a node takes when
	// neither --memory nor a cgroup says how much: the rest is for training.
	machineShare = 4
	// replyShare bounds the reply buffers of all mounts to this part of the limit.
	replyShare = 8
	// runtimeBytes is what the program itself takes: code, stacks, tables of the runtime.
	runtimeBytes = 32 << 20
	// buffersPerFetch is how many buffers of the arena there are at least for
	// each fetch at a time: one that receives, one that waits to be read.
	buffersPerFetch = 2
)

// takeMemory divides the limit between the arena, reply buffers and Go's heap.
func (n *Node) takeMemory() (err error) {
	limit := int64(n.cfg.Memory)
	most, whose := machineMemory(), "this machine has"
	group, grouped := mem.Limit()
	if grouped = grouped && group < most; grouped {
		most, whose = group, "its control group allows"
	}
	switch {
	case limit > most:
		return &config.Error{What: fmt.Sprintf("memory of %s is more than %s (%s)", n.cfg.Memory, whose, config.Bytes(most)), Do: "give less by --memory, or leave it out"}
	case limit == 0 && grouped:
		limit = most
	case limit == 0:
		limit = most / machineShare
	}
	replies := min(fuse.DefaultBufferBytes, limit/replyShare)
	plan := mem.Plan(limit, replies+runtimeBytes)
	debug.SetMemoryLimit(plan.GoMemLimit)
	if n.arena, err = mem.New(int(n.geometry.BlockBytes), plan.ArenaBytes); err != nil {
		return fmt.Errorf("memory of %d bytes: %w: give more by --memory", limit, err)
	}
	n.buffers = fuse.NewBuffers(replies)
	n.log.Debug("memory divided", "limit", limit, "arena", plan.ArenaBytes, "replies", replies, "go", plan.GoMemLimit)
	return nil
}

// maxFetches is how many fetches the arena can serve at a time.
func (n *Node) maxFetches() int {
	return max(4, min(256, n.arena.Buffers()/buffersPerFetch))
}

// machineMemory returns the bytes of memory of this machine.
func machineMemory() int64 {
	var info unix.Sysinfo_t
	if err := unix.Sysinfo(&info); err != nil {
		return 1 << 30 // a guess that works; sysinfo fails for bad pointers only
	}
	return int64(info.Totalram) * int64(info.Unit)
}
