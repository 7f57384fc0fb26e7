package mem

import (
	"bufio"
	"io/fs"
	"math"
	"os"
	"path"
	"strconv"
	"strings"
)

// Limit returns the smallest memory limit in bytes that control groups (version
// 2 or 1, on any level that is visible from here) put on this process. ok is false
// when there is none.
func Limit() (bytes int64, ok bool) { return limitIn(os.DirFS("/")) }

// unlimitedBytes is where a limit of version 1 means "none": the kernel says it
// with the largest multiple of its page size.
const unlimitedBytes = math.MaxInt64 / 2

// limitIn is Limit with "/" replaced for tests. What cannot be read sets no limit.
func limitIn(root fs.FS) (int64, bool) {
	groups := groupsOf(root)
	smallest, found := int64(math.MaxInt64), false
	file, err := root.Open("proc/self/mountinfo")
	if err != nil {
		return 0, false
	}
	defer file.Close()
	for sc := bufio.NewScanner(file); sc.Scan(); {
		m, ok := parseMount(sc.Text())
		if !ok {
			continue
		}
		group, ok := groups[m.version]
		if !ok {
			continue
		}
		if n, ok := limitOn(root, m, group); ok && n < smallest {
			smallest, found = n, true
		}
	}
	if !found {
		return 0, false
	}
	return smallest, true
}

// cgroupMount is a mounted hierarchy that controls memory.
type cgroupMount struct {
	version int    // 1 or 2
	root    string // the group that is seen at the mount point
	point   string
}

// parseMount reads one line of mountinfo (proc(5)): id, parent, device, root,
// mount point, options, optional fields, "-", type, source, super options.
func parseMount(line string) (cgroupMount, bool) {
	before, after, ok := strings.Cut(line, " - ")
	head, tail := strings.Fields(before), strings.Fields(after)
	if !ok || len(head) < 5 || len(tail) < 3 {
		return cgroupMount{}, false
	}
	m := cgroupMount{root: unescape(head[3]), point: unescape(head[4])}
	switch {
	case tail[0] == "cgroup2":
		m.version = 2
	case tail[0] == "cgroup" && hasWord(tail[2], "memory"):
		m.version = 1
	default:
		return cgroupMount{}, false
	}
	return m, true
}

// unescape undoes mountinfo's octal escapes of blanks and backslashes.
func unescape(s string) string {
	return strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace(s)
}

func hasWord(list, word string) bool {
	for w := range strings.SplitSeq(list, ",") {
		if w == word {
			return true
		}
	}
	return false
}

// groupsOf returns the process's memory group by version of control groups.
func groupsOf(root fs.FS) map[int]string {
	data, _ := fs.ReadFile(root, "proc/self/cgroup")
	groups := make(map[int]string)
	for line := range strings.Lines(string(data)) {
		parts := strings.SplitN(strings.TrimSuffix(line, "\n"), ":", 3)
		switch {
		case len(parts) != 3:
		case parts[0] == "0" && parts[1] == "":
			groups[2] = parts[2]
		case hasWord(parts[1], "memory"):
			groups[1] = parts[2]
		}
	}
	return groups
}

// limitOn returns the smallest limit from group up to the root of the mount. A
// container often sees its own group at the mount point, whatever its name outside.
func limitOn(root fs.FS, m cgroupMount, group string) (int64, bool) {
	name := "memory.max"
	if m.version == 1 {
		name = "memory.limit_in_bytes"
	}
	rel := "/"
	if m.root == "/" {
		rel = group
	} else if rest, ok := strings.CutPrefix(group, m.root); ok && (rest == "" || rest[0] == '/') {
		rel = "/" + rest
	}
	smallest, found := int64(0), false
	for dir := path.Clean("/" + rel); ; dir = path.Dir(dir) {
		data, err := fs.ReadFile(root, strings.TrimPrefix(path.Join(m.point, dir, name), "/"))
		if err == nil {
			n, err := strconv.ParseInt(strings.TrimSpace(string(data)), 10, 64) // "max" is no number
			if err == nil && n > 0 && n < unlimitedBytes && (!found || n < smallest) {
				smallest, found = n, true
			}
		}
		if dir == "/" {
			return smallest, found
		}
	}
}

// Shares of a memory limit.
const (
	arenaShare    = 3               // the arena gets one part in this many of what is free to divide
	maxArenaBytes = 4 << 30         // beyond it more buffers in flight do not make anything faster
	goShareNum    = 9               // GOMEMLIMIT is 9/10 of the rest: it does not count mmapped
	goShareDen    = 10              // memory nor what the kernel holds on our behalf
	minGoBytes    = int64(32) << 20 // a heap below this spends its time collecting
)

// Division is how a memory limit is used, in bytes.
type Division struct {
	ArenaBytes int64 // for [New]
	GoMemLimit int64 // for debug.SetMemoryLimit
}

// Plan divides limitBytes. fixedBytes are locked or mapped buffers outside of the
// arena and of Go's heap, such as the reply buffers of mounts. A limit that is
// too small still yields a plan that works, over the limit.
func Plan(limitBytes, fixedBytes int64) Division {
	rest := max(0, limitBytes-max(0, fixedBytes))
	arena := min(rest/arenaShare, maxArenaBytes)
	return Division{
		ArenaBytes: arena,
		GoMemLimit: max(minGoBytes, (rest-arena)/goShareDen*goShareNum),
	}
}
