package fuse

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/fstest"
	"unicode/utf8"

	"golang.org/x/sys/unix"
)

func TestFSTest(t *testing.T) {
	o := newOrigin()
	for i := range 30 {
		o.put(fmt.Sprintf("d%d/file-%02d", i%3, i), randomBytes(i*1000, uint64(i)))
	}
	o.put("top", []byte("hello"))
	m := mount(t, o, nil)
	if err := fstest.TestFS(os.DirFS(m.dir), "top", "d0/file-00", "d2/file-29"); err != nil {
		t.Error(err)
	}
}

// keys that are awkward, and the names they must have; "" for those left out.
var awkward = map[string]string{
	"a//b":                        "",
	"/a":                          "",
	"dir/":                        "",
	".":                           "",
	"..":                          "",
	"up/../b":                     "",
	"dots/./c":                    "",
	"..." + "x":                   "...x",
	strings.Repeat("n", 255):      strings.Repeat("n", 255),
	strings.Repeat("n", 256):      "",
	"not\xff\xfeutf8":             "not\xff\xfeutf8", // at an origin that takes it
	"dir\xc3/of some":             "dir\xc3/of some", // as well
	"ctl\x01\n\t":                 "ctl\x01\n\t",
	`back\slash`:                  `back\slash`,
	"caf\u00e9":                   "caf\u00e9",
	"cafe\u0301":                  "cafe\u0301",
	"blue":                        "",
	"blue/x":                      "blue/x",
	"nul\x00name":                 "",
	" lead and trail ":            " lead and trail ",
	"red-1":                       "red-1",
	"red":                         "",
	"red/y":                       "red/y",
	"deep/er/and/deeper/file.txt": "deep/er/and/deeper/file.txt",
}

// SEMANTICS N1: Keys become paths by `/`; what can be a path is readable byte for byte under its own
// name.
//
// SEMANTICS N2: A key that cannot be a path (an empty part, `.`, `..`, a NUL byte, a part over 255
// bytes, a key over 4095 bytes, `a` beside `a/b`, one that is not UTF-8 where the origin is S3), or
// that has no version (no ETag in the listing, nor by HEAD), is left out, counted, and named in `shardwell status`; nothing else suffers.
//
// SEMANTICS N3: Look-up and listing agree, as far as they are of the same time: every name that a
// directory lists can be opened, and a name that it does not list cannot, but for `.tar` (M2).
func TestAwkwardKeys(t *testing.T) {
	o := newOrigin()
	o.pageSize = 3 // `red` and `red/` come in different pages
	for key := range awkward {
		o.put(key, []byte("content of "+key))
	}
	left := []string{"a//", "/", ".", "..", "up/../", "dots/./", strings.Repeat("n", 256), "blue", "red", "nul\x00name"}
	for _, order := range []string{"list first", "look up first", "list first, UTF-8", "look up first, UTF-8"} {
		t.Run(order, func(t *testing.T) {
			order, _, onlyUTF8 := strings.Cut(order, ", ")
			o.onlyUTF8 = onlyUTF8
			left := left
			want := map[string][]byte{}
			for key, name := range awkward {
				if name != "" && (!onlyUTF8 || utf8.ValidString(key)) {
					want[name] = []byte("content of " + key)
				}
			}
			if onlyUTF8 {
				left = append(left[:len(left):len(left)], "not\xff\xfeutf8", "dir\xc3/")
			}
			m := mount(t, o, func(c *Config) { c.UTF8Keys = onlyUTF8 })
			if order == "look up first" {
				checkFiles(t, m, want)
			}
			got := map[string]bool{}
			err := filepath.WalkDir(m.dir, func(path string, d fs.DirEntry, err error) error {
				if err == nil && !d.IsDir() {
					got[strings.TrimPrefix(path, m.dir+"/")] = true
				}
				return err
			})
			if err != nil {
				t.Fatal(err)
			}
			for name := range want {
				if !got[name] {
					t.Errorf("%q is not listed", name)
				}
				delete(got, name)
			}
			for name := range got {
				t.Errorf("%q is listed", name)
			}
			checkFiles(t, m, want)
			if info, err := os.Stat(m.path("dir")); err != nil || !info.IsDir() {
				t.Errorf("marker: %v, %v", info, err)
			}
			if info, err := os.Stat(m.path("blue")); err != nil || !info.IsDir() {
				t.Errorf("blue: %v, %v", info, err)
			}
			skipped := map[string]string{}
			for _, k := range m.SkippedKeys() {
				skipped[k.Key] = k.Reason
			}
			for key := range awkward {
				if _, err := os.Lstat(m.path(key)); onlyUTF8 && !utf8.ValidString(key) && !errors.Is(err, fs.ErrNotExist) {
					t.Errorf("%q by name: %v", key, err)
				}
			}
			for _, key := range left {
				if skipped[key] == "" {
					t.Errorf("%q is not named among the skipped: %q", key, skipped)
				}
			}
			if n := m.Stats().Skipped.Load(); n != int64(len(skipped)) {
				t.Errorf("%d counted, %d named", n, len(skipped))
			}
		})
	}
}

