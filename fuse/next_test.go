package fuse

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/shardwell/shardwell/fuse/handover"
	"golang.org/x/sys/unix"
)

// shards makes an origin of numbered files.
func shards(n int) *fakeOrigin {
	o := newOrigin()
	for i := range n {
		o.put(fmt.Sprintf("sub/s-%03d.tar", i), make([]byte, 100+i))
	}
	return o
}

// open opens a file of the mount, in the way that does not need Go's poller.
func (m *testMount) openFile(t *testing.T, name string) {
	t.Helper()
	fd, err := unix.Open(m.path(name), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
}

// readFile reads a small file.
func (m *testMount) readFile(t *testing.T, name string) {
	t.Helper()
	fd, err := unix.Open(m.path(name), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if n, err := unix.Read(fd, make([]byte, 4096)); err != nil || n == 0 {
		t.Fatalf("read %s: %d, %v", name, n, err)
	}
}

func (m *testMount) openDir(t *testing.T, name string) int {
	t.Helper()
	fd, err := unix.Open(m.path(name), unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	return fd
}

// prefetchedKeys returns the numbers of the files that were fetched, as sorted text.
func (o *fakeOrigin) prefetchedKeys() string {
	var all []string
	o.prefetched.Range(func(key, _ any) bool {
		all = append(all, strings.TrimSuffix(strings.TrimPrefix(key.(string), "sub/s-"), ".tar"))
		return true
	})
	slices.Sort(all)
	return strings.Join(all, " ")
}

// waitPrefetched waits until exactly these were.
func waitPrefetched(t *testing.T, o *fakeOrigin, want string) {
	t.Helper()
	deadline := time.Now().Add(30 * time.Second)
	for o.prefetchedKeys() != want {
		if time.Now().After(deadline) {
			t.Fatalf("fetched %q, want %q", o.prefetchedKeys(), want)
		}
		time.Sleep(time.Millisecond)
	}
}

func TestPlanIsFetchedAheadOfItsReaders(t *testing.T) {
	o := shards(10)
	m := mount(t, o, func(c *Config) { c.NextFiles = 2 })
	plan := Plan{Label: "rank 0", Names: []string{"s-007.tar", "not there", "s-001.tar", "s-004.tar", "../sub/s-009.tar"}}
	if err := plan.Give(m.openDir(t, "sub")); err != nil {
		t.Fatal(err)
	}
	waitPrefetched(t, o, "007")
	m.openFile(t, "sub/s-007.tar")
	waitPrefetched(t, o, "001 007")
	m.openFile(t, "sub/s-001.tar")
	waitPrefetched(t, o, "001 004 007")
	m.openFile(t, "sub/s-004.tar") // the one that is not there is far behind
	waitPrefetched(t, o, "001 004 007 009")

	buf := make([]byte, 1000)
	n, err := unix.Getxattr(m.dir, xattrPlan, buf)
	if want := "rank 0: 3 of 5 opened, next sub/not there\n"; err != nil || string(buf[:n]) != want {
		t.Errorf("plan: %q, %v, want %q", buf[:max(0, n)], err, want)
	}
	if err := (Plan{Label: "rank 0"}).Give(m.openDir(t, "")); err != nil {
		t.Errorf("end the plan: %v", err)
	}
	if n, err := unix.Getxattr(m.dir, xattrPlan, buf); err != nil || n != 0 {
		t.Errorf("a plan that has ended: %q, %v", buf[:max(0, n)], err)
	}
}

func TestLongPlans(t *testing.T) {
	o := shards(3)
	m := mount(t, o, func(c *Config) { c.NextFiles = 1 })
	names := make([]string, 5000)
	for i := range names {
		names[i] = fmt.Sprintf("sub/none-%0100d", i)
	}
	if err := (Plan{Names: names}).Give(m.openDir(t, "")); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 1000)
	n, err := unix.Getxattr(m.dir, xattrPlan, buf)
	if err != nil || !strings.HasPrefix(string(buf[:n]), "-: 0 of 5000 opened, next sub/none-0") {
		t.Errorf("plan: %q, %v", buf[:max(0, n)], err)
	}
	for i := range names {
		names[i] = strings.Repeat("x", 4000)
	}
	if err := (Plan{Names: names}).Give(m.openDir(t, "")); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("a plan of 20 MB: %v", err)
	}
}

// One process that reads every fourth file has the next ones fetched; one that only opens them has not.
func TestNextOfASequenceIsFetched(t *testing.T) {
	o := shards(40)
	m := mount(t, o, func(c *Config) { c.NextFiles = 3 })
	for i := 2; i < 40; i += 4 {
		m.openFile(t, fmt.Sprintf("sub/s-%03d.tar", i))
	}
	for _, i := range []int{1, 5, 9} {
		m.readFile(t, fmt.Sprintf("sub/s-%03d.tar", i))
	}
	waitPrefetched(t, o, "013 017 021")
	m.readFile(t, "sub/s-013.tar")
	waitPrefetched(t, o, "013 017 021 025")
	m.readFile(t, "sub/s-033.tar") // no more: a jump
	m.readFile(t, "sub/s-037.tar")
	m.readFile(t, "sub/s-038.tar")
	if got := m.Stats().NextFiles.Load(); got != 4 {
		t.Errorf("%d files were fetched, want 4", got)
	}
}

// A successor goes on with the plans, from where their readers were.
func TestPlansAreHandedOver(t *testing.T) {
	o := shards(10)
	m := mount(t, o, func(c *Config) { c.NextFiles, c.State = 2, newProcessState() })
	dir := m.openDir(t, "sub")
	if err := (Plan{Label: "a", Names: []string{"s-000.tar", "s-002.tar", "s-004.tar", "s-006.tar", "s-008.tar"}}).Give(dir); err != nil {
		t.Fatal(err)
	}
	if err := (Plan{Label: "b", Names: []string{"s-001.tar"}}).Give(dir); err != nil {
		t.Fatal(err)
	}
	waitPrefetched(t, o, "000 001 002")
	m.openFile(t, "sub/s-000.tar")
	m.openFile(t, "sub/s-002.tar")
	waitPrefetched(t, o, "000 001 002 004 006")
	o.prefetched.Clear()
	next := m.successor(t)
	waitPrefetched(t, o, "001 004 006")
	buf := make([]byte, 1000)
	n, err := unix.Getxattr(next.dir, xattrPlan, buf)
	if want := "a: 2 of 5 opened, next sub/s-004.tar\nb: 0 of 1 opened, next sub/s-001.tar\n"; err != nil || string(buf[:n]) != want {
		t.Errorf("plan: %q, %v, want %q", buf[:max(0, n)], err, want)
	}
	next.openFile(t, "sub/s-004.tar")
	waitPrefetched(t, o, "001 004 006 008")
}

// Whatever a predecessor left, a session takes up what can be plans and stays within its limits.
func FuzzRestorePlans(f *testing.F) {
	var x nextFiles
	x.init(&Session{cfg: Config{NextFiles: 1}})
	for _, label := range []string{"", "0.1"} {
		if err := x.plan(label, false, "d/", []string{"a", "b"}); err != nil {
			f.Fatal(err)
		}
	}
	f.Add(x.appendPlans(nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		var x, y nextFiles
		x.init(&Session{cfg: Config{NextFiles: 1}})
		y.init(x.s)
		x.restore(b)
		if len(x.plans) > maxPlans {
			t.Fatalf("%d plans", len(x.plans))
		}
		y.restore(x.appendPlans(nil))
		if x.describe() != y.describe() || len(x.plans) != len(y.plans) {
			t.Fatalf("%q comes back as %q", x.describe(), y.describe())
		}
	})
}

// Plans that are too many for a successor: it has those that were used last.
func TestPlansOfASuccessorAreBounded(t *testing.T) {
	var x, y nextFiles
	x.init(&Session{cfg: Config{NextFiles: 1}})
	y.init(x.s)
	r := rand.NewChaCha8([32]byte{1})
	for i := range 5 {
		names := make([]string, 1000)
		for j := range names { // nothing that two of them share
			name := make([]byte, 750)
			_, _ = r.Read(name)
			names[j] = fmt.Sprintf("%d-%d-%x", j, i, name)
		}
		if err := x.plan(fmt.Sprint(i), false, "", names); err != nil {
			t.Fatal(err)
		}
	}
	saved := x.appendPlans(nil)
	y.restore(saved)
	if len(saved) > handover.MaxPlansBytes || len(y.plans) != 2 || y.plans["4"] == nil || y.plans["3"] == nil {
		t.Errorf("%d bytes, %q", len(saved), y.describe())
	}
}

// unserved is a session that nothing is mounted for, for tests that say what is opened when.
func unserved(t *testing.T, o *fakeOrigin, change func(*Config)) *Session {
	t.Helper()
	buffers := NewBuffers(1 << 20)
	t.Cleanup(func() { _ = buffers.Close() })
	cfg := Config{Bucket: fakeBucket, Names: o, Data: o, StateDir: t.TempDir(), Buffers: buffers}
	change(&cfg)
	s, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	s.runCtx = t.Context()
	t.Cleanup(func() {
		s.serving.Wait()
		for name := range s.next.held {
			s.next.release(name)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// Where numbers end, the origin is asked for few names that do not exist: one of each reader, a handful of all
// that read alike, and none a second time before the answer is as old as an answer may be.
func TestWrongGuessesAreFewQuestions(t *testing.T) {
	o := shards(80)
	absent := make(map[string]int)
	o.answered = func(key string) {
		if _, ok := o.objects[key]; !ok && strings.HasPrefix(key, "sub/") {
			absent[key]++
		}
	}
	s := unserved(t, o, func(c *Config) { c.NextFiles = 4 })
	now := time.Now()
	read := func(process uint32, shard int) {
		path := fmt.Sprintf("sub/s-%03d.tar", shard)
		for _, thread := range []uint32{0, process} {
			s.next.note(openedFile{path, thread}, now)
			s.next.keep(t.Context(), now)
		}
	}
	want := func(when string, most int) {
		t.Helper()
		asked := 0
		for key, times := range absent {
			if asked += times; times > 1 {
				t.Errorf("%s: %s was asked for %d times", when, key, times)
			}
		}
		if asked > most {
			t.Errorf("%s: %d questions for what is not there: %v", when, asked, absent)
		}
		clear(absent)
	}
	const nobody = 1 << 30 // no thread has such an id
	for i := range 80 {
		read(nobody, i)
	}
	want("one reader", 1)
	for epoch := range 2 {
		for i := range 80 {
			read(nobody+1, i)
		}
		want(fmt.Sprintf("epoch %d, soon after", epoch), 0)
	}
	now = now.Add(s.maxAbsentAge() + time.Second)
	for i := range 80 {
		read(nobody, i)
	}
	want("later", 1)
	now = now.Add(s.maxAbsentAge() + time.Second)
	for i := range 80 { // 16 workers take shards in turns, and all come to the end
		read(nobody+100+uint32(i%16), i)
	}
	want("workers", maxMisses)
	if n := s.stats.NextFiles.Load(); n < 79 {
		t.Errorf("%d files were fetched before they were opened", n)
	}
}

// What a listing has not shown is not asked for because of a guess.
func TestGuessesGoByListings(t *testing.T) {
	o := shards(5)
	m := mount(t, o, func(c *Config) { c.Consistency = Consistency{Mode: ModeTTL, TTL: time.Nanosecond} })
	if got := entries(t, m.path("sub")); len(got) != 5 {
		t.Fatalf("listed %q", got)
	}
	if _, err := m.resolve(t.Context(), "sub", told); err == nil { // and what is known of it
		t.Error("a directory is a file")
	}
	before := o.requests()
	if _, err := m.resolve(t.Context(), "sub/s-005.tar", guessed); !errors.Is(err, errNoFile) || o.requests()-before > 2 {
		t.Errorf("%v, %d questions", err, o.requests()-before)
	}
	if _, err := m.resolve(t.Context(), "sub/s-004.tar", guessed); err != nil {
		t.Errorf("a name that was listed: %v", err)
	}
}

// What readers of a mount have ahead of themselves bounds what is fetched before it is opened.
func TestNextFilesAreBoundedInBytes(t *testing.T) {
	o := newOrigin()
	for i := range 10 {
		o.putSized(fmt.Sprintf("sub/s-%03d.tar", i), 10<<20)
	}
	m := mount(t, o, func(c *Config) { c.NextFiles, c.PrefetchBytes = 8, 25<<20 })
	plan := Plan{Names: []string{"sub/s-000.tar", "sub/s-001.tar", "sub/s-002.tar", "sub/s-003.tar"}}
	if err := plan.Give(m.openDir(t, "")); err != nil {
		t.Fatal(err)
	}
	waitPrefetched(t, o, "000 001 002")
	if end, _ := o.prefetched.Load("sub/s-002.tar"); end != int64(5<<20) {
		t.Errorf("of the third file %v bytes were fetched", end)
	}
	m.openFile(t, "sub/s-000.tar")
	waitPrefetched(t, o, "000 001 002 003")
}

func TestPlansThatAreRefused(t *testing.T) {
	o := shards(1)
	m := mount(t, o, nil)
	dir := m.openDir(t, "")
	file, err := unix.Open(m.path("sub/s-000.tar"), unix.O_RDONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(file)
	raw := func(fd int, cmd uintptr, text string) error {
		arg := make([]byte, PlanBytes)
		copy(arg, text)
		if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), cmd, uintptr(unsafe.Pointer(&arg[0]))); errno != 0 {
			return errno
		}
		return nil
	}
	for what, c := range map[string]struct {
		err  error
		want error
	}{
		"no word":              {raw(dir, PlanIoctl, "a\nb\n"), syscall.EINVAL},
		"nothing":              {raw(dir, PlanIoctl, ""), syscall.EINVAL},
		"label of two lines":   {Plan{Label: "a\nb"}.Give(dir), syscall.EINVAL},
		"label of terminals":   {raw(dir, PlanIoctl, "new \x1b[31m\n"), syscall.EINVAL},
		"long label":           {raw(dir, PlanIoctl, "new "+strings.Repeat("x", 65)), syscall.EINVAL},
		"name of two lines":    {Plan{Names: []string{"a\nb"}}.Give(dir), syscall.EINVAL},
		"name that is too big": {Plan{Names: []string{strings.Repeat("x", PlanBytes)}}.Give(dir), syscall.EINVAL},
		"a file":               {raw(file, PlanIoctl, "new \n"), syscall.ENOTDIR},
		"another request":      {raw(dir, PlanIoctl+1, "new \n"), syscall.ENOTTY},
		"taken":                {raw(dir, PlanIoctl, "new \ns\n"), nil},
	} {
		if !errors.Is(c.err, c.want) {
			t.Errorf("%s: %v, want %v", what, c.err, c.want)
		}
	}
	off := mount(t, shards(1), func(c *Config) { c.NextFiles = -1 })
	if err := (Plan{Names: []string{"x"}}).Give(off.openDir(t, "")); !errors.Is(err, syscall.EOPNOTSUPP) {
		t.Errorf("a mount that fetches nothing ahead: %v", err)
	}
	home, err := unix.Open(t.TempDir(), unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(home)
	if err := (Plan{Names: []string{"x"}}).Give(home); !errors.Is(err, syscall.ENOTTY) {
		t.Errorf("another file system: %v", err)
	}
}

func FuzzParsePlan(f *testing.F) {
	f.Add([]byte("new a\nb\nc\x00"))
	f.Add([]byte("more \n"))
	f.Fuzz(func(t *testing.T, arg []byte) {
		label, _, names, ok := parsePlan(arg)
		if !ok {
			return
		}
		if len(label) > maxLabelBytes || !printable(label) {
			t.Fatalf("label %q", label)
		}
		for _, n := range names {
			if n == "" || strings.ContainsAny(n, "\n\x00") {
				t.Fatalf("name %q", n)
			}
		}
	})
}

func TestSessionsRefuseWhatIsNoPath(t *testing.T) {
	o := shards(1)
	m := mount(t, o, nil)
	for _, name := range []string{"", ".", "..", "sub", "sub/", "sub/..", "/sub/s-000.tar", "sub/s-000.tar/x", "sub//s-000.tar"} {
		if obj, err := m.resolve(t.Context(), name, told); err == nil {
			t.Errorf("%q is %v", name, obj.Key)
		}
	}
	if obj, err := m.resolve(t.Context(), "sub/s-000.tar", told); err != nil || obj.Key != "sub/s-000.tar" {
		t.Errorf("got %q, %v", obj.Key, err)
	}
}

// However many plans are given, they take a bounded amount of memory: the ones unused for longest go.
func TestPlansAreBoundedTogether(t *testing.T) {
	var x nextFiles
	x.init(&Session{cfg: Config{NextFiles: 1}})
	long := make([]string, 1000)
	for i := range long {
		long[i] = fmt.Sprintf("%d-%s", i, strings.Repeat("x", 4000))
	}
	for i := range 100 {
		if err := x.plan(fmt.Sprint(i), false, "", long); err != nil {
			t.Fatal(err)
		}
	}
	if n := x.planBytes(); n > maxPlansBytes || n < maxPlansBytes/2 {
		t.Errorf("plans take %d bytes", n)
	}
	if x.plans["99"] == nil || x.plans["0"] != nil {
		t.Error("not the oldest went")
	}
	for i := range 2 * maxPlans {
		if err := x.plan(fmt.Sprint("short ", i), false, "", []string{"a"}); err != nil {
			t.Fatal(err)
		}
	}
	if len(x.plans) > maxPlans {
		t.Errorf("%d plans are kept", len(x.plans))
	}
}
