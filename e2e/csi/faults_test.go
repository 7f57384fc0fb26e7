package csi_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/shardwell/shardwell/e2e/cluster"
	e2ecsi "github.com/shardwell/shardwell/e2e/csi"
)

var attributes = map[string]string{"bucketName": bucket}

// wait bounds what a test waits for on a loaded machine.
const wait = 60 * time.Second

// unpublishLimit is what an unpublish may take, whatever happens.
const unpublishLimit = 30 * time.Second

// holder is a process that uses a volume: inside, with a file open and mapped.
type holder struct {
	cmd *exec.Cmd
	in  io.Writer
	out *bufio.Reader
}

// hold starts a process in a volume; it says "held" once, and goes on reading when it is told to.
func hold(t *testing.T, dir string) *holder {
	t.Helper()
	const program = `
import mmap, os, sys
os.chdir(sys.argv[1])
f = open("a.txt", "rb")
m = mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ)
print("held", m[:5], flush=True)
for line in sys.stdin:
    f.seek(0)
    print("again", f.read(5), m[:5], flush=True)
`
	tools, err := cluster.Prepare()
	must(t, err)
	r, w, err := os.Pipe()
	must(t, err)
	cmd := exec.Command(tools.Python, "-c", program, dir)
	cmd.Stdout, cmd.Stderr = w, w
	stdin, err := cmd.StdinPipe()
	must(t, err)
	must(t, cmd.Start())
	must(t, w.Close())
	h := &holder{cmd: cmd, in: stdin, out: bufio.NewReader(r)}
	t.Cleanup(func() {
		_ = stdin.Close()
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		_ = r.Close()
	})
	h.says(t, "held")
	return h
}

// says waits for a line that begins with a word.
func (h *holder) says(t *testing.T, word string) {
	t.Helper()
	line, err := h.out.ReadString('\n')
	if err != nil || !strings.HasPrefix(line, word) {
		t.Fatalf("the process in the volume says %q, %v; want %q", line, err, word)
	}
}

// readAgain has the process read what it holds.
func (h *holder) readAgain(t *testing.T) {
	t.Helper()
	_, err := fmt.Fprintln(h.in, "x")
	must(t, err)
	h.says(t, "again b'hello' b'hello'")
}

// gone fails unless an unpublish ends in time and leaves nothing mounted.
func gone(t *testing.T, d *e2ecsi.Driver, pods ...string) {
	t.Helper()
	for _, pod := range pods {
		began := time.Now()
		must(t, d.Unpublish(t.Context(), pod))
		if took := time.Since(began); took > unpublishLimit {
			t.Errorf("the unpublish took %v, want at most %v", took, unpublishLimit)
		}
	}
	if left := d.Mounts(); len(left) > 0 {
		t.Errorf("left mounted: %v", left)
	}
}

// A volume in use goes from its Pod's directory in time, and who has it open reads on.
func TestUnpublishWhileBusy(t *testing.T) {
	c := start(t, cluster.Options{Nodes: 1})
	put(t, c, "a.txt", "hello")
	d := drive(t, c)
	dir, err := d.Publish(t.Context(), "busy", attributes)
	must(t, err)
	h := hold(t, dir)
	gone(t, d, "busy")
	h.readAgain(t)
	// The next Pod has a mount of its own, and the one before is not in its way.
	dir, err = d.Publish(t.Context(), "next", attributes)
	must(t, err)
	read(t, dir, "a.txt", "hello")
	gone(t, d, "next")
}