func checkFiles(t *testing.T, m *testMount, want map[string][]byte) {
	t.Helper()
	for name, data := range want {
		if got, err := os.ReadFile(m.path(name)); err != nil || !bytes.Equal(got, data) {
			t.Errorf("%q: %q, %v", name, got, err)
		}
	}
}

// SEMANTICS N4: The mount is read-only: whatever would change it gets EROFS.
func TestReadOnly(t *testing.T) {
	o := newOrigin()
	o.put("d/f", []byte("x"))
	m := mount(t, o, nil)
	f, d := m.path("d/f"), m.path("d")
	_, createErr := os.Create(d + "/new")
	_, writeErr := os.OpenFile(f, os.O_WRONLY, 0)
	for name, err := range map[string]error{
		"create": createErr, "write": writeErr,
		"mkdir": os.Mkdir(d+"/n", 0o755), "remove": os.Remove(f), "rmdir": syscall.Rmdir(d),
		"rename": os.Rename(f, d+"/g"), "link": os.Link(f, d+"/g"), "symlink": os.Symlink("f", d+"/g"),
		"chmod": os.Chmod(f, 0o777), "chown": os.Chown(f, 1, 1), "truncate": os.Truncate(f, 0),
		"setxattr": unix.Setxattr(f, "user.x", []byte("1"), 0), "removexattr": unix.Removexattr(f, "user.x"),
		"mknod": unix.Mknod(d+"/p", unix.S_IFIFO, 0),
	} {
		if !errors.Is(err, syscall.EROFS) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A mount that was made writable by mistake stays read-only.
func TestReadOnlyAfterRemount(t *testing.T) {
	o := newOrigin()
	o.put("d/f", []byte("x"))
	m := mount(t, o, func(c *Config) { c.DirMode, c.FileMode = 0o777, 0o666 })
	<-m.Ready()
	if err := unix.Mount("", m.dir, "", unix.MS_REMOUNT|unix.MS_NOSUID|unix.MS_NODEV, ""); err != nil {
		skip(t, "remount: "+err.Error())
	}
	f, d := m.path("d/f"), m.path("d")
	_, createErr := os.Create(d + "/new")
	_, writeErr := os.OpenFile(f, os.O_WRONLY, 0)
	for name, err := range map[string]error{"create": createErr, "write": writeErr, "mkdir": os.Mkdir(d+"/n", 0o755),
		"remove": os.Remove(f), "rename": os.Rename(f, d+"/g"), "truncate": os.Truncate(f, 0)} {
		if !errors.Is(err, syscall.EROFS) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// dirents reads a directory with a buffer of n bytes; f is called for each entry.
func dirents(fd, n int, f func(name string, off int64, ino uint64)) error {
	buf := make([]byte, n)
	for {
		n, err := unix.Getdents(fd, buf)
		if err != nil || n == 0 {
			return err
		}
		for b := buf[:n]; len(b) > 0; {
			// struct linux_dirent64: inode, cookie, length, type, name.
			length := binary.NativeEndian.Uint16(b[16:])
			name := b[19:length]
			f(string(name[:bytes.IndexByte(name, 0)]), int64(binary.NativeEndian.Uint64(b[8:])), binary.NativeEndian.Uint64(b))
			b = b[length:]
		}
	}
}

// SEMANTICS N5: Every caller sees the same listing of a directory in the same order, and a directory
// read in small steps misses no name and repeats none.
func TestSmallSteps(t *testing.T) {
	o := newOrigin()
	o.pageSize = 7
	var want []string
	for i := range 100 {
		name := fmt.Sprintf("name-%03d", i)
		o.put("d/"+name, []byte(name))
		want = append(want, name)
	}
	m := mount(t, o, nil)
	fd, err := unix.Open(m.path("d"), unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	type entry struct {
		name string
		off  int64
	}
	var all []entry
	if err := dirents(fd, 64, func(name string, off int64, ino uint64) {
		all = append(all, entry{name, off})
		if name == "." || name == ".." {
			return
		}
		if info, err := os.Stat(m.path("d/" + name)); err != nil || info.Sys().(*syscall.Stat_t).Ino != ino {
			t.Errorf("%s: inode %d in the directory, %+v, %v", name, ino, info, err)
		}
	}); err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, e := range all {
		got = append(got, e.name)
	}
	if !slices.Equal(got[:2], []string{".", ".."}) || !slices.Equal(got[2:], want) {
		t.Errorf("got %q", got)
	}
	// Every cookie leads to the entry behind it.
	for i := len(all) - 2; i >= 0; i -= 9 {
		if _, err := unix.Seek(fd, all[i].off, 0); err != nil {
			t.Fatal(err)
		}
		first := ""
		if err := dirents(fd, 64, func(name string, _ int64, _ uint64) {
			if first == "" {
				first = name
			}
		}); err != nil {
			t.Fatal(err)
		}
		if first != all[i+1].name {
			t.Errorf("seek to the cookie of %q finds %q", all[i].name, first)
		}
	}
}

func TestXattrs(t *testing.T) {
	o := newOrigin()
	o.put("d/f", bytes.Repeat([]byte("x"), 1000))
	m := mount(t, o, nil)
	get := func(path, name string) string {
		buf := make([]byte, 1000)
		n, err := unix.Getxattr(path, name, buf)
		if err != nil {
			t.Errorf("%s of %s: %v", name, path, err)
			return ""
		}
		return string(buf[:n])
	}
	f := m.path("d/f")
	for name, want := range map[string]string{
		xattrETag: o.objects["d/f"].info.ETag, xattrSource: "s3://bucket/d/f", xattrCached: "0.5000", xattrCachedBytes: "500",
	} {
		if got := get(f, name); got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
	if got := get(f, xattrVersion); len(got) != 32 {
		t.Errorf("version: %q", got)
	}
	if got := get(m.path("d"), xattrSource); got != "s3://bucket/d/" {
		t.Errorf("source of a directory: %q", got)
	}
	if n, err := unix.Getxattr(f, xattrETag, nil); err != nil || n != 32 {
		t.Errorf("size of the ETag: %d, %v", n, err)
	}
	if _, err := unix.Getxattr(f, xattrETag, make([]byte, 3)); err != unix.ERANGE {
		t.Errorf("too small a buffer: %v", err)
	}
	if _, err := unix.Getxattr(f, "user.other", nil); err != unix.ENODATA {
		t.Errorf("unknown attribute: %v", err)
	}
	buf := make([]byte, 1000)
	n, err := unix.Listxattr(f, buf)
	if got := strings.Split(strings.Trim(string(buf[:max(0, n)]), "\x00"), "\x00"); err != nil || !slices.Equal(got, fileXattrs) {
		t.Errorf("list: %q, %v", got, err)
	}
	if n, err := unix.Listxattr(f, nil); err != nil || n == 0 {
		t.Errorf("size of the list: %d, %v", n, err)
	}
}

// A fault on a mapped page is no system call: the runtime of the process that has it
// cannot stop the world meanwhile. So another process maps the file.
func TestMmap(t *testing.T) {
	o := newOrigin()
	o.putSized("big", 9<<20+77)
	m := mount(t, o, nil)
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "SHARDWELL_TEST_MAP="+m.path("big"))
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, out)
	}
}

// mapFile is the other process of TestMmap.
func mapFile(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	b, err := unix.Mmap(int(f.Fd()), 0, 9<<20+77, unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		return err
	}
	for i := len(b) - 1; i >= 0; i -= 997 {
		if b[i] != pattern(int64(i)) {
			return fmt.Errorf("byte %d is %d, want %d", i, b[i], pattern(int64(i)))
		}
	}
	return unix.Munmap(b)
}

func TestOptions(t *testing.T) {
	o := newOrigin()
	o.put("p/q/d/f", []byte("x"))
	o.put("elsewhere", []byte("y"))
	m := mount(t, o, func(c *Config) {
		c.Prefix, c.UID, c.GID, c.FileMode, c.DirMode, c.AllowOther = "p/q", 1234, 5678, 0o640, 0o750, true
		c.ReadAheadBytes = 4 << 20
	})
	if got := names(t, m.dir); !slices.Equal(got, []string{"d/"}) {
		t.Errorf("root holds %q", got)
	}
	for name, mode := range map[string]fs.FileMode{"d": fs.ModeDir | 0o750, "d/f": 0o640, "": fs.ModeDir | 0o750} {
		info, err := os.Stat(m.path(name))
		if err != nil {
			t.Fatal(err)
		}
		st := info.Sys().(*syscall.Stat_t)
		if info.Mode() != mode || st.Uid != 1234 || st.Gid != 5678 || st.Blksize != 1<<20 {
			t.Errorf("%q: %v, uid %d, gid %d, blksize %d", name, info.Mode(), st.Uid, st.Gid, st.Blksize)
		}
	}
	e, ok := FindMount(m.dir)
	if !ok || !e.Ours() || e.URI() != "s3://bucket/p/q" || e.Type != "fuse.shardwell" {
		t.Errorf("mount table: %+v", e)
	}
	if kb, err := os.ReadFile("/sys/class/bdi/" + e.Device + "/read_ahead_kb"); err != nil || strings.TrimSpace(string(kb)) != "4096" {
		t.Errorf("readahead: %q, %v", kb, err)
	}
	var st unix.Statfs_t
	if err := unix.Statfs(m.dir, &st); err != nil || st.Bfree != 0 || st.Blocks == 0 || st.Namelen != 255 {
		t.Errorf("statfs: %+v, %v", st, err)
	}
	if out, err := exec.Command("su", "-s", "/bin/sh", "nobody", "-c", "cat "+m.path("d/f")).CombinedOutput(); err == nil {
		t.Errorf("nobody reads a file of mode 0640: %q", out)
	}
}

func TestMountErrors(t *testing.T) {
	needFUSE(t)
	o := newOrigin()
	o.put("p/f", nil)
	m := mount(t, o, func(c *Config) { c.URI = "s3://bucket/p" })
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	buffers := NewBuffers(0)
	defer buffers.Close()
	s, err := New(Config{Bucket: fakeBucket, Names: o, Data: o, StateDir: t.TempDir(), Buffers: buffers})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for dir, want := range map[string]string{
		m.dir:             "mount " + m.dir + ": s3://bucket/p is mounted there already",
		file:              "mount " + file + ": not a directory",
		"/nowhere/at/all": "mount /nowhere/at/all: no such directory: create it first",
		"/proc":           "mount /proc: busy: a file system of type proc (proc) is mounted there",
	} {
		if err := s.Mount(dir); err == nil || err.Error() != want {
			t.Errorf("%v, want %s", err, want)
		}
	}
}

func TestCheck(t *testing.T) {
	o := newOrigin()
	o.put("p/f", nil)
	buffers := NewBuffers(0)
	defer buffers.Close()
	for prefix, want := range map[string]string{
		"":     "",
		"p":    "",
		"p/":   "",
		"p/f":  "s3://bucket/p/f names an object, not a directory: mount what it lies in",
		"none": `s3://bucket/none: nothing in the bucket begins with "none/"`,
	} {
		s, err := New(Config{Bucket: fakeBucket, Prefix: prefix, Names: o, Data: o, StateDir: t.TempDir(), Buffers: buffers})
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Check(t.Context()); (err == nil) != (want == "") || err != nil && err.Error() != want {
			t.Errorf("prefix %q: %v, want %q", prefix, err, want)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
}
