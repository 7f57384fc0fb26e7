package main

import (
	"strings"
	"testing"

	"github.com/shardwell/shardwell/internal/control"
)

func TestStatusTables(t *testing.T) {
	var out strings.Builder
	err := statusTables(&out, control.Status{
		Node: "n1", ID: "00ff", Version: "1.0",
		Members: []control.Member{{Name: "n1", Address: "127.0.0.1:7947", Rack: "r1", State: "alive", OwnedShare: 0.5}},
		Seeds:   control.Seeds{Asked: 1},
		Refused: []control.Refusal{{Name: "x", Address: "127.0.0.1:1", Reason: "block size\n64Ki"}},
		Mounts:  []control.Mount{{URI: "s3://b/", Dir: "/data"}},
		Datasets: []control.Dataset{
			{URI: "s3://b/", Objects: 3, Bytes: 3 << 30, CachedBytes: 2 << 30, LocalBytes: 1 << 30},
		},
		Broadcasts:   []control.Broadcast{{Object: "s3://b/k", NodesDone: 1, NodesReceiving: 2, BytesPerSecond: 1 << 20, OriginCopies: 1, MaxOverMeanSent: 1.25}},
		Bytes:        control.Bytes{Disk: 5 << 20, PassthroughOpens: 7, FetchedFromOrigin: 1 << 10},
		Disks:        []control.Disk{{Path: "/nvme", State: "normal", UsedBytes: 1 << 20, BudgetBytes: 1 << 30}},
		SkippedKeys:  []control.SkippedKey{{Key: "a//b\x1b", Reason: "empty part"}},
		SkippedTotal: 2,
	})
	if err != nil {
		t.Fatal(err)
	}
	want := `node n1 (00ff), version 1.0
joined none of 1 seed (unreachable, or another secret)

MEMBER  address         zone  rack  state  owned share
n1      127.0.0.1:7947  -     r1    alive  50.0 %

REFUSED  address      reason
x        127.0.0.1:1  block size 64Ki

MOUNT    on
s3://b/  /data

DATASET  objects  bytes    cached   of that here
s3://b/  3        3.0 GiB  2.0 GiB  1.0 GiB

BROADCAST  done  receiving  rate       origin copies  max/mean sent
s3://b/k   1     2          1.0 MiB/s  1.00           1.25

BYTES READ  origin  peer  disk     memory  passthrough opens
            0 B     0 B   5.0 MiB  0 B     7

BYTES MOVED  from origin  from peers  to peers
             1.0 KiB      0 B         0 B

DISK   state   used     budget
/nvme  normal  1.0 MiB  1.0 GiB

SKIPPED (2)  key
empty part   "a//b\x1b"
`
	if out.String() != want {
		t.Errorf("got\n%s\nwant\n%s", out.String(), want)
	}
}
