package node

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/shardwell/shardwell/peer"
	"github.com/shardwell/shardwell/peer/member"
	"github.com/shardwell/shardwell/peer/secret"
)

// A build that speaks another protocol of peers is refused by name and number, once on each side, and neither
// is a member of the other's cluster.
func TestBuildsOfOtherProtocolsAreRefused(t *testing.T) {
	for what, version := range map[string]uint8{"before": peer.ProtocolMin - 1, "after": peer.ProtocolMax + 1} {
		t.Run(what, func(t *testing.T) {
			n := start(t, testConfig(t, "http://127.0.0.1:1"))
			cfg, err := memberConfig(n.Node, secret.Set{})
			if err != nil {
				t.Fatal(err)
			}
			log := new(lines)
			cfg.ID, cfg.Name, cfg.BindPort, cfg.PeerPort, cfg.Join = "other", "other-build", 0, 1, []string{n.cluster.group.Addr().String()}
			cfg.ProtocolMin, cfg.ProtocolMax, cfg.Logger = version, version, slog.New(slog.NewTextHandler(log, nil))
			other, err := member.New(cfg)
			if err != nil {
				t.Fatal(err)
			}
			ctx, stop := context.WithCancel(t.Context())
			ended := make(chan error, 1)
			go func() { ended <- other.Run(ctx) }()
			defer func() {
				stop()
				if err := <-ended; err != nil {
					t.Error(err)
				}
			}()
			until(t, "each refuses the other", func() bool {
				st, err := n.Status(t.Context())
				return err == nil && len(st.Refused) == 1 && len(other.Refused()) == 1
			})
			theirs := fmt.Sprintf("it speaks protocol %d to %d, this node %d to %d", version, version, peer.ProtocolMin, peer.ProtocolMax)
			ours := fmt.Sprintf("it speaks protocol %d to %d, this node %d to %d", peer.ProtocolMin, peer.ProtocolMax, version, version)
			for who, c := range map[string]struct {
				log *lines
				say string
			}{"the node": {n.log, theirs}, "the other build": {log, ours}} {
				if got := c.log.String(); strings.Count(got, "member refused") != 1 || strings.Count(got, c.say) != 1 {
					t.Errorf("%s does not say %q once:\n%s", who, c.say, got)
				}
			}
			if st, err := n.Status(t.Context()); err != nil || len(st.Members) != 1 || st.Refused[0].Name != "other-build" || st.Refused[0].Reason != theirs {
				t.Errorf("status: %+v, %+v, %v", st.Members, st.Refused, err)
			}
		})
	}
}
