package node

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/shardwell/shardwell/cache"
	"github.com/shardwell/shardwell/cache/disk"
	"github.com/shardwell/shardwell/fuse"
	"github.com/shardwell/shardwell/objstore"
)

// collector turns the counters of the packages into metrics when it is asked, so
// that counting costs an atomic addition and nothing else. Names are a promise
// (docs/OPERATIONS.md); labels never hold keys or Pods.
type collector struct{ n *Node }

func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("shardwell_"+name, help, labels, nil)
}

var (
	readBytes       = desc("read_bytes_total", "Bytes that readers of this node got through the daemon, by where they came from.", "source")
	readOps         = desc("read_ops_total", "Parts of reads, one for each block they touch, by where the bytes came from.", "source")
	originRequests  = desc("origin_requests_total", "Requests to the origin by operation and outcome.", "op", "code")
	originGranted   = desc("origin_granted_requests_total", "Of the requests to the origin, those on the strength of a grant of another node, by operation and outcome.", "op", "code")
	grantsGiven     = desc("grants_given_total", "Requests to the origin that this node signed for another one to make.")
	refusalsPassed  = desc("fetch_refusals_total", "Fetches of blocks that went on for others who waited when the origin had refused one.")
	originBytes     = desc("origin_bytes_total", "Bytes of objects that came from the origin into this node.")
	peerSent        = desc("peer_sent_bytes_total", "Bytes of blocks sent to other nodes.")
	peerReceived    = desc("peer_received_bytes_total", "Bytes of blocks received from other nodes and checked.")
	peerSendfile    = desc("peer_sendfile_bytes_total", "Of the bytes sent, those that the kernel took from a file.")
	peerRedirects   = desc("peer_redirects_total", "Redirects to another holder, given and followed.", "direction")
	breakerOpens    = desc("peer_breaker_opens_total", "Times that a member was set aside.")
	cacheBytes      = desc("cache_bytes", "Bytes held, by class: disk or memory.", "class")
	rejected        = desc("cache_admissions_rejected_total", "Blocks that a cache directory did not take, by reason.", "reason")
	evictedBytes    = desc("cache_evicted_bytes_total", "Bytes that cache directories gave up for others.")
	scrubbed        = desc("scrubbed_bytes_total", "Bytes of cache directories that were read and checked in the background.")
	tarIndexes      = desc("tar_indexes_total", "Indexes of tars, by how this node came to them.", "how")
	diskHangs       = desc("disk_hangs_total", "Calls to a cache directory's disk that did not come back in time.", "path")
	corrupt         = desc("corrupt_blocks_total", "Blocks whose checksum did not fit, by where that was found.", "where")
	retries         = desc("fetch_retries_total", "Fetches of blocks that were tried again.")
	failures        = desc("fetch_failures_total", "Fetches of blocks that ended in an error.")
	passthrough     = desc("passthrough_opens_total", "Opens of files by whether the kernel reads the cache file itself.", "result")
	opSeconds       = desc("fuse_op_seconds", "Time to answer a request of the kernel.", "op")
	fuseErrors      = desc("fuse_errors_total", "Requests of the kernel answered with an error, look-ups of absent names included.")
	nextFilesCount  = desc("prefetched_shards_total", "Files that were begun to be fetched before they were opened.")
	filledBytes     = desc("background_fill_bytes_total", "Bytes of chunks that this node owns and fetched while nothing else was.")
	warmBytes       = desc("warmup_bytes_total", "Bytes that this node was to hold for warm-ups, by what came of it: held (already), fetched or missing.", "result")
	warmJobs        = desc("warmups", "Warm-ups that this node runs for the cluster.")
	mountCount      = desc("mounts", "Mounts that this node serves.")
	takingOver      = desc("mounts_taking_over", "Mounts of a predecessor that are not served yet.")
	keeperUp        = desc("keeper_connected", "1 while a keeper holds the mounts of this node.")
	seedCount       = desc("seeds", "Addresses to join, by state: asked, and of these answered.", "state")
	ringMembers     = desc("ring_members", "Members of the ring, those restarting included.")
	membersRefused  = desc("members_refused_total", "Times that a member was turned away.")
	gossipDropped   = desc("gossip_dropped_packets_total", "Packets and streams of strangers, or damaged.")
	diskState       = desc("disk_state", "1 for the state a cache directory is in, 0 for the others.", "path", "state")
	diskBudgetBytes = desc("disk_budget_bytes", "Bytes that a cache directory may take.", "path")
	diskUsedBytes   = desc("disk_used_bytes", "Bytes that a cache directory takes.", "path")
)

