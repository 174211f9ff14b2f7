package execution

import (
	"github.com/bifrost-rack/bifrost/gatekeeper/log"
	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/rpc/packet"
)

// main is a durable main.
type main struct {
	execution
	name        string
	incarnation uint32 // of its node, in which it runs; 0 while it is to be begun
	index       uint32 // of its last checkpoint among its operations
	datagram    []byte // of the last checkpoint
	state       []byte // in it
	committing  bool   // the last checkpoint
	over        bool   // that is its end
	header      packet.Header
	asked       uint32 // incarnation of asker that waits to begin
	asker       *node
}

// Begin says that a program asks for what is logged of a durable main, which is
// how it begins, or begins again. Begun answers, when what the former run did
// since the last checkpoint is rolled back; the error is for a main that runs
// elsewhere. id must be endpoint.MainID(name).
func (t *Table) Begin(id packet.ID, name string, at log.Node) (Output, error) {
	n := t.node(at.Address)
	if at.Incarnation <= n.dead {
		return t.take(), fault.New(fault.Stale, "main "+name, "incarnation %d of node %s has failed", at.Incarnation, at.Address)
	}
	n.incarnation = at.Incarnation
	m := t.mains[id]
	switch {
	case m == nil:
		m = &main{execution: execution{id: id, at: n, children: map[*call]struct{}{}}, name: name}
		t.mains[id] = m
		n.mains[m] = struct{}{}
	case m.at != n && m.incarnation > m.at.dead:
		return t.take(), fault.New(fault.BadRequest, "main "+name, "it runs at node %s", m.at.address)
	case m.incarnation == at.Incarnation && m.at == n && !m.cut:
		t.cut(&m.execution) // its function has returned an error, and runs once more
		t.touch(n)
	}
	m.asked, m.asker = at.Incarnation, n
	t.tryRollback(&m.execution)
	t.readmit(m)
	return t.take(), nil
}

// readmit lets a main begin that has asked, if nothing is in its way.
func (t *Table) readmit(m *main) {
	if m.asked == 0 || m.cut || m.committing {
		return
	}
	if n := m.asker; n != m.at { // it has moved
		delete(m.at.mains, m)
		m.at, n.mains[m] = n, struct{}{}
	}
	m.incarnation, m.asked = m.asked, 0
	t.keepMain(m)
	t.do(Begun{m.id})
}

// Main returns what is logged of a main: the section of its last checkpoint's
// state, what it has journalled since, and the checkpoint's index; nothing for a
// main without a past.
func (t *Table) Main(id packet.ID) (state, journal []byte, index uint32) {
	m := t.mains[id]
	if m == nil {
		return nil, nil, 0
	}
	return m.state, m.journal, m.index
}

// Checkpoint takes a main's held checkpoint: it is logged, commits all that the
// main has done, and is then acknowledged.
func (t *Table) Checkpoint(r Request) (Verdict, Output) {
	h := &r.Message.Header
	m := t.mains[h.Parent]
	over := h.Flags&packet.FlagDone != 0
	switch {
	case h.CallerIncarnation != r.Caller.Incarnation || r.Caller.Incarnation <= t.node(r.Caller.Address).dead:
		return Stale, t.take()
	case m == nil && over: // it is struck out already
		t.do(Ack{Call: h.Call, To: r.Caller.Address})
		return Done, t.take()
	case m == nil, m.cut, m.at.address != r.Caller.Address, m.incarnation != r.Caller.Incarnation:
		return Stale, t.take()
	case m.committing:
		return Waiting, t.take()
	case h.Index <= m.index:
		t.do(Ack{Call: h.Call, To: r.Caller.Address})
		return Done, t.take()
	}
	m.header = *h
	m.index, m.over, m.committing = h.Index, over, true
	m.datagram, m.state = r.Datagram, stateOf(r.Message.Trailer)
	t.keepMain(m)
	t.do(Commit{m.id})
	return Fresh, t.take()
}

// checkpointed ends a checkpoint.
func (t *Table) checkpointed(m *main) {
	m.committing = false
	t.settleChildren(&m.execution)
	if m.incarnation > m.at.dead {
		t.do(Ack{Call: m.header.Call, To: m.at.address})
	}
	if !m.over {
		t.keepMain(m)
		t.tryRollback(&m.execution)
		t.readmit(m)
		return
	}
	delete(t.mains, m.id)
	delete(m.at.mains, m)
	if m.cut {
		m.at.cuts--
		t.touch(m.at)
		t.whole(m.at)
	}
	t.strike(log.KindCheckpoint, log.ID(m.id))
}

// keepMain writes a main down.
func (t *Table) keepMain(m *main) {
	r := log.Record{
		Kind: log.KindCheckpoint, ID: log.ID(m.id), Caller: log.Node{Address: m.at.address, Incarnation: m.incarnation},
		Order: uint64(m.index), Packet: m.datagram, Data: []byte(m.name),
	}
	if m.committing {
		r.Attempt = 1
	}
	t.put(r)
}
