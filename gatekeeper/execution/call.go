package execution

import (
	"encoding/binary"
	"hash/maphash"
	"time"

	"github.com/bifrost-rack/bifrost/gatekeeper/wal"
	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
	"github.com/bifrost-rack/bifrost/rpc/trailer"
)

// Request is a held CALL, ONEWAY or checkpoint.
type Request struct {
	Message *rpcpacket.Message
	// Datagram is what Message was parsed from; the record keeps it.
	Datagram []byte
	// Caller is who the identity table says sent it, in its present incarnation.
	Caller wal.Node
	// Callee is where the routes lead; Refusal, if set, why they lead nowhere. Both
	// are used if the call is new.
	Callee  wal.Node
	Refusal *fault.Error
	// Serial: the callee runs the service's calls one at a time, in order.
	Serial bool
	Now    time.Time
}

// request is what of a Request is needed until it is logged.
type request struct {
	datagram []byte
	journal  []byte
	caller   wal.Node
	serial   bool
	now      time.Time
}

// fingerprint stands for what a call asks: a replay must ask the same. It is not
// logged but made anew of the packets that are, so its seed is this process's own.
type fingerprint uint64

var seed = maphash.MakeSeed()

func printOf(m *rpcpacket.Message) fingerprint {
	var h maphash.Hash
	h.SetSeed(seed)
	_ = h.WriteByte(byte(m.Type)) // maphash has no errors
	_, _ = h.Write(m.Method[:])
	_, _ = h.Write(binary.BigEndian.AppendUint64(nil, m.Service))
	_, _ = h.Write(binary.BigEndian.AppendUint64(nil, uint64(len(m.Pointers))))
	for _, p := range m.Pointers {
		_, _ = h.Write(p[:])
	}
	_, _ = h.Write(m.Payload)
	return fingerprint(h.Sum64())
}

// Call takes a held CALL or ONEWAY of a policy other than none.
func (t *Table) Call(r Request) (Verdict, Output) {
	h := &r.Message.Header
	if h.CallerIncarnation != r.Caller.Incarnation || r.Caller.Incarnation <= t.node(r.Caller.Address).dead {
		return Stale, t.take()
	}
	if k := t.calls[h.Call]; k != nil {
		return t.again(k, r), t.take()
	}
	if h.Flags&rpcpacket.FlagSession != 0 {
		return t.fromSession(r), t.take()
	}
	if m := t.mains[h.Parent]; m != nil && m.settled(h) {
		return Stale, t.take() // a late copy: its checkpoint has struck it out
	}
	if !t.runs(h.Parent, r.Caller) {
		t.except(&r, fault.New(fault.Stale, "call", "execution %s does not run here", h.Parent))
		return Refused, t.take()
	}
	return t.begin(r, nil), t.take()
}

// runs reports whether an execution is logged as running at just that node and
// incarnation.
func (t *Table) runs(id rpcpacket.ID, at wal.Node) bool {
	if k := t.calls[id]; k != nil {
		return k.stage == running && !k.cut && k.at.address == at.Address && k.incarnation == at.Incarnation
	}
	m := t.mains[id]
	return m != nil && !m.cut && !m.committing && !m.over && m.at.address == at.Address && m.incarnation == at.Incarnation
}

func (t *Table) except(r *Request, why *fault.Error) {
	t.do(Except{r.Message.Call, r.Caller.Address, why})
}

// again takes another copy of a known call.
func (t *Table) again(k *call, r Request) Verdict {
	switch {
	case k.caller != r.Caller.Address:
		t.except(&r, fault.New(fault.BadRequest, "call", "the call id belongs to another node"))
		return Refused
	case k.discarded:
		return Waiting // it never was; this one comes again
	case k.print != printOf(r.Message):
		t.except(&r, fault.New(fault.Nondeterminism, "call", "call %s was another when it was logged", k.id))
		t.do(Diverged{k.id, k.parent})
		return Diverges
	}
	k.astray = k.astray || k.trail != trailOf(r.Message)
	switch {
	case k.stage == admitting:
		return Waiting
	case k.hands && t.held(k):
		if p := t.owner(k.parent); p == nil || !p.cut {
			t.do(Hand{k.id})
		}
		return Waiting
	case k.oneway:
		t.do(Ack{Call: k.id, To: k.caller, Replay: k.astray}) // it is logged, which is all that the caller waits for
		return Done
	case k.stage == done:
		t.do(Answer{k.id, k.caller, k.astray})
		return Done
	case t.deliverable(k):
		t.deliver(k, true)
		t.chase(k)
		return Running
	}
	return Waiting
}

// trailOf stands for a message's trailer.
func trailOf(m *rpcpacket.Message) fingerprint { return fingerprint(maphash.Bytes(seed, m.Trailer)) }

