package main

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"

	"github.com/shardwell/shardwell/e2e/cluster"
	"github.com/shardwell/shardwell/e2e/dataset"
)

// What a tar is made of here: samples from the size of a text to that of a photograph.
const (
	minMemberBytes = 4 << 10
	maxMemberBytes = 400 << 10
	readMembers    = 100
	blockBytes     = 256 << 10 // of the product, unless told otherwise
)

// bundle is a tar whose members hold what a seed makes at their place in the tar.
type bundle struct {
	fill    dataset.Random
	members []bundled
	size    int64
}

type bundled struct {
	name      string
	off, size int64
}

// newBundle lays out a tar of about size bytes.
func newBundle(size int64) *bundle {
	b := &bundle{fill: dataset.Random{Seed: seed, Size: 2 * size}}
	r := rand.New(rand.NewPCG(seed, uint64(size)))
	for b.size < size {
		m := bundled{name: fmt.Sprintf("%08d.jpg", len(b.members)), off: b.size + 512, size: minMemberBytes + r.Int64N(maxMemberBytes-minMemberBytes)}
		b.members = append(b.members, m)
		b.size = m.off + (m.size+511)&^511
	}
	b.size += 1024
	return b
}

// reader writes the tar.
func (b *bundle) reader() io.ReadCloser {
	r, w := io.Pipe()
	go func() {
		t := tar.NewWriter(w)
		var err error
		for _, m := range b.members {
			if err == nil {
				err = t.WriteHeader(&tar.Header{Name: m.name, Mode: 0o644, Size: m.size, Format: tar.FormatUSTAR})
			}
			if err == nil {
				_, err = io.Copy(t, io.NewSectionReader(b.fill, m.off, m.size))
			}
		}
		w.CloseWithError(errors.Join(err, t.Close()))
	}()
	return r
}

// blocks returns the bytes of the blocks in which members lie.
func (b *bundle) blocks(members []bundled) (sum int64) {
	set := map[int64]bool{}
	for _, m := range members {
		for i := m.off / blockBytes; i <= (m.off+m.size-1)/blockBytes; i++ {
			if !set[i] {
				sum += min(blockBytes, b.size-i*blockBytes)
			}
			set[i] = true
		}
	}
	return sum
}

// tars reads members of a tar by themselves, where what is in it is known and none of its bytes are.
func (b *bench) tars() error {
	t := newBundle(b.mib << 20 * 3 / 2)
	return with(cluster.Options{Nodes: 1, Flags: []string{"--tar-view"}}, func(c *cluster.Cluster) error {
		body := t.reader()
		defer body.Close()
		if err := put(c, "tars/x.tar", body, t.size); err != nil {
			return err
		}
		streamed, err := t.learn(c)
		if err != nil {
			return err
		}
		var ratio, read, needed []float64
		for round := range b.rounds {
			got, blocks, err := t.round(c, uint64(round))
			if err != nil {
				return err
			}
			ratio, read, needed = append(ratio, float64(got)/float64(blocks)), append(read, float64(got)), append(needed, float64(blocks))
		}
		b.emit("member_read_bytes", ratio, map[string]any{
			"originBytes": read, "blockBytes": needed, "members": len(t.members), "tarBytes": t.size, "originBytesOfTheFirstReadWithIndex": streamed,
		}, "%d random members of a tar of %d MiB, its index known, its bytes not: origin bytes / bytes of the blocks they lie in; reach at most 1.1", readMembers, t.size>>20)
		return nil
	})
}

// learn reads the tar once, and returns what that and the listing of its members took from the
// origin.
func (t *bundle) learn(c *cluster.Cluster) (int64, error) {
	mnt, err := c.Nodes[0].Mount("s3://" + bucket + "/tars")
	if err != nil {
		return 0, err
	}
	c.Origin.Reset()
	if _, _, err := readTimed(filepath.Join(mnt, "x.tar"), t.size); err != nil {
		return 0, err
	}
	list, err := os.ReadDir(filepath.Join(mnt, ".tar", "x.tar"))
	if err == nil && len(list) != len(t.members) {
		err = fmt.Errorf("%d members are listed, want %d", len(list), len(t.members))
	}
	return c.Origin.Requests().Bytes(), err
}

// round reads members with an empty cache but for the index.
func (t *bundle) round(c *cluster.Cluster, seed uint64) (got, blocks int64, err error) {
	n := c.Nodes[0]
	if err := n.Stop(); err != nil {
		return 0, 0, err
	}
	known, kept := filepath.Join(n.CacheDir, "tars"), n.CacheDir+"-tars"
	if err := errors.Join(os.Rename(known, kept), n.Wipe(), os.Rename(kept, known), n.Start()); err != nil {
		return 0, 0, err
	}
	mnt, err := n.Mount("s3://" + bucket + "/tars")
	if err != nil {
		return 0, 0, err
	}
	c.Origin.Reset()
	r := rand.New(rand.NewPCG(seed, 1))
	var chosen []bundled
	for range readMembers {
		m := t.members[r.IntN(len(t.members))]
		chosen = append(chosen, m)
		if err := t.compare(filepath.Join(mnt, ".tar", "x.tar", m.name), m); err != nil {
			return 0, 0, err
		}
	}
	return c.Origin.Requests().Bytes(), t.blocks(chosen), nil
}

func (t *bundle) compare(path string, m bundled) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := dataset.Compare(f, io.NewSectionReader(t.fill, m.off, m.size), m.size); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}
