package e2e_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/shardwell/shardwell/e2e/cluster"
	"github.com/shardwell/shardwell/e2e/dataset"
)

// toolWait bounds one tool.
const toolWait = 2 * time.Minute

// shell runs a script in bash with $SRC and $MNT and returns its output.
func shell(t *testing.T, src, mnt, script string) (string, error) {
	t.Helper()
	return command(t, toolWait, "bash", "-euo", "pipefail", "-c", "SRC=$1; MNT=$2; TMP=$3; "+script, "bash", src, mnt, t.TempDir())
}

// The tools that people use on files agree about the mount and the source.
func TestToolsAgreeWithTheSource(t *testing.T) {
	c := start(t, cluster.Options{Nodes: 2})
	src := t.TempDir()
	sum, err := dataset.Tree(src, seed)
	must(t, err)
	must(t, c.Origin.PutTree(t.Context(), bucket, "tree/", src))
	mnt := mount(t, c, "s3://"+bucket+"/tree")[c.Nodes[1]]

	// Scripts that print nothing when both sides agree.
	for name, script := range map[string]string{
		"find":  `diff <(cd $SRC && find . -printf '%y %P\n' | sort) <(cd $MNT && find . -printf '%y %P\n' | sort)`,
		"sizes": `diff <(cd $SRC && find . -type f -printf '%P %s\n' | sort) <(cd $MNT && find . -type f -printf '%P %s\n' | sort)`,
		"sha256sum": `diff <(cd $SRC && find . -type f -print0 | sort -z | xargs -0 sha256sum)` +
			` <(cd $MNT && find . -type f -print0 | sort -z | xargs -0 sha256sum)`,
		"tar":   `mkdir $TMP/out && tar -C $MNT -cf - . | tar -C $TMP/out -xf - && diff -r $SRC $TMP/out`,
		"cp -a": `cp -a $MNT $TMP/out && diff -r $SRC $TMP/out`,
		"rsync": `rsync -r --checksum --dry-run --delete --itemize-changes $MNT/ $SRC/; rsync -r --checksum --dry-run --delete --itemize-changes $SRC/ $MNT/`,
	} {
		if out, err := shell(t, src, mnt, script); err != nil || out != "" {
			t.Errorf("%s: %v, output %q; want agreement and silence", name, err, tail(out, 2000))
		}
	}
	out, err := shell(t, src, mnt, `cd $MNT && find . -type f -print0 | du --files0-from=- -cb | tail -1 | cut -f1; du -sk $MNT | cut -f1`)
	must(t, err)
	f := strings.Fields(out)
	if len(f) != 2 || f[0] != fmt.Sprint(sum) {
		t.Fatalf("du says %q, want %d bytes", out, sum)
	}
	if kib, _ := strconv.ParseInt(f[1], 10, 64); kib<<10 < sum || kib<<10 > sum+1<<20 {
		t.Errorf("du counts %d KiB of blocks for %d bytes", kib, sum)
	}
}

// A mount is read-only: whatever would change it gets EROFS.
func TestWritingIsRefused(t *testing.T) {
	c := start(t, cluster.Options{Nodes: 1})
	put(t, c, "d/", 1, 1000)
	dir := mountOn(t, c.Nodes[0], "s3://"+bucket+"/d")
	file := filepath.Join(dir, "0000")
	for name, err := range map[string]error{
		"create":   os.WriteFile(filepath.Join(dir, "new"), nil, 0o644),
		"append":   func() error { _, err := os.OpenFile(file, os.O_APPEND|os.O_WRONLY, 0); return err }(),
		"mkdir":    os.Mkdir(filepath.Join(dir, "sub"), 0o755),
		"remove":   os.Remove(file),
		"rename":   os.Rename(file, file+"x"),
		"truncate": os.Truncate(file, 0),
		"chmod":    os.Chmod(file, 0o600),
		"symlink":  os.Symlink("a", filepath.Join(dir, "link")),
		"link":     os.Link(file, filepath.Join(dir, "link")),
		"chtimes":  os.Chtimes(file, time.Now(), time.Now()),
	} {
		if !isErrno(err, "read-only file system") {
			t.Errorf("%s: %v, want EROFS", name, err)
		}
	}
	out, err := shell(t, "", dir, `getfattr -d -m 'user.shardwell' --absolute-names $MNT/0000; stat -f -c '%T %S' $MNT`)
	if err != nil || !strings.Contains(out, "user.shardwell.etag=") {
		t.Errorf("extended attributes and statfs: %v, %q; want user.shardwell.etag among them", err, out)
	}
}

func isErrno(err error, text string) bool { return err != nil && strings.Contains(err.Error(), text) }