// Describe implements prometheus.Collector. The collector is unchecked: what it
// sends is known by the list above.
func (c collector) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector.
func (c collector) Collect(to chan<- prometheus.Metric) {
	m := sender{to}
	c.reads(m)
	c.origin(m)
	c.peers(m)
	c.disks(m)
	c.mounts(m)
	c.tars(m)
	w := &c.n.warmed
	m.count(warmBytes, w.held.Load(), "held")
	m.count(warmBytes, w.fetched.Load(), "fetched")
	m.count(warmBytes, w.missing.Load(), "missing")
	m.gauge(warmJobs, c.n.jobs.running())
}

func (c collector) tars(m sender) {
	s := c.n.tars.Stats()
	m.count(tarIndexes, s.Streamed.Load(), "streamed")
	m.count(tarIndexes, s.Scanned.Load(), "scanned")
	m.count(tarIndexes, s.Asked.Load(), "asked")
	m.count(tarIndexes, s.Given.Load(), "given")
	m.count(tarIndexes, s.Loaded.Load(), "loaded")
	m.count(tarIndexes, s.Damaged.Load(), "damaged")
}

// sender sends metrics.
type sender struct{ to chan<- prometheus.Metric }

func (s sender) count(d *prometheus.Desc, v int64, labels ...string) {
	s.to <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v), labels...)
}

func (s sender) gauge(d *prometheus.Desc, v int64, labels ...string) {
	s.to <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, float64(v), labels...)
}

func (c collector) reads(m sender) {
	s := c.n.cache.Stats()
	for _, from := range cache.Sources() {
		m.count(readBytes, s.ReadBytes[from].Load(), from.String())
		m.count(readOps, s.ReadOps[from].Load(), from.String())
	}
	m.count(retries, s.Retries.Load())
	m.count(failures, s.Failures.Load())
	m.count(refusalsPassed, s.Refusals.Load())
	m.count(corrupt, s.CorruptBlocks.Load(), "read")
	m.gauge(cacheBytes, s.MemoryBlocks.Load()*c.n.geometry.BlockBytes, "memory")
}

func (c collector) origin(m sender) {
	s := &c.n.origins.stats
	for op := range objstore.NumOps {
		for class := range objstore.NumClasses {
			m.count(originRequests, s.Requests[op][class].Load(), op.String(), class.String())
			m.count(originGranted, c.n.origins.lent.Requests[op][class].Load(), op.String(), class.String())
		}
	}
	m.count(originBytes, s.Bytes.Load())
}

func (c collector) peers(m sender) {
	t, s, g := &c.n.cluster.bytes, c.n.cluster.peers.Stats(), c.n.cluster.group.Stats()
	m.count(peerSent, t.SentBytes.Load())
	m.count(peerReceived, t.ReceivedBytes.Load())
	m.count(peerSendfile, t.SendfileBytes.Load())
	m.count(peerRedirects, s.RedirectsGiven.Load(), "given")
	m.count(peerRedirects, s.RedirectsFollowed.Load(), "followed")
	m.count(breakerOpens, s.BreakerOpens.Load())
	m.count(grantsGiven, s.GrantsGiven.Load())
	m.count(corrupt, t.CorruptBlocks.Load(), "arrival")
	seeds := c.n.cluster.group.Seeds()
	m.gauge(seedCount, int64(seeds.Asked), "asked")
	m.gauge(seedCount, int64(seeds.Answered), "answered")
	m.gauge(ringMembers, int64(c.n.cluster.ring.history.Current().Len()))
	m.count(membersRefused, int64(g.Refusals.Load()))
	m.count(gossipDropped, int64(g.DroppedPackets.Load()))
}

