package load

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/shardwell/shardwell/e2e/cluster"
	"github.com/shardwell/shardwell/e2e/origin"
)

// Sizes of what a scene reads.
const (
	sceneFiles  = 24
	sceneBytes  = 1<<20 + 4097
	sceneNames  = 400
	sceneBucket = "data"
	lateBy      = 150 * time.Millisecond // of the origin, about names that nobody asked for
)

// Scene is a cluster of two nodes with keepers, and readers of the first one's mounts, which
// have their bytes from its disk, from the other node and from the origin.
type Scene struct {
	C     *cluster.Cluster
	Node  *cluster.Node // the one whose daemon is ended
	Kills []Moment

	spec  Spec
	procs []*Process
	rnd   *rand.Rand
}

// Moment is the end of a daemon.
type Moment struct {
	Ended  time.Time
	Served time.Time // when the next one answered
}

// Begin makes a scene whose readers are at work. It is to be closed, also after an error.
func Begin(seed uint64) (*Scene, error) {
	c, err := cluster.Start(cluster.Options{Nodes: 2, Keeper: true})
	s := &Scene{C: c, rnd: rand.New(rand.NewPCG(seed, 7))}
	if err != nil {
		return s, err
	}
	s.Node = c.Nodes[0]
	s.spec = Spec{Files: sceneFiles, Size: sceneBytes, Names: sceneNames, Seed: seed}
	if err := s.fill(); err != nil {
		return s, err
	}
	c.Origin.SetFault(func(r origin.Request) *origin.Fault {
		if strings.Contains(r.Key, "late-") {
			return &origin.Fault{Delay: lateBy}
		}
		return nil
	})
	if s.spec.Kept, err = s.Node.Mount("s3://" + sceneBucket + "/kept"); err != nil {
		return s, err
	}
	if s.spec.Streamed, err = s.Node.Mount("s3://"+sceneBucket+"/streamed", "--cache-policy", "none"); err != nil {
		return s, err
	}
	s.spec.Many = filepath.Join(s.spec.Kept, "many")
	for _, mapped := range []bool{false, true} {
		spec := s.spec
		spec.Mapped, spec.Late = mapped, !mapped
		p, err := Start(spec)
		if err != nil {
			return s, err
		}
		s.procs = append(s.procs, p)
	}
	return s, nil
}

func (s *Scene) fill() error {
	ctx := context.Background()
	if err := s.C.Origin.MakeBucket(ctx, sceneBucket); err != nil {
		return err
	}
	for i := range sceneFiles {
		for _, dir := range []string{"kept/", "streamed/"} {
			data := s.spec.Content(i)
			if _, err := s.C.Origin.Put(ctx, sceneBucket, dir+Name(i), data.Reader(), data.Size); err != nil {
				return err
			}
		}
	}
	for i := range sceneNames {
		if _, err := s.C.Origin.Put(ctx, sceneBucket, "kept/many/"+Name(i), bytes.NewReader(nil), 0); err != nil {
			return err
		}
	}
	return nil
}

// End ends the readers and returns what they saw together.
func (s *Scene) End() (sum Report, err error) {
	for _, p := range s.procs {
		r, stopErr := p.Stop()
		err = errors.Join(err, stopErr)
		sum.Ops += r.Ops
		sum.Failed += r.Failed
		sum.Errors, sum.Wrong, sum.Slow = append(sum.Errors, r.Errors...), append(sum.Wrong, r.Wrong...), append(sum.Slow, r.Slow...)
	}
	s.procs = nil
	return sum, err
}

// Readers returns the process ids of the readers.
func (s *Scene) Readers() (all []int) {
	for _, p := range s.procs {
		all = append(all, p.Pid())
	}
	return all
}

// Close ends everything.
func (s *Scene) Close() error {
	for _, p := range s.procs {
		p.Kill()
	}
	if s.C == nil {
		return nil
	}
	return s.C.Close()
}

// Kill ends the daemon with SIGKILL after a random time, and starts it at once. One in five
// times that is five times as long, so that what waits for the origin comes to an end.
func (s *Scene) Kill(within time.Duration) error {
	if s.rnd.IntN(5) == 0 {
		within *= 5
	}
	time.Sleep(time.Duration(s.rnd.Int64N(int64(within))))
	m := Moment{Ended: time.Now()}
	if err := s.Node.End(); err != nil {
		return err
	}
	if err := s.Node.Launch(); err != nil {
		return err
	}
	return s.served(m)
}

// Upgrade replaces the daemon by another program, in the way of a service that is restarted or
// of one whose successor stands by.
func (s *Scene) Upgrade(program string, standby bool) error {
	old := s.Node.Proc
	s.C.Tools.Shardwell = program
	m := Moment{Ended: time.Now()}
	if !standby {
		if err := s.Node.Stop(); err != nil {
			return err
		}
		if err := s.Node.Launch(); err != nil {
			return err
		}
		return s.served(m)
	}
	s.Node.SetFlags("--take-over", "now")
	err := s.Node.Launch()
	s.Node.SetFlags()
	if err != nil {
		return err
	}
	code, err := old.Wait(time.Minute)
	if err != nil || code != 0 {
		return fmt.Errorf("the old daemon ended with %d, %w", code, err)
	}
	return s.served(m)
}

// served waits until the mounts answer.
func (s *Scene) served(m Moment) error {
	for _, dir := range []string{s.spec.Kept, s.spec.Streamed} {
		var st unix.Statfs_t
		if err := unix.Statfs(dir, &st); err != nil {
			return fmt.Errorf("mount %s after a restart: %w\n%s", dir, err, s.C.Logs(10))
		}
	}
	m.Served = time.Now()
	s.Kills = append(s.Kills, m)
	if !s.Node.Running() {
		return fmt.Errorf("the daemon has ended:\n%s", s.C.Logs(10))
	}
	return nil
}

// Stalls returns for each end of a daemon the longest call that was under way, those aside that
// wait for the origin anyway.
func (s *Scene) Stalls(r Report) []Call {
	all := make([]Call, len(s.Kills))
	for i, k := range s.Kills {
		for _, c := range r.Slow {
			if c.What != "late" && c.Began <= k.Served.UnixNano() && c.Began+c.Took >= k.Ended.UnixNano() && c.Took > all[i].Took {
				all[i] = c
			}
		}
	}
	return all
}

// BuildNext makes the program of another version.
func BuildNext(t cluster.Tools, to string) error {
	cmd := exec.Command("go", "build", "-o", to, "-ldflags", "-X github.com/shardwell/shardwell/internal/node.Version=next", "./cmd/shardwell")
	cmd.Dir, cmd.Env = t.Root, append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build: %w\n%s", err, out)
	}
	return nil
}

// Stuck returns which of the processes cannot be ended.
func Stuck(pids []int) (all []int) {
	for _, pid := range pids {
		tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/status", pid))
		for _, t := range tasks {
			if text, err := os.ReadFile(t); err == nil && bytes.Contains(text, []byte("State:\tD")) {
				all = append(all, pid)
				break
			}
		}
	}
	return all
}
