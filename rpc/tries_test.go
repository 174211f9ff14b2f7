package rpc

import (
	"log/slog"
	"net/netip"
	"slices"
	"testing"

	"github.com/bifrost-rack/bifrost/internal/join"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
	"github.com/bifrost-rack/bifrost/rpc/record"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// TestTriesInTheLedger: an execution sends a call to a node that refuses it, to another one, and then to the first one again, which
// is back. The ledger says so, or the next run would go to the node that has refused last. So it is with few calls, and with many.
func TestTriesInTheLedger(t *testing.T) {
	n := &Node{self: join.Identity{Incarnation: 1}, log: slog.New(slog.DiscardHandler)}
	n.ledger = newLedger(n)
	journal, err := newJournal(nil, newLifetime("test"))
	if err != nil {
		t.Fatal(err)
	}
	e := &execution{node: n, export: new(export), journal: journal, recorded: recorded{begun: true}}
	var want []record.Call
	for i := range byte(3 * fewCalls) {
		id := rpcpacket.ID{1, i}
		if to := e.bound(id); to.IsValid() {
			t.Errorf("call %d, which was not made, goes to %s", i, to)
		}
		for _, node := range []uint64{1, 2, 1, 1} {
			k := record.Call{ID: id, Node: rackaddr.Node(node).As16()}
			if len(want) == 0 || want[len(want)-1] != k {
				want = append(want, k)
			}
			if !e.durable(k) {
				t.Fatal("the node has ended")
			}
			if to := e.bound(id); to != netip.AddrFrom16(k.Node) {
				t.Errorf("the next run goes to %s, this one to %s", to, rackaddr.Node(node))
			}
			e.recorded.refused = append(e.recorded.refused, k)
			if to := e.bound(id); to.IsValid() {
				t.Errorf("%s has refused the call", to)
			}
			e.unrefused(id)
		}
	}
	if !slices.Equal(e.recorded.called, want) {
		t.Errorf("the ledger has %v, want %v", e.recorded.called, want)
	}
}
