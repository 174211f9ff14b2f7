package memory

import (
	"maps"
	"net/netip"
	"sync/atomic"

	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
	"github.com/bifrost-rack/bifrost/dsm/memory/store"
	"github.com/bifrost-rack/bifrost/internal/blame"
	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/fault"
)

// Metrics counts what a server has done since it began.
type Metrics struct {
	// Done and Failed count requests answered, by operation name ("alloc", "read",
	// "write", "free", "settle", "ledger"): with success, and with an error.
	Done, Failed map[string]uint64
	// BytesRead and BytesWritten count data that went to and came from clients.
	BytesRead, BytesWritten uint64
	// InPlace is how many bytes of data were received into their regions at once.
	InPlace uint64
	// Dropped counts datagrams without an answer, by reason: "malformed",
	// "foreign", "late" (a duplicate of a settled request), "dead" (settled
	// before it came), "filling" (a copy is not complete yet), "unsent" (the network did not take the reply).
	Dropped map[string]uint64
	// Refused counts requests by who has sent them: those without an answer that are
	// malformed or foreign, and those answered with an error.
	Refused []blame.Count
	// Undo is about what can be taken back; zero after Run has returned.
	Undo store.UndoStats
	// Ledgers is what ledgers take, and RefusedLedgers counts requests and commands about
	// them that were refused, by reason; zero after Run has returned.
	Ledgers        control.LedgerSpace
	RefusedLedgers map[string]uint64
}

const ops = int(dsmpacket.OpLedger) + 1

type metrics struct {
	done, failed            [ops]atomic.Uint64
	bytesRead, bytesWritten atomic.Uint64
	inPlace                 atomic.Uint64
	drops                   [store.DropReasons]atomic.Uint64
	unsent                  atomic.Uint64
	refused                 blame.Counts
}

// drop counts a datagram of a node without an answer.
func (m *metrics) drop(from netip.Addr, why store.Drop) {
	m.drops[why].Add(1)
	if why == store.Malformed || why == store.Foreign {
		m.refused.Add(from, why.String())
	}
}

func (m *metrics) count(from netip.Addr, op dsmpacket.Op, a *store.Answer) {
	if int(op) >= ops {
		op = dsmpacket.OpNone
	}
	if a.Header.Status != fault.OK {
		m.failed[op].Add(1)
		if a.Header.Status != fault.Overloaded { // which is asked for again
			m.refused.Add(from, a.Header.Status.String())
		}
		return
	}
	requests := 1 + uint64(a.Header.More)
	m.done[op].Add(requests)
	switch op {
	case dsmpacket.OpRead:
		m.bytesRead.Add(requests * a.Header.Length)
	case dsmpacket.OpWrite:
		m.bytesWritten.Add(a.Header.Length)
	default: // the others move no bytes
	}
}

// UndoOf is how many executions of a node have changed something that is neither committed nor taken back; 0 after Run has returned.
func (s *Server) UndoOf(node netip.Addr) (n int) {
	_ = s.now(func(st *store.Store) error { n = st.UndoOf(node); return nil })
	return n
}

// Metrics returns the counters as of now.
func (s *Server) Metrics() Metrics {
	m := Metrics{
		Done: map[string]uint64{}, Failed: map[string]uint64{}, Dropped: map[string]uint64{},
		BytesRead: s.metrics.bytesRead.Load(), BytesWritten: s.metrics.bytesWritten.Load(),
		Refused: s.metrics.refused.All(), InPlace: s.metrics.inPlace.Load(),
	}
	_ = s.now(func(st *store.Store) error {
		m.Undo, m.Ledgers, m.RefusedLedgers = st.Undo(), s.ledgers.space(), maps.Clone(s.ledgers.refused)
		return nil
	})
	for op := range dsmpacket.Op(ops) {
		m.Done[op.String()] = s.metrics.done[op].Load()
		m.Failed[op.String()] = s.metrics.failed[op].Load()
	}
	for d := store.NotDropped + 1; d < store.DropReasons; d++ {
		m.Dropped[d.String()] = s.metrics.drops[d].Load()
	}
	m.Dropped["unsent"] = s.metrics.unsent.Load()
	return m
}
