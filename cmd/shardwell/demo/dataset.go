package demo

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"image/jpeg"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
)

// dataset is the source that everything is compared with.
type dataset struct {
	shards     []sourceFile
	checkpoint sourceFile
}

// sourceFile is a file of the source, mapped into memory.
type sourceFile struct {
	key  string // in the bucket
	path string
	data []byte // the mapping
}

func (d *dataset) files() []sourceFile {
	return append(d.shards[:len(d.shards):len(d.shards)], d.checkpoint)
}

func (d *dataset) bytes() int64 { return d.shardBytes() + int64(len(d.checkpoint.data)) }

func (d *dataset) shardBytes() (n int64) {
	for _, s := range d.shards {
		n += int64(len(s.data))
	}
	return n
}

func (d *dataset) close() {
	for _, f := range d.files() {
		if f.data != nil {
			_ = unix.Munmap(f.data)
		}
	}
}

// makeDataset writes a WebDataset and a checkpoint under dir.
func makeDataset(ctx context.Context, dir string) (*dataset, error) {
	d := &dataset{shards: make([]sourceFile, shardCount)}
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(runtime.GOMAXPROCS(0))
	for i := range d.shards {
		group.Go(func() (err error) {
			key := fmt.Sprintf("train/train-%06d.tar", i)
			d.shards[i], err = makeFile(dir, key, func(f *os.File) error { return writeShard(ctx, f, i) })
			return err
		})
	}
	group.Go(func() (err error) {
		d.checkpoint, err = makeFile(dir, "checkpoints/step-1000.bin", func(f *os.File) error { return writeNoise(ctx, f, checkpointSize) })
		return err
	})
	if err := group.Wait(); err != nil {
		d.close()
		return nil, err
	}
	return d, nil
}

// makeFile writes a file and maps it.
func makeFile(dir, key string, write func(*os.File) error) (sourceFile, error) {
	s := sourceFile{key: key, path: filepath.Join(dir, key)}
	if err := os.MkdirAll(filepath.Dir(s.path), 0o700); err != nil {
		return s, err
	}
	f, err := os.Create(s.path)
	if err != nil {
		return s, err
	}
	defer f.Close()
	if err := write(f); err != nil {
		return s, err
	}
	size, err := f.Seek(0, 1)
	if err != nil {
		return s, err
	}
	s.data, err = unix.Mmap(int(f.Fd()), 0, int(size), unix.PROT_READ, unix.MAP_SHARED)
	return s, err
}

// writeShard writes samples as WebDataset has them: members of one tar with the
// same name and other endings.
func writeShard(ctx context.Context, f *os.File, shard int) error {
	w := tar.NewWriter(f)
	for i := range samplesInShard {
		if err := ctx.Err(); err != nil {
			return err
		}
		n := shard*samplesInShard + i
		rng := rand.New(rand.NewPCG(seed, uint64(n)))
		class := rng.IntN(classes)
		var picture bytes.Buffer
		if err := jpeg.Encode(&picture, draw(rng, class), &jpeg.Options{Quality: 92}); err != nil {
			return err
		}
		name := fmt.Sprintf("sample-%08d", n)
		for _, m := range []struct {
			ending string
			data   []byte
		}{
			{"cls", fmt.Append(nil, class)},
			{"jpg", picture.Bytes()},
			{"json", fmt.Appendf(nil, `{"shape":%q,"seed":[%d,%d]}`, shapeNames[class], seed, n)},
		} {
			h := &tar.Header{Name: name + "." + m.ending, Mode: 0o644, Size: int64(len(m.data)), Format: tar.FormatUSTAR}
			if err := w.WriteHeader(h); err != nil {
				return err
			}
			if _, err := w.Write(m.data); err != nil {
				return err
			}
		}
	}
	return w.Close()
}

// writeNoise writes random bytes, as weights look to whoever would compress them.
func writeNoise(ctx context.Context, f *os.File, size int) error {
	var key [32]byte
	binary.LittleEndian.PutUint64(key[:], seed)
	noise := rand.NewChaCha8(key)
	buf := make([]byte, 1<<20)
	for written := 0; written < size; written += len(buf) {
		if err := ctx.Err(); err != nil {
			return err
		}
		_, _ = noise.Read(buf) // never fails
		if _, err := f.Write(buf); err != nil {
			return err
		}
	}
	return nil
}
