package main

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/shardwell/shardwell/e2e/cage"
	"github.com/shardwell/shardwell/e2e/cluster"
	"github.com/shardwell/shardwell/e2e/dataset"
	"github.com/shardwell/shardwell/e2e/origin"
)

// What the readers of shards are measured with.
const (
	wdsShards     = 64
	wdsSamples    = 160       // of a shard
	wdsSampleSize = 100 << 10 // bytes of a sample's data
	wdsWorkers    = 8         // of the DataLoader
	coldTarBytes  = 3 << 30   // the shard whose first sample is timed
	stepBytes     = 10 << 10  // of Python's tarfile
	sparseBytes   = 10 << 30  // the object that is read at random
	sparseBlock   = 256 << 10 // the product's block
	sparseReads   = 1500      // of one thread
	preadBytes    = 1 << 20   // of each read of preadParallel
	preadReads    = 64        // of each of its threads
	preadThreads  = 8
	scriptWait    = 5 * time.Minute
)

// shardTar makes a shard: samples of one part each.
func shardTar() []byte {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	data := dataset.Random{Seed: seed, Size: wdsSampleSize}.Bytes()
	for i := range wdsSamples {
		_ = w.WriteHeader(&tar.Header{Name: fmt.Sprintf("%06d.bin", i), Size: wdsSampleSize, Mode: 0o644}) // to memory
		_, _ = w.Write(data)
	}
	_ = w.Close()
	return b.Bytes()
}