// SEMANTICS V3: A publish that fails leaves nothing behind, and an unpublish ends within 30 s,
// whatever the daemon and the readers do.
//
// A daemon that hangs, and a reader that hangs in it, hold up no unpublish, and the reader ends.
func TestUnpublishWhileDaemonHangs(t *testing.T) {
	c := start(t, cluster.Options{Nodes: 1})
	put(t, c, "a.txt", "hello")
	put(t, c, "b.txt", "later")
	d := drive(t, c)
	dir, err := d.Publish(t.Context(), "hung", attributes)
	must(t, err)
	hold(t, dir)
	must(t, c.Nodes[0].Proc.Signal(syscall.SIGSTOP))
	defer func() { _ = c.Nodes[0].Proc.Signal(syscall.SIGCONT) }()
	reader := exec.Command("cat", filepath.Join(dir, "b.txt"))
	must(t, reader.Start())
	ended := make(chan error, 1)
	go func() { ended <- reader.Wait() }()
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if _, err := d.Node.NodePublishVolume(ctx, request(t, d, "other")); err == nil {
		t.Error("a volume was published by a daemon that hangs")
	}
	gone(t, d, "hung", "other")
	select {
	case err := <-ended:
		if err == nil {
			t.Error("the reader read from a daemon that hangs")
		}
	case <-time.After(wait):
		t.Error("the reader still hangs")
	}
}

// A daemon that is killed and comes back: unpublish works meanwhile, and volumes are shown again, whether
// the kubelet asks for it or not.
func TestDaemonKilled(t *testing.T) {
	c := start(t, cluster.Options{Nodes: 1})
	put(t, c, "a.txt", "hello")
	d := drive(t, c)
	for _, pod := range []string{"asks", "waits", "goes"} {
		_, err := d.Publish(t.Context(), pod, attributes)
		must(t, err)
	}
	must(t, c.Nodes[0].Kill())
	must(t, d.Unpublish(t.Context(), "goes"))
	_, err := d.Publish(t.Context(), "asks", attributes)
	if status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), "daemon") {
		t.Errorf("publish again without a daemon: got %v, want %v", err, codes.Unavailable)
	}
	must(t, c.Nodes[0].Start())
	dir, err := d.Publish(t.Context(), "asks", attributes)
	must(t, err)
	read(t, dir, "a.txt", "hello")
	dir, err = d.Target("waits")
	must(t, err)
	eventually(t, wait, "the volume that nobody asked for again is shown", func() bool {
		text, err := os.ReadFile(filepath.Join(dir, "a.txt"))
		return err == nil && string(text) == "hello"
	})
	gone(t, d, "asks", "waits")
}

// follower shows a volume in a directory of its own that follows what is mounted over the volume, as that of a container with
// mountPropagation: HostToContainer does.
func follower(t *testing.T, volume string) (dir string) {
	t.Helper()
	dir = t.TempDir()
	must(t, syscall.Mount(volume, dir, "", syscall.MS_BIND, ""))
	t.Cleanup(func() {
		for syscall.Unmount(dir, syscall.MNT_DETACH) == nil { // each layer
		}
	})
	must(t, syscall.Mount("", dir, "", syscall.MS_SLAVE, ""))
	return dir
}

// A container that follows mounts sees its volume again when a daemon without a keeper has come back, also
// one that was started in between.
func TestContainersSeeVolumesAgain(t *testing.T) {
	c := start(t, cluster.Options{Nodes: 1})
	put(t, c, "a.txt", "hello")
	kubelet := filepath.Join(c.Cage.Dir, c.Nodes[0].Name, "kubelet")
	must(t, os.MkdirAll(kubelet, 0o750))
	must(t, syscall.Mount(kubelet, kubelet, "", syscall.MS_BIND, ""))
	t.Cleanup(func() { must(t, syscall.Unmount(kubelet, syscall.MNT_DETACH)) })
	must(t, syscall.Mount("", kubelet, "", syscall.MS_SHARED, "")) // as the kubelet's is
	d := drive(t, c)
	volume, err := d.Publish(t.Context(), "pod", attributes)
	must(t, err)
	var containers []string
	for range 3 {
		containers = append(containers, follower(t, volume))
		must(t, c.Nodes[0].Kill())
		must(t, c.Nodes[0].Start())
		for i, dir := range containers {
			eventually(t, wait, fmt.Sprintf("container %d of %d sees the volume again", i+1, len(containers)), func() bool {
				text, err := os.ReadFile(filepath.Join(dir, "a.txt"))
				return err == nil && string(text) == "hello"
			})
		}
	}
	gone(t, d, "pod")
}

