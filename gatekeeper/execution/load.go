package execution

import (
	"encoding/binary"
	"fmt"
	"iter"
	"time"

	"github.com/bifrost-rack/bifrost/gatekeeper/wal"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// loader makes a Table of a log.
type loader struct {
	t       *Table
	replies map[rpcpacket.ID]wal.Record
	order   []rpcpacket.ID // of replies
	cuts    []wal.Record
}

// Load returns the Table whose records a log has; those of other kinds are passed
// over. Attempts is as for New. It fails if the records contradict each other.
func Load(attempts uint16, records iter.Seq2[wal.Record, error]) (*Table, error) {
	l := &loader{t: New(attempts), replies: map[rpcpacket.ID]wal.Record{}}
	var calls []wal.Record
	for r, err := range records {
		if err != nil {
			return nil, err
		}
		switch r.Kind {
		case wal.KindCall:
			calls = append(calls, r)
		case wal.KindReply:
			l.replies[rpcpacket.ID(r.ID)] = r
			l.order = append(l.order, rpcpacket.ID(r.ID))
		case wal.KindCheckpoint:
			err = l.main(r)
		case wal.KindState:
			s := l.t.service(serviceHash(r.ID))
			s.last, s.folded, s.low, s.state, s.base = r.Order, r.Order, r.Order+1, r.Data, len(r.Data)
		case wal.KindSession:
			s := l.t.session(r.Caller.Address, sessionNumber(r.ID))
			s.floor, s.logged = r.Order, true
		case wal.KindCut:
			l.cuts = append(l.cuts, r)
		default: // the records of the other parts
		}
		if err != nil {
			return nil, err
		}
	}
	return l.t, l.finish(calls)
}

func (l *loader) finish(calls []wal.Record) error {
	for _, r := range l.cuts {
		n := l.t.node(r.Callee.Address)
		n.dead, n.gone, n.logged = r.Callee.Incarnation, r.Attempt != 0, true
	}
	for _, r := range calls {
		if err := l.call(r); err != nil {
			return err
		}
	}
	for _, r := range calls { // now that all parents are known
		l.attach(l.t.calls[rpcpacket.ID(r.ID)], r)
	}
	for _, id := range l.order {
		if err := l.reply(l.replies[id]); err != nil {
			return err
		}
	}
	for _, r := range l.cuts {
		if err := l.cut(r); err != nil {
			return err
		}
	}
	for _, k := range l.t.calls {
		s := l.t.service(k.service)
		switch {
		case k.order > 0 && k.stage == running:
			s.undecided[k.order], s.low = k, min(s.low, k.order)
		case k.stage == done:
			delete(s.enlisted, k)
		}
	}
	return nil
}

func (l *loader) main(r wal.Record) error {
	if len(r.Data) < 8 {
		return fmt.Errorf("execution: %s: %d bytes", r.Key(), len(r.Data))
	}
	n := l.t.node(r.Caller.Address)
	name, birth := r.Data[8:], uint64(0)
	if r.Attempt&directMark != 0 {
		if len(name) < 8 {
			return fmt.Errorf("execution: %s: %d bytes", r.Key(), len(r.Data))
		}
		birth, name = binary.BigEndian.Uint64(name), name[8:]
	}
	since := uint32(0)
	if r.Attempt&handedMark != 0 {
		if len(name) < 4 {
			return fmt.Errorf("execution: %s: %d bytes", r.Key(), len(r.Data))
		}
		since, name = binary.BigEndian.Uint32(name), name[4:]
	}
	m := &main{
		execution: execution{id: rpcpacket.ID(r.ID), at: n, children: map[*call]struct{}{}},
		name:      string(name), run: binary.BigEndian.Uint64(r.Data), birth: birth, since: since,
		incarnation: r.Caller.Incarnation, index: uint32(r.Order), datagram: r.Packet, committing: r.Attempt&committingMark != 0, handed: r.Attempt&handedMark != 0, //nolint:gosec // it was one
	}
	m.over = r.Attempt&overMark != 0
	if len(r.Packet) > 0 {
		p, err := rpcpacket.Parse(r.Packet)
		if err != nil {
			return fmt.Errorf("execution: %s: %w", r.Key(), err)
		}
		m.header, m.state, m.over = p.Header, stateOf(p.Trailer), p.Flags&rpcpacket.FlagDone != 0
	}
	l.t.mains[m.id] = m
	n.mains[m] = struct{}{}
	return nil
}

// call takes a call's record; whose child it is follows later.
func (l *loader) call(r wal.Record) error {
	p, err := rpcpacket.Parse(r.Packet)
	if err != nil || p.Call != rpcpacket.ID(r.ID) {
		return fmt.Errorf("execution: %s: a call that does not fit: %w", r.Key(), err)
	}
	n := l.t.node(r.Callee.Address)
	k := &call{
		execution: execution{id: p.Call, at: n, children: map[*call]struct{}{}},
		header:    p.Header, parent: p.Parent, caller: r.Caller.Address, service: p.Service, order: r.Order, print: printOf(&p), trail: trailOf(&p),
		oneway: p.Type == rpcpacket.Oneway, leases: lends(&p), hands: hands(&p), stage: running,
		incarnation: max(r.Callee.Incarnation, n.dead+1),
	}
	k.enlisted = p.Flags&rpcpacket.FlagEnlist != 0
	if p.Flags&rpcpacket.FlagSession != 0 && !k.enlisted {
		k.session = l.t.session(k.caller, p.Call.Session())
	}
	l.t.charge(k, len(r.Packet))
	s := l.t.service(k.service)
	s.last = max(s.last, k.order)
	switch {
	case k.enlisted && r.Attempt == serialMark:
		k.serial = true
		s.enlisted[k] = struct{}{}
	case r.Attempt != 0:
		k.record, k.incarnation = &r, 0
	}
	l.t.calls[k.id] = k
	return nil
}

// attach files a call under whom it belongs to, with its part of the journal.
func (l *loader) attach(k *call, r wal.Record) {
	p, _ := rpcpacket.Parse(r.Packet) // it was parsed before
	if _, answered := l.replies[k.id]; answered {
		k.stage = done
	}
	e, m := l.running(k.parent), l.t.mains[k.parent]
	l.t.sequence++
	k.sequence = l.t.sequence
	switch {
	case k.enlisted:
	case k.session != nil:
		k.session.calls[k] = struct{}{}
		k.settled = k.id.Sequence() < k.session.floor
	case e == nil, k.oneway && k.record == nil: // its parent has committed
		k.settled = true
	case m != nil && m.settled(&k.header) && !m.committing:
		k.settled = true // the checkpoint came later
	default:
		e.children[k] = struct{}{}
		e.journal = append(e.journal, journalOf(p.Trailer)...)
	}
	if k.stage != done {
		k.at.calls[k] = struct{}{}
	}
}

// running finds an execution that may still commit its children.
func (l *loader) running(id rpcpacket.ID) *execution {
	if k := l.t.calls[id]; k != nil {
		return &k.execution
	}
	if m := l.t.mains[id]; m != nil {
		return &m.execution
	}
	return nil
}

// reply takes an outcome's record. Without its call it is there for the state.
func (l *loader) reply(r wal.Record) error {
	p, err := rpcpacket.Parse(r.Packet)
	if err != nil || p.Call != rpcpacket.ID(r.ID) {
		return fmt.Errorf("execution: %s: an outcome that does not fit: %w", r.Key(), err)
	}
	k := l.t.calls[p.Call]
	if r.Order > 0 {
		l.change(p, r, k == nil)
	}
	if k == nil {
		return nil
	}
	k.incarnation, k.record = r.Callee.Incarnation, nil
	l.t.charge(k, len(r.Packet))
	// Whether its effects have left is not known, so they leave again.
	switch {
	case r.Attempt == abortedMark:
		k.stage = aborting
	case r.Attempt == movedMark:
		k.stage = done // the rest was in the same batch
		for child := range k.children {
			child.settled = true
		}
		k.children, k.journal = map[*call]struct{}{}, nil
		return nil
	case r.Callee.Incarnation == 0:
		k.stage = done // refused: nothing ran
		return nil
	default:
		k.stage = committing
	}
	k.at.calls[k] = struct{}{}
	l.t.settling(k)
	return nil
}

func (l *loader) change(p rpcpacket.Message, r wal.Record, alone bool) {
	s := l.t.service(p.Service)
	s.last = max(s.last, r.Order)
	if r.Order > s.folded {
		s.apply(p.Trailer)
	}
	switch {
	case alone:
		s.kept = append(s.kept, r.ID)
		s.bytes += len(r.Packet)
	default:
		s.sizes[p.Call] = len(r.Packet)
	}
}

// cut takes what a node's failures have cut off.
func (l *loader) cut(r wal.Record) error {
	if len(r.Data)%cutSize != 0 {
		return fmt.Errorf("execution: %s: %d bytes", r.Key(), len(r.Data))
	}
	for b := r.Data; len(b) > 0; b = b[cutSize:] {
		e := l.running(rpcpacket.ID(b[:16]))
		if e == nil {
			continue // it has ended since
		}
		e.attempts = uint16(b[16])<<8 | uint16(b[17])
		if b[18] != 0 {
			l.t.cut(e)
		}
	}
	return nil
}

// Resume emits again what a Gatekeeper that was killed may not have got done. It
// follows Load. Failures that were under way are for Fail and Fenced, as package
// recovery repeats them, and Up must be called for what is exported now.
func (t *Table) Resume(now time.Time) Output {
	all := map[*call]struct{}{}
	for _, k := range t.calls {
		all[k] = struct{}{}
	}
	for _, k := range sorted(all) {
		switch {
		case k.stage == committing:
			t.do(Commit{k.run()})
		case k.stage == aborting && !k.cut:
			k.stage = returning
			t.do(Return{k.id, true})
		case k.stage == running && k.at.gone:
			t.abort(k, goneError(k.at), now)
		case k.stage == done:
			t.forget(k)
		}
	}
	for _, n := range t.nodes {
		if n.logged && len(n.calls) == 0 {
			t.touch(n)
		}
	}
	mains := map[*main]struct{}{}
	for _, m := range t.mains {
		mains[m] = struct{}{}
	}
	for _, m := range sortedMains(mains) {
		if m.committing {
			t.do(Commit{m.current()})
		}
	}
	return t.take()
}

func serviceHash(id wal.ID) uint64 { return rpcpacket.ID(id).Sequence() }

func sessionNumber(id wal.ID) uint64 { return rpcpacket.ID(id).Session() }