// firstSample times the first bytes of cold shards of 3 GiB.
func (b *bench) firstSample() error {
	m := origin.NewMemory()
	tile := shardTar()
	for i := range b.rounds {
		m.PutReader(fmt.Sprintf("c/%04d.tar", i), dataset.Tiled{Tile: tile, Size: coldTarBytes}, coldTarBytes, fmt.Sprintf("%032x", i))
	}
	// Without the foresight that a third numbered shard sets going: then the fourth is not cold.
	opts := cluster.Options{Nodes: 1, Origin: origin.Options{Store: m, OneWay: originOneWay}, Flags: []string{"--prefetch-shards", "0"}}
	return with(opts, func(c *cluster.Cluster) error {
		host, err := c.Cage.Host("client")
		if err != nil {
			return err
		}
		client := clientOf(host)
		for _, kib := range []int{64, 256, 1024} {
			var ours, get []float64
			mnt, err := restartEmpty(c.Nodes[0], "s3://"+bucket+"/c")
			if err != nil {
				return err
			}
			if _, err := filepath.Glob(mnt + "/*"); err != nil { // names are known, as to whoever lists shards
				return err
			}
			url := c.Origin.Endpoint() + "/" + bucket + "/c/0000.tar"
			if err := getWhole(client, url, 0, 1); err != nil { // a connection is open, as ours is
				return err
			}
			for i := range b.rounds {
				for _, half := range [2]int{i % 2, 1 - i%2} {
					begin := time.Now()
					if half == 0 {
						err = getWhole(client, url, 0, int64(kib)<<10)
						get = append(get, ms(time.Since(begin)))
					} else {
						var fd int
						fd, err = readSteps(filepath.Join(mnt, fmt.Sprintf("%04d.tar", i)), kib<<10)
						ours = append(ours, ms(time.Since(begin)))
						if err == nil {
							err = closeQuietly(c, fd)
						}
					}
					if err != nil {
						return err
					}
				}
			}
			name := "first_sample_ms_vs_get"
			if kib != 64 {
				name += fmt.Sprintf("_%dk", kib)
			}
			b.emit(name, ratios(ours, get), map[string]any{"mountMs": ours, "getMs": get},
				"open and read the first %d KiB of a cold tar of 3 GiB in steps of 10 KiB, round trip of %v / one ranged GET of them; reach at most 1.3", kib, 2*originOneWay)
		}
		return nil
	})
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// closeQuietly closes a file once what was fetched ahead of its reader is here: what is cut off costs its
// connection, and the next shard would wait for another, while the GETs have theirs.
func closeQuietly(c *cluster.Cluster, fd int) error {
	defer syscall.Close(fd)
	defer time.Sleep(20 * originOneWay) // until what the origin has sent is here
	return until(func() error {
		if n := c.Origin.Open(); n > 0 {
			return fmt.Errorf("%d requests are under way", n)
		}
		return nil
	})
}

// readSteps reads the first bytes of a file in steps and returns its descriptor.
func readSteps(path string, n int) (int, error) {
	fd, err := open(path)
	if err != nil {
		return -1, err
	}
	buf := make([]byte, stepBytes)
	for got := 0; got < n; {
		k, err := syscall.Read(fd, buf)
		switch {
		case errors.Is(err, syscall.EINTR):
		case err != nil || k == 0:
			_ = syscall.Close(fd)
			return -1, fmt.Errorf("read %s at %d: %d bytes, %w", path, got, k, err)
		default:
			got += k
		}
	}
	return fd, nil
}

// wdsEpochs reads shards with webdataset, cold and warm, beside other ways to read them.
func (b *bench) wdsEpochs() error {
	m := origin.NewMemory()
	shard := shardTar()
	var names []string
	for i := range wdsShards {
		names = append(names, fmt.Sprintf("train-%06d.tar", i))
		m.Put("wds/"+names[i], shard)
	}
	opts := cluster.Options{Nodes: 1, OriginLink: originLink, Origin: origin.Options{Store: m, OneWay: originOneWay}}
	total := int64(len(shard)) * wdsShards
	return with(opts, func(c *cluster.Cluster) error {
		host, err := c.Cage.Host("client")
		if err != nil {
			return err
		}
		base := c.Origin.Endpoint() + "/" + bucket + "/wds/"
		r := wdsResult{tried: make(map[int]float64)}
		for _, connections := range []int{4, 8, 16, 32} {
			d, err := getShards(clientOf(host), base, names[:wdsShards/4], int64(len(shard)), connections)
			if err != nil {
				return err
			}
			if r.tried[connections] = rate(total/4, d); r.tried[connections] > r.tried[r.connections] {
				r.connections = connections
			}
		}
		for range b.rounds {
			if err := r.round(c, host, base, names, int64(len(shard))); err != nil {
				return err
			}
		}
		b.emit("epoch1_vs_parallel_get", ratios(r.first, r.get), r.evidence(),
			"webdataset with %d workers, %d cold shards of %d MiB, origin at %d Mbit/s and %v round trip / parallel GET over %d connections; reach 0.90",
			wdsWorkers, wdsShards, len(shard)>>20, originLink.RateMbit, 2*originOneWay, r.connections)
		b.emit("epoch1_vs_pipe", ratios(r.first, r.pipe), r.evidence(), "the same / webdataset's own pipe:curl of the same URLs; reach 1.0")
		b.emit("epoch2_vs_pipe", ratios(r.second, r.pipe), r.evidence(), "the second epoch / the same; not judged")
		return nil
	})
}

type wdsResult struct {
	first, second, get, pipe, copies []float64 // MiB a second; copies that left the origin in the first epoch
	connections                      int
	tried                            map[int]float64
}

func (r *wdsResult) evidence() map[string]any {
	return map[string]any{"epoch1MiBps": r.first, "epoch2MiBps": r.second, "getMiBps": r.get, "pipeMiBps": r.pipe,
		"originCopies": r.copies, "getMiBpsByConnections": r.tried}
}

func (r *wdsResult) round(c *cluster.Cluster, host *cage.Host, base string, names []string, size int64) error {
	total := size * int64(len(names))
	d, err := getShards(clientOf(host), base, names, size, r.connections)
	if err != nil {
		return err
	}
	r.get = append(r.get, rate(total, d))
	mnt, err := restartEmpty(c.Nodes[0], "s3://"+bucket+"/wds")
	if err != nil {
		return err
	}
	var paths, pipes []string
	for _, n := range names {
		paths, pipes = append(paths, filepath.Join(mnt, n)), append(pipes, "pipe:curl -s -f "+base+n)
	}
	c.Origin.Reset()
	times, err := throughput(c, host, 1, paths)
	if err != nil {
		return err
	}
	r.first = append(r.first, rate(total, times[0]))
	r.copies = append(r.copies, float64(c.Origin.Requests().Bytes())/float64(total))
	if times, err = throughput(c, host, 1, paths); err != nil { // all files are opened anew: what is complete is passthrough
		return err
	}
	r.second = append(r.second, rate(total, times[0]))
	if times, err = throughput(c, host, 1, pipes); err != nil {
		return err
	}
	r.pipe = append(r.pipe, rate(total, times[0]))
	say("webdataset: get %.1f, epoch 1 %.1f, epoch 2 %.1f, pipe %.1f MiB/s", last(r.get), last(r.first), last(r.second), last(r.pipe))
	return nil
}

func last(s []float64) float64 { return s[len(s)-1] }

// throughput runs the Python reader in a host and returns the time of each epoch.
func throughput(c *cluster.Cluster, host *cage.Host, epochs int, urls []string) (times []time.Duration, err error) {
	args := append([]string{c.Tools.Python, filepath.Join(c.Tools.Scripts, "throughput.py"), strconv.Itoa(wdsWorkers), strconv.Itoa(epochs)}, urls...)
	p, err := host.Start(cage.Command{Name: "python", Args: args, Env: []string{"PYTHONWARNINGS=ignore", "OMP_NUM_THREADS=1"}})
	if err != nil {
		return nil, err
	}
	code, err := p.Wait(scriptWait)
	out := p.Output()
	if err != nil || code != 0 {
		return nil, fmt.Errorf("throughput.py: %d, %w: %s", code, err, out)
	}
	var all []struct {
		Seconds        float64
		Samples, Bytes int64
	}
	if err := json.Unmarshal([]byte(out[max(0, strings.LastIndex(strings.TrimSpace(out), "\n")):]), &all); err != nil {
		return nil, fmt.Errorf("throughput.py: %w: %s", err, out)
	}
	for _, e := range all {
		if e.Samples != wdsSamples*int64(len(urls)) || e.Bytes != e.Samples*wdsSampleSize {
			return nil, fmt.Errorf("throughput.py: %d samples of %d bytes in all", e.Samples, e.Bytes)
		}
		times = append(times, time.Duration(e.Seconds*float64(time.Second)))
	}
	return times, nil
}

// getShards reads shards in parts, over so many connections.
func getShards(client *http.Client, base string, names []string, size int64, connections int) (time.Duration, error) {
	parts := (size + getPartBytes - 1) / getPartBytes
	var next atomic.Int64
	return atOnce(connections, func(int) error {
		for {
			i := next.Add(1) - 1
			if i >= parts*int64(len(names)) {
				return nil
			}
			off := i % parts * getPartBytes
			if err := getWhole(client, base+names[i/parts], off, min(getPartBytes, size-off)); err != nil {
				return err
			}
		}
	})
}

// randomReads counts what small reads at random places cost.
func (b *bench) randomReads() error {
	m := origin.NewMemory()
	for i := range b.rounds {
		m.PutReader(fmt.Sprintf("r/%d.bin", i), dataset.Tiled{Tile: make([]byte, 1<<20), Size: sparseBytes}, sparseBytes, fmt.Sprintf("%032x", i))
	}
	return with(cluster.Options{Nodes: 1, Origin: origin.Options{Store: m}}, func(c *cluster.Cluster) error {
		mnt, err := c.Nodes[0].Mount("s3://" + bucket + "/r")
		if err != nil {
			return err
		}
		var amplification, perSecond []float64
		var evidence []map[string]int64
		for i := range b.rounds {
			c.Origin.Reset()
			blocks, d, err := randomBlocks(filepath.Join(mnt, fmt.Sprintf("%d.bin", i)), uint64(i))
			if err != nil {
				return err
			}
			got := c.Origin.Requests()
			amplification = append(amplification, float64(got.Bytes())/float64(blocks*sparseBlock))
			perSecond = append(perSecond, float64(sparseReads)/d.Seconds())
			evidence = append(evidence, map[string]int64{"originBytes": got.Bytes(), "blocks": blocks, "requests": int64(len(got.Of(origin.OpGet)))})
		}
		b.emit("random_amplification", amplification, map[string]any{"rounds": evidence, "readsPerSecond": perSecond},
			"origin bytes / distinct blocks of 256 KiB touched by %d reads of 4 KiB over a cold object of 10 GiB, one thread, unshaped; reach at most 1.1", sparseReads)
		return nil
	})
}

// randomBlocks reads at random places and returns how many blocks that touched, and how long it took.
func randomBlocks(path string, seed uint64) (blocks int64, took time.Duration, err error) {
	fd, err := open(path)
	if err != nil {
		return 0, 0, err
	}
	defer syscall.Close(fd)
	rng := rand.New(rand.NewPCG(seed, 11))
	touched := make(map[int64]bool)
	buf := make([]byte, 4096)
	begin := time.Now()
	for range sparseReads {
		off := rng.Int64N(sparseBytes/4096) * 4096
		touched[off/sparseBlock] = true
		if err := preadAll(fd, buf, off); err != nil {
			return 0, 0, err
		}
	}
	return int64(len(touched)), time.Since(begin), nil
}

func preadAll(fd int, buf []byte, off int64) error {
	for got := 0; got < len(buf); {
		n, err := syscall.Pread(fd, buf[got:], off+int64(got))
		switch {
		case errors.Is(err, syscall.EINTR):
		case err != nil:
			return fmt.Errorf("read at %d: %w", off, err)
		case n == 0:
			return fmt.Errorf("read at %d: %w", off, io.ErrUnexpectedEOF)
		default:
			got += n
		}
	}
	return nil
}

// preadParallel compares eight threads on one descriptor with one, on an origin that is far.
func (b *bench) preadParallel() error {
	m := origin.NewMemory()
	for i := range 2 * b.rounds {
		m.PutReader(fmt.Sprintf("p/%d.bin", i), dataset.Tiled{Tile: make([]byte, 1<<20), Size: sparseBytes}, sparseBytes, fmt.Sprintf("%032x", i))
	}
	return with(cluster.Options{Nodes: 1, Origin: origin.Options{Store: m, OneWay: originOneWay}}, func(c *cluster.Cluster) error {
		mnt, err := c.Nodes[0].Mount("s3://" + bucket + "/p")
		if err != nil {
			return err
		}
		var one, eight []float64
		for i := range b.rounds {
			for _, half := range [2]int{i % 2, 1 - i%2} {
				threads := 1 + half*(preadThreads-1)
				mibps, err := preads(filepath.Join(mnt, fmt.Sprintf("%d.bin", 2*i+half)), threads, uint64(i))
				if err != nil {
					return err
				}
				if half == 0 {
					one = append(one, mibps)
				} else {
					eight = append(eight, mibps)
				}
			}
		}
		b.emit("pread_parallel", ratios(eight, one), map[string]any{"oneMiBps": one, "eightMiBps": eight},
			"%d threads of random 1 MiB reads on one descriptor, round trip of %v / one thread; reach 6", preadThreads, 2*originOneWay)
		return nil
	})
}

// preads reads at random places of a cold file with threads that share a descriptor.
func preads(path string, threads int, seed uint64) (mibps float64, err error) {
	fd, err := open(path)
	if err != nil {
		return 0, err
	}
	defer syscall.Close(fd)
	var mu sync.Mutex
	rng := rand.New(rand.NewPCG(seed, 13))
	taken := make(map[int64]bool)
	place := func() int64 { // each once
		mu.Lock()
		defer mu.Unlock()
		for {
			if at := rng.Int64N(sparseBytes/preadBytes) * preadBytes; !taken[at] {
				taken[at] = true
				return at
			}
		}
	}
	d, err := atOnce(threads, func(int) error {
		buf := make([]byte, preadBytes)
		for range preadReads {
			if err := preadAll(fd, buf, place()); err != nil {
				return err
			}
		}
		return nil
	})
	return rate(int64(threads)*preadReads*preadBytes, d), err
}
