package rpc

import (
	"encoding/binary"
	"hash/fnv"
	"slices"
	"sync"

	"github.com/bifrost-rack/bifrost/dsm"
	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/rpc/packet"
	"github.com/bifrost-rack/bifrost/rpc/record"
	"github.com/bifrost-rack/bifrost/rpc/trailer"
)

// shadow writes a node's ledger beside what the Gatekeeper logs (gatekeeper.LedgersShadow).
// Nothing is recovered from it: it is there to be compared. Durable mains are not in it,
// and nothing is ever forgotten.
//
//	child call, effect ◀── begun, journal settled        REPLY ◀── done settled
//	                                                     ACK ──▶ over
type shadow struct {
	node  *Node
	place control.LedgerPlace

	mu     sync.Mutex
	ledger *dsm.Ledger // nil before the first record
	lost   error       // nothing is written any more
	// Of the node's first incarnation, which alone knows all records: what they add up to,
	// and what bases are written by.
	state record.State
	since int // bytes since the last base
	owing int // executions that are done and not over
}

// leastBase is how many bytes of records are not worth a base.
const leastBase = 8 << 10

func newShadow(n *Node) *shadow {
	if n.self.Ledger == nil {
		return nil
	}
	return &shadow{node: n, place: *n.self.Ledger}
}

// write adds records, and returns the number of the last one.
func (s *shadow) write(rs ...record.Record) (n uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.lost != nil {
		return 0
	}
	if s.ledger == nil {
		l, err := s.node.memory.OpenLedger(dsm.LedgerConfig{Machine: s.place.Machine, Birth: s.place.Birth, Run: s.node.self.Incarnation})
		if err != nil {
			s.lose(err)
			return 0
		}
		s.ledger = l
	}
	for _, r := range rs {
		b := record.Append(nil, r)
		s.since += len(b)
		s.apply(r)
		n = s.ledger.Append(b)
	}
	if s.first() && s.owing == 0 && s.since > leastBase {
		b := record.Append(nil, s.state.Base())
		s.apply(s.state.Base())
		s.since = -len(b) // the next one when there is twice as much
		n = s.ledger.Base(b)
	}
	return n
}

// first reports whether the node has written all of its ledger itself.
func (s *shadow) first() bool { return s.node.self.Incarnation == 1 }

// apply keeps what the records add up to.
func (s *shadow) apply(r record.Record) {
	if !s.first() {
		return
	}
	switch r.Kind() {
	case record.KindDone:
		s.owing++
	case record.KindOver:
		s.owing--
	}
	if err := s.state.Apply(r); err != nil {
		s.node.log.Error("rpc: a ledger's record does not follow from those before it", "node", s.node.self.Name, "err", err)
	}
}

// lose gives the ledger up. The caller holds s.mu.
func (s *shadow) lose(why error) {
	if s.lost == nil {
		s.lost = why
		s.node.log.Warn("rpc: the node's ledger is lost", "node", s.node.self.Name, "err", why)
	}
}

// settle waits until a record is settled. If that will never be, the call goes on without:
// the Gatekeeper's log is what counts.
func (s *shadow) settle(n uint64) {
	s.mu.Lock()
	ledger, lost := s.ledger, s.lost
	s.mu.Unlock()
	if lost != nil || ledger == nil || n == 0 {
		return
	}
	if err := ledger.Wait(s.node.base, n); err != nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.lose(err)
	}
}

// inked is what the ledger has of an execution. The execution's mutex guards it.
type inked struct {
	begun  bool
	last   uint64 // the execution's last record
	called []record.Call
}

// durable makes sure, before an execution does what others see and rollback does not
// undo, that the ledger has it as begun, with what it has journalled so far. A child is
// the exactly-once call that is about to leave, if any.
func (e *execution) durable(child packet.ID) {
	s := e.node.shadow
	if s == nil || e.export == nil || e.journal == nil {
		return
	}
	e.promote()
	e.mu.Lock()
	if call := (record.Call{ID: child}); !child.IsZero() && !slices.Contains(e.inked.called, call) {
		e.inked.called = append(e.inked.called, call)
	}
	var rs []record.Record
	if !e.inked.begun {
		e.inked.begun = true
		rs = append(rs, e.asBegun())
	}
	if entries := e.journal.unwritten(); len(entries) > 0 {
		rs = append(rs, &record.Journal{Execution: e.call.Call, Entries: entries})
	}
	if len(rs) > 0 {
		e.inked.last = s.write(rs...)
	}
	last := e.inked.last
	e.mu.Unlock()
	s.settle(last)
}

func (e *execution) asBegun() *record.Begun {
	call := packet.Message{Header: e.call.Header, Pointers: e.call.Pointers, Payload: e.call.Payload}
	return &record.Begun{
		Execution: e.call.Call, Caller: e.from.Addr().As16(), Incarnation: e.call.CallerIncarnation,
		Attempt: uint32(e.call.Attempt), Call: call.Append(nil),
	}
}

// done writes the commit of an execution down, and waits until it is settled: only then may
// its answer leave.
func (s *shadow) done(e *execution, datagram []byte) {
	if s == nil {
		return
	}
	m, err := packet.Parse(datagram)
	if err != nil {
		s.node.log.Error("rpc: an answer that is no message", "call", e.call.Call.String(), "err", err)
		return
	}
	d := &record.Done{
		Execution: e.call.Call, Caller: e.from.Addr().As16(), Arguments: argumentsOf(&e.call), Service: e.export.hash, Order: e.call.Order,
		State: changesIn(m.Trailer),
	}
	m.Trailer = nil
	d.Answer = m.Append(nil)
	e.promote()
	e.mu.Lock()
	d.Owed.Called = e.inked.called
	e.mu.Unlock()
	s.settle(s.write(d))
}

// over notes that the Gatekeeper has acknowledged an answer.
func (s *shadow) over(id packet.ID) {
	if s != nil {
		s.write(&record.Over{Execution: id})
	}
}

// argumentsOf tells calls apart that have the same id.
func argumentsOf(m *packet.Message) uint64 {
	h := fnv.New64a()
	_, _ = h.Write(binary.BigEndian.AppendUint64(nil, m.Service)) // never fails
	_, _ = h.Write(m.Method[:])
	for _, p := range m.Pointers {
		_, _ = h.Write(p[:])
	}
	_, _ = h.Write(m.Payload)
	return h.Sum64()
}

// changesIn are the sections of a trailer that say what has become of a state.
func changesIn(b []byte) (changes []byte) {
	sections, err := trailer.Parse(b)
	if err != nil {
		return nil
	}
	for _, s := range sections {
		if s.Type == trailer.Snapshot || s.Type == trailer.Delta {
			changes = s.Append(changes)
		}
	}
	return changes
}