// A driver that is killed and started again takes over what is published, and takes away what is not.
func TestDriverKilled(t *testing.T) {
	c := start(t, cluster.Options{Nodes: 1})
	put(t, c, "a.txt", "hello")
	d := drive(t, c)
	dir, err := d.Publish(t.Context(), "stays", attributes)
	must(t, err)
	h := hold(t, dir)
	must(t, d.Proc.Kill())
	// What a driver that died while it published leaves: a mount that no volume shows.
	orphan := filepath.Join(d.Dir, "plugins", "csi.shardwell.io", "mounts", "0123456789abcdef")
	must(t, os.Mkdir(orphan, 0o750))
	_, err = c.Nodes[0].Run("mount", "s3://"+bucket, orphan)
	must(t, err)
	must(t, d.Launch())
	if _, err := os.Lstat(orphan); err == nil {
		t.Error("a mount that no volume shows is still there")
	}
	h.readAgain(t)
	_, err = d.Publish(t.Context(), "stays", attributes) // as after a restart of the kubelet
	must(t, err)
	_, err = d.Publish(t.Context(), "shares", attributes)
	must(t, err)
	if n := len(d.Mounts()); n != 3 {
		t.Errorf("%d mounts: %v; want one and two copies of it", n, d.Mounts())
	}
	h.readAgain(t)
	gone(t, d, "stays", "shares")
}

// The same volume ten times at once, published and unpublished, ends in one state.
func TestAtOnce(t *testing.T) {
	c := start(t, cluster.Options{Nodes: 1})
	put(t, c, "a.txt", "hello")
	d := drive(t, c)
	for range 5 {
		var wg sync.WaitGroup
		for i := range 10 {
			wg.Go(func() {
				if i%3 == 2 {
					if err := d.Unpublish(t.Context(), "same"); err != nil {
						t.Errorf("unpublish: %v", err)
					}
					return
				}
				if _, err := d.Publish(t.Context(), "same", attributes); err != nil && status.Code(err) != codes.Canceled {
					t.Errorf("publish: %v", err)
				}
			})
		}
		wg.Wait()
		dir, err := d.Publish(t.Context(), "same", attributes)
		must(t, err)
		read(t, dir, "a.txt", "hello")
		gone(t, d, "same")
	}
}

// The 2nd to 50th Pod of a dataset cost the origin nothing.
func TestPodsShareOneMount(t *testing.T) {
	const pods = 50
	c := start(t, cluster.Options{Nodes: 1})
	put(t, c, "a.txt", "hello")
	d := drive(t, c)
	var names []string
	for i := range pods {
		names = append(names, fmt.Sprintf("pod-%d", i))
	}
	_, err := d.Publish(t.Context(), names[0], attributes)
	must(t, err)
	c.Origin.Reset()
	var wg sync.WaitGroup
	for _, pod := range names[1:] {
		wg.Go(func() {
			if _, err := d.Publish(t.Context(), pod, attributes); err != nil {
				t.Errorf("publish %s: %v", pod, err)
			}
		})
	}
	wg.Wait()
	if n := len(c.Origin.Requests()); n != 0 {
		t.Errorf("%d more Pods cost %d requests at the origin, want none: %v", pods-1, n, c.Origin.Requests())
	}
	if n := len(d.Mounts()); n != pods+1 {
		t.Errorf("%d mounts, want one and %d copies", n, pods)
	}
	gone(t, d, names...)
}

func request(t *testing.T, d *e2ecsi.Driver, pod string) *csi.NodePublishVolumeRequest {
	t.Helper()
	r, err := d.Request(pod, attributes)
	must(t, err)
	return r
}

func read(t *testing.T, dir, name, want string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(dir, name))
	if err != nil || string(text) != want {
		t.Errorf("read %s: %q, %v; want %q", name, text, err, want)
	}
}
