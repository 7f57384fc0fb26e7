package cluster

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// Status is what `shardwell status --json` promises. It is spelled here once
// more, so that a renamed field fails a test.
type Status struct {
	Node        string       `json:"node"`
	Members     []Member     `json:"members"`
	Datasets    []Dataset    `json:"datasets"`
	Broadcasts  []any        `json:"broadcasts"`
	Bytes       Bytes        `json:"bytes"`
	Disks       []Disk       `json:"disks"`
	SkippedKeys []SkippedKey `json:"skippedKeys"`
}

// Member is one node of the cluster.
type Member struct {
	ID         string  `json:"id"`
	Name       string  `json:"name"`
	Address    string  `json:"address"`
	Zone       string  `json:"zone"`
	Rack       string  `json:"rack"`
	State      string  `json:"state"`
	OwnedShare float64 `json:"ownedShare"`
}

// Dataset is a mounted prefix.
type Dataset struct {
	URI         string  `json:"uri"`
	Objects     int64   `json:"objects"`
	Bytes       int64   `json:"bytes"`
	CachedBytes int64   `json:"cachedBytes"`
	LocalBytes  int64   `json:"localBytes"`
	PinnedUntil *string `json:"pinnedUntil"`
}

// Bytes counts since the start of a node: first what readers got, by where it came
// from, then what the node exchanged.
type Bytes struct {
	Origin           int64 `json:"origin"`
	Peer             int64 `json:"peer"`
	Disk             int64 `json:"disk"`
	Memory           int64 `json:"memory"`
	PassthroughOpens int64 `json:"passthroughOpens"`
	SentToPeers      int64 `json:"sentToPeers"`

	FetchedFromOrigin int64 `json:"fetchedFromOrigin"`
	FetchedFromPeers  int64 `json:"fetchedFromPeers"`
}

// Disk is a cache directory.
type Disk struct {
	Path        string `json:"path"`
	State       string `json:"state"`
	UsedBytes   int64  `json:"usedBytes"`
	BudgetBytes int64  `json:"budgetBytes"`
}

// SkippedKey is a key that cannot be a path.
type SkippedKey struct {
	Key    string `json:"key"`
	Reason string `json:"reason"`
}

// Alive counts the members that are alive.
func (s Status) Alive() int {
	n := 0
	for _, m := range s.Members {
		if m.State == "alive" {
			n++
		}
	}
	return n
}

// Owners counts the members that are alive and own a share of the ring.
func (s Status) Owners() int {
	n := 0
	for _, m := range s.Members {
		if m.State == "alive" && m.OwnedShare > 0 {
			n++
		}
	}
	return n
}

// Status asks the node.
func (n *Node) Status() (Status, error) {
	var s Status
	r, err := n.Run("status", "--json")
	if err != nil {
		return s, err
	}
	if err := json.Unmarshal([]byte(r.Stdout), &s); err != nil {
		return s, fmt.Errorf("shardwell status --json: %w in %s", err, r.Stdout)
	}
	return s, nil
}

// Metrics maps a series, spelled as it is exposed (`name{a="b"}`), to its value.
type Metrics map[string]float64

// Sum adds up all series of a name.
func (m Metrics) Sum(name string) float64 {
	var sum float64
	for k, v := range m {
		if k == name || strings.HasPrefix(k, name+"{") {
			sum += v
		}
	}
	return sum
}

// maxMetricsBytes bounds what is read of a metrics page.
const maxMetricsBytes = 16 << 20

// Metrics reads the node's metrics page.
func (n *Node) Metrics() (Metrics, error) {
	client := &http.Client{
		Timeout:   10 * time.Second,
		Transport: &http.Transport{DialContext: n.Host.Dial, DisableKeepAlives: true},
	}
	resp, err := client.Get(fmt.Sprintf("http://127.0.0.1:%d/metrics", metricsPort))
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("cluster: node %s: metrics: %s", n.Name, resp.Status)
	}
	m := make(Metrics)
	lines := bufio.NewScanner(io.LimitReader(resp.Body, maxMetricsBytes))
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		line := lines.Text()
		if line == "" || line[0] == '#' {
			continue
		}
		at := strings.LastIndexByte(line, ' ')
		if at < 0 {
			continue
		}
		v, err := strconv.ParseFloat(line[at+1:], 64)
		if err != nil {
			return nil, fmt.Errorf("cluster: node %s: metrics line %q: %w", n.Name, line, err)
		}
		m[line[:at]] = v
	}
	return m, lines.Err()
}
