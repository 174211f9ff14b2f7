package crash

import (
	"bytes"
	"context"
	"fmt"
	"net/netip"
	"slices"

	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
	"github.com/bifrost-rack/bifrost/dsm/memory"
	"github.com/bifrost-rack/bifrost/gatekeeper"
	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/rpc/record"
)

// At the end the oracle looks at what the ledgers of the nodes have kept. Both copies of a machine have the same: a copy that was filled
// while a ledger was sealed, or went on, could have other chunks, and nobody would see that before the first copy fails. And nobody keeps
// the answer to a call whose caller is there, and has got it: each answer is forgotten by the node that has it.

// unequalLedger tells whose ledger the machine's copies have differently, "" if nobody's.
func unequalLedger(s *gatekeeper.Snapshot, first, second *memory.Server) string {
	for i := range s.Nodes {
		n := &s.Nodes[i]
		a, one, _ := first.ReadLedger(control.LedgerOf(n.Address))
		b, other, _ := second.ReadLedger(control.LedgerOf(n.Address))
		from := max(one.First, other.First)
		if one.Run != other.Run || one.Sealed != other.Sealed || one.Next != other.Next || !slices.EqualFunc(a[from-one.First:], b[from-other.First:], sameChunk) {
			return fmt.Sprintf("the copies have other ledgers of node %s: %+v and %+v", n.Name, one, other)
		}
	}
	return ""
}

func sameChunk(a, b dsmpacket.Chunk) bool {
	return a.Number == b.Number && a.Continues == b.Continues && bytes.Equal(a.Data, b.Data)
}

// judgeKept waits until the nodes have forgotten the answers that nobody asks for any more. A caller that has lost its ledger, or has
// called outside of exactly-once executions and then failed, does not know what it has asked for.
func (r *Run) judgeKept(ctx context.Context) error {
	if r.wasAway() {
		return nil
	}
	kept := ""
	var broken error
	err := r.idle(ctx, "an answer is kept", func(s *gatekeeper.Snapshot) bool {
		kept, broken = r.kept(s)
		return kept == "" || broken != nil
	})
	if broken != nil {
		return broken
	}
	if err != nil {
		r.ledger.complain("%s", kept)
	}
	return nil
}

// kept tells of an answer that a node keeps though the incarnation that has called is there, "" if there is none.
func (r *Run) kept(s *gatekeeper.Snapshot) (string, error) {
	there := map[netip.Addr]*gatekeeper.NodeState{}
	for i := range s.Nodes {
		there[s.Nodes[i].Address] = &s.Nodes[i]
	}
	for at, n := range there {
		state, err := r.stateOf(at)
		if err != nil {
			return "", fmt.Errorf("the ledger of node %s: %w", n.Name, err)
		}
		for _, e := range state.Executions() {
			of, incarnation, _ := e.Caller()
			if by := there[netip.AddrFrom16(of.Caller)]; e.Done != nil && !e.Forgotten && by != nil && by.Incarnation == incarnation {
				return fmt.Sprintf("node %s keeps the answer to call %s of node %s", n.Name, e.ID, by.Name), nil
			}
		}
	}
	return "", nil
}

// stateOf is what a node's ledger adds up to.
func (r *Run) stateOf(node netip.Addr) (*record.State, error) {
	var records [][]byte
	for _, name := range memoryBlades {
		server := r.rack.MemoryServer(name)
		if server == nil {
			continue
		}
		chunks, _, ok := server.ReadLedger(control.LedgerOf(node))
		if !ok {
			continue
		}
		var reader dsmpacket.Records
		for _, c := range chunks {
			if err := reader.Chunk(c, func(b []byte) { records = append(records, b) }); err != nil {
				return nil, err
			}
		}
		break
	}
	return record.Fold(records)
}
