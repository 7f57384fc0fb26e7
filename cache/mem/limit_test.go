package mem

import (
	"testing"
	"testing/fstest"
)

const (
	mountV2     = "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"
	mountV1     = "36 30 0:31 / /sys/fs/cgroup/memory rw shared:11 - cgroup cgroup rw,memory\n"
	mountV1Cpu  = "37 30 0:32 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu,cpuacct\n"
	mountV1Part = "36 30 0:31 /docker/abc /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n"
	mountSpace  = "36 30 0:31 / /sys/fs/cg\\040roup rw - cgroup2 none rw\n"
)

func TestLimit(t *testing.T) {
	tests := []struct {
		name   string
		mounts string
		cgroup string
		files  map[string]string
		want   int64 // 0: none
	}{
		{"version 2", mountV2, "0::/kubepods/pod1\n", map[string]string{
			"sys/fs/cgroup/kubepods/pod1/memory.max": "536870912\n",
		}, 512 << 20},
		{"version 2, a parent is tighter", mountV2, "0::/kubepods/pod1\n", map[string]string{
			"sys/fs/cgroup/kubepods/memory.max":      "268435456\n",
			"sys/fs/cgroup/kubepods/pod1/memory.max": "536870912\n",
		}, 256 << 20},
		{"version 2, no limit", mountV2, "0::/kubepods\n", map[string]string{
			"sys/fs/cgroup/kubepods/memory.max": "max\n",
		}, 0},
		{"version 2 in a namespace", mountV2, "0::/\n", map[string]string{
			"sys/fs/cgroup/memory.max": "1073741824\n",
		}, 1 << 30},
		{"version 1", mountV1Cpu + mountV1, "8:memory:/job/7\n2:cpu,cpuacct:/\n", map[string]string{
			"sys/fs/cgroup/memory/job/7/memory.limit_in_bytes": "268435456\n",
			"sys/fs/cgroup/memory/memory.limit_in_bytes":       "9223372036854771712\n",
		}, 256 << 20},
		{"version 1, no limit", mountV1, "8:memory:/\n", map[string]string{
			"sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
		}, 0},
		{"version 1, mounted at its own group", mountV1Part, "8:memory:/docker/abc\n", map[string]string{
			"sys/fs/cgroup/memory/memory.limit_in_bytes": "536870912\n",
		}, 512 << 20},
		{"version 1, a group below the mounted one", mountV1Part, "8:memory:/docker/abc/x\n", map[string]string{
			"sys/fs/cgroup/memory/memory.limit_in_bytes":   "536870912\n",
			"sys/fs/cgroup/memory/x/memory.limit_in_bytes": "268435456\n",
		}, 256 << 20},
		{"both, memory in version 1", mountV1 + mountV2, "8:memory:/a\n0::/b\n", map[string]string{
			"sys/fs/cgroup/memory/a/memory.limit_in_bytes": "536870912\n",
		}, 512 << 20},
		{"blank in the mount point", mountSpace, "0::/a\n", map[string]string{
			"sys/fs/cg roup/a/memory.max": "536870912\n",
		}, 512 << 20},
		{"garbage", "36 30\n- - -\n" + mountV2, "0::/a\nnonsense\n", map[string]string{
			"sys/fs/cgroup/a/memory.max": "-5\n", "sys/fs/cgroup/memory.max": "12x\n",
		}, 0},
		{"nothing at all", "", "", nil, 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			root := fstest.MapFS{
				"proc/self/mountinfo": {Data: []byte(tt.mounts)},
				"proc/self/cgroup":    {Data: []byte(tt.cgroup)},
			}
			for name, text := range tt.files {
				root[name] = &fstest.MapFile{Data: []byte(text)}
			}
			got, ok := limitIn(root)
			if got != tt.want || ok != (tt.want != 0) {
				t.Errorf("limit %d, %v, want %d", got, ok, tt.want)
			}
		})
	}
	if _, ok := limitIn(fstest.MapFS{}); ok {
		t.Error("a limit without /proc")
	}
	if n, ok := Limit(); ok && n <= 0 {
		t.Errorf("this machine's limit is %d", n)
	}
}

func TestPlan(t *testing.T) {
	for _, limit := range []int64{0, 1, 16 << 20, 64 << 20, 256 << 20, 512 << 20, 8 << 30, 1 << 40} {
		for _, fixed := range []int64{-1, 0, 8 << 20, 1 << 30} {
			d := Plan(limit, fixed)
			if d.ArenaBytes < 0 || d.ArenaBytes > maxArenaBytes || d.GoMemLimit < minGoBytes {
				t.Errorf("Plan(%d, %d) = %+v", limit, fixed, d)
			}
			if sum := d.ArenaBytes + d.GoMemLimit + max(0, fixed); sum > limit && d.GoMemLimit > minGoBytes {
				t.Errorf("Plan(%d, %d) = %+v: %d in all", limit, fixed, d, sum)
			}
		}
	}
	if d := Plan(512<<20, 8<<20); d.ArenaBytes != 168<<20 {
		t.Errorf("%+v", d)
	}
}