// begin puts a new call on record.
func (t *Table) begin(r Request, s *session) Verdict {
	h := &r.Message.Header
	n := t.node(r.Callee.Address)
	k := &call{
		execution: execution{id: h.Call, at: n, children: map[*call]struct{}{}},
		header:    *h, parent: h.Parent, caller: r.Caller.Address, service: h.Service, print: printOf(r.Message), trail: trailOf(r.Message),
		oneway: h.Type == rpcpacket.Oneway, leases: lends(r.Message), hands: hands(r.Message), stage: admitting, session: s,
		request: &request{r.Datagram, journalOf(r.Message.Trailer), r.Caller, r.Serial, r.Now},
	}
	t.adopt(k)
	t.charge(k, len(r.Datagram))
	if r.Refusal != nil {
		t.admitted(k, r.Refusal)
		return Refused
	}
	t.do(Admit{k.id})
	return Fresh
}

// lends reports whether a call lends its callee regions. (A one-way hands them over.)
func lends(m *rpcpacket.Message) bool { return m.Type == rpcpacket.Call && len(m.Pointers) > 0 }

// hands reports whether a one-way hands its callee regions.
func hands(m *rpcpacket.Message) bool { return m.Type == rpcpacket.Oneway && len(m.Pointers) > 0 }

// adopt files a call under whom it belongs to.
func (t *Table) adopt(k *call) {
	t.sequence++
	k.sequence = t.sequence
	t.calls[k.id] = k
	k.at.calls[k] = struct{}{}
	if k.enlisted {
		return // its callee says when nobody asks for it any more
	}
	if k.session != nil {
		k.session.calls[k] = struct{}{}
	} else if p := t.owner(k.parent); p != nil {
		p.children[k] = struct{}{}
	} else {
		k.settled = true
	}
}

// journalOf returns the entries of a trailer that an execution replays by.
func journalOf(b []byte) (journal []byte) {
	sections, err := trailer.Parse(b)
	if err != nil {
		return nil // the runtime that sent it would find nothing in it either
	}
	for _, s := range sections {
		if s.Type.Journal() {
			journal = s.Append(journal)
		}
	}
	return journal
}

// Admitted answers Admit. Why, if not nil, is the refusal: it is logged as the
// outcome, so that a replay gets the same.
func (t *Table) Admitted(id rpcpacket.ID, why *fault.Error) Output {
	k := t.calls[id]
	switch {
	case k == nil || k.stage != admitting:
	case k.discarded:
		if why == nil {
			t.do(Drop{id})
		}
		p := t.owner(k.parent)
		t.remove(k)
		if p != nil {
			t.tryRollback(p)
		}
	default:
		t.admitted(k, why)
	}
	return t.take()
}

// Handed answers Hand.
func (t *Table) Handed(id rpcpacket.ID) Output {
	if k := t.calls[id]; k != nil && k.oneway {
		t.do(Ack{Call: k.id, To: k.caller, Replay: k.astray})
	}
	return t.take()
}

// Withheld are the one-ways of an execution that wait for its commit and hand regions
// over. When it is rolled back, it has these again.
func (t *Table) Withheld(parent rpcpacket.ID) (ids []rpcpacket.ID) {
	e := t.owner(parent)
	if e == nil {
		return nil
	}
	for _, k := range sorted(e.children) {
		if k.hands && k.stage == running && t.held(k) {
			ids = append(ids, k.id)
		}
	}
	return ids
}

// admitted logs a call, and lets it go if it may.
func (t *Table) admitted(k *call, why *fault.Error) {
	q := k.request
	k.request, k.stage = nil, running
	if p := t.owner(k.parent); p != nil && k.session == nil {
		p.journal = append(p.journal, q.journal...)
	}
	k.record = &wal.Record{
		Kind: wal.KindCall, ID: wal.ID(k.id), Time: q.now, Parent: k.parent, Caller: q.caller, Callee: k.at.next(), Packet: q.datagram,
	}
	switch {
	case why != nil:
	case q.serial:
		k.record.Attempt = unnumbered
	case t.held(k):
		k.record.Attempt = withheld
	}
	t.number(k)
	if k.oneway {
		t.do(Ack{Call: k.id, To: k.caller, Replay: k.astray})
	}
	switch {
	case why != nil:
		t.outcome(k, exception(&k.header, why), 0, q.now)
		t.finish(k)
	case k.at.gone:
		t.abort(k, goneError(k.at), q.now)
	default:
		t.release(k)
	}
}

// The Attempts of a one-way that waits for its parent's commit: unnumbered if it goes to
// a stateful service, else withheld. Other calls have 0.
const (
	unnumbered = 1
	withheld   = 2
)

// number logs a call; for a stateful service with its number. A one-way gets that
// only when its parent has committed, lest the service's next calls wait for it, and is
// then logged once more: it has left.
func (t *Table) number(k *call) {
	if t.held(k) {
		t.put(*k.record)
		return
	}
	if k.record.Attempt == unnumbered {
		t.service(k.service).number(k)
	}
	k.record.Attempt, k.record.Order, k.record.Callee = 0, k.order, k.at.next()
	t.put(*k.record)
	k.record = nil
}