func (c collector) disks(m sender) {
	var sum int64
	var reasons [disk.NumRejects]int64
	var evicted, damaged, checked int64
	for _, d := range c.n.disks.dirs {
		used, budget := d.Usage()
		sum += used
		m.gauge(diskUsedBytes, used, d.Path())
		m.gauge(diskBudgetBytes, budget, d.Path())
		m.diskState(d.Path(), d.State())
		s := d.Stats()
		for r := range reasons {
			reasons[r] += s.Rejected[r].Load()
		}
		evicted += s.EvictedBytes.Load()
		checked += s.ScrubbedBytes.Load()
		m.count(diskHangs, s.Hung.Load(), d.Path())
		damaged += s.Lost[disk.LossChecksum].Load()
	}
	for _, path := range c.n.disks.faulty {
		m.diskState(path, disk.Down)
	}
	m.gauge(cacheBytes, sum, "disk")
	m.count(evictedBytes, evicted)
	m.count(scrubbed, checked)
	m.count(corrupt, damaged, "disk")
	for r, v := range reasons {
		m.count(rejected, v, disk.Reject(r).String())
	}
}

func (s sender) diskState(path string, is disk.State) {
	for _, state := range [...]disk.State{disk.Normal, disk.Unstable, disk.Down} {
		s.gauge(diskState, oneIf(is == state), path, state.String())
	}
}

func oneIf(yes bool) int64 {
	if yes {
		return 1
	}
	return 0
}

func (c collector) mounts(m sender) {
	m.gauge(mountCount, int64(len(c.n.mounts.all())))
	m.gauge(takingOver, int64(c.n.keeping.takingOver()))
	connected := int64(0)
	if c.n.keeping.state() == "connected" {
		connected = 1
	}
	m.gauge(keeperUp, connected)
	t := c.n.mounts.totals()
	for r, v := range t.passthrough {
		m.count(passthrough, v, fuse.PassthroughResult(r).String())
	}
	m.count(fuseErrors, t.errors)
	m.count(nextFilesCount, t.nextFiles)
	m.count(filledBytes, c.n.fills.bytes.Load())
	for op := range fuse.NumOps {
		h := &t.ops[op]
		buckets, below := make(map[float64]uint64, fuse.NumBuckets), uint64(0)
		for i, v := range h.buckets[:fuse.NumBuckets-1] { // the last one is +Inf
			below += uint64(v)
			buckets[fuse.BucketBound(i).Seconds()] = below
		}
		m.to <- prometheus.MustNewConstHistogram(opSeconds, uint64(h.count), float64(h.nanos)/1e9, buckets, op.String())
	}
}

// totals are the counters of all sessions of a node, ended ones included: what a
// metric counts must not fall when a mount ends.
type totals struct {
	ops         [fuse.NumOps]opTotals
	passthrough [fuse.NumPassthroughResults]int64
	errors      int64
	nextFiles   int64
}

type opTotals struct {
	buckets      [fuse.NumBuckets]int64
	count, nanos int64
}

// add adds what a session has counted.
func (t *totals) add(s *fuse.Stats) {
	t.nextFiles += s.NextFiles.Load()
	for op := range t.ops {
		from, to := &s.Ops[op], &t.ops[op]
		for i := range to.buckets {
			to.buckets[i] += from.Buckets[i].Load()
		}
		to.count += from.Count.Load()
		to.nanos += from.Nanos.Load()
	}
	for r := range t.passthrough {
		t.passthrough[r] += s.Passthrough[r].Load()
	}
	for i := range s.Errors {
		t.errors += s.Errors[i].Load()
	}
}

// totals returns the counters of sessions that are and that were.
func (m *mounts) totals() totals {
	m.mu.Lock()
	defer m.mu.Unlock()
	sum := m.past
	for x := range m.live {
		sum.add(x.session.Stats())
	}
	return sum
}
