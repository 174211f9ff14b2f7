package execution

import (
	"encoding/binary"
	"net/netip"

	"github.com/bifrost-rack/bifrost/gatekeeper/wal"
	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// main is a durable main.
type main struct {
	execution
	name        string
	incarnation uint32 // of its node, in which it runs
	run         uint64 // number there
	index       uint32 // of its last checkpoint among its operations
	datagram    []byte // of the last checkpoint
	state       []byte // in it
	committing  bool   // the last checkpoint
	over        bool   // that was its end
	// birth is the birth number of the memory where its node has the ledger of a direct main; 0 if
	// it is not direct. Handed: what it does until its next checkpoint is logged here.
	birth  uint64
	handed bool
	since  uint32 // index of the last checkpoint before it was handed over, which its node's ledger has
	fresh  bool   // it has not begun yet
	header rpcpacket.Header
	asked  begin // that waits
}

// begin is a Begin that waits for its answer; no node for none.
type begin struct {
	at          *node
	incarnation uint32
	run         uint64
	birth       uint64
}

// Begin says that a program asks for what is logged of a durable main, which is
// how it begins, or begins again. Begun answers, when what the former run did
// since the last checkpoint is rolled back; the error is for a main that runs
// elsewhere. Run tells one run of a program from the next, so that a question
// which is repeated rolls nothing back: the id of the control request will do. id
// must be endpoint.MainID(name).
//
// A main that was over when its node failed stays so: its program may have died
// before it could know. Until that node has left, or is gone for good, the main does
// not begin elsewhere. Any other run after that begins afresh, but its numbers go
// on, so that its calls are not taken for former ones.
//
// Birth, if not 0, is that of the memory where the node has a ledger for checkpoints. A main that
// begins afresh is then direct: its checkpoints, its journal and its calls are in that ledger. From
// HandOver on they are here, until its next Checkpoint. It begins at no other node, and not with
// another ledger.
func (t *Table) Begin(id rpcpacket.ID, name string, at wal.Node, run, birth uint64) (Output, error) {
	n := t.node(at.Address)
	if at.Incarnation <= n.dead {
		return t.take(), fault.New(fault.Stale, "main "+name, "incarnation %d of node %s has failed", at.Incarnation, at.Address)
	}
	n.incarnation = at.Incarnation
	m := t.mains[id]
	switch {
	case m == nil:
		m = &main{execution: execution{id: id, at: n, children: map[*call]struct{}{}}, name: name, fresh: true}
		t.mains[id] = m
		n.mains[m] = struct{}{}
	case m.at != n && m.incarnation > m.at.dead && !m.over:
		return t.take(), fault.New(fault.BadRequest, "main "+name, "it runs at node %s", m.at.address)
	case m.at != n && m.birth != 0:
		return t.take(), fault.New(fault.BadRequest, "main "+name, "its checkpoints are in the ledger of node %s: run it there, or give the node up (bifrost undeploy, bifrost forget)", m.at.address)
	case m.birth != 0 && m.birth != birth:
		return t.take(), fault.New(fault.Unavailable, "main "+name, "the ledger is lost that had its checkpoints: undeploy its program, and deploy it anew")
	case m.at != n && m.over && !m.at.gone:
		return t.take(), fault.New(fault.BadRequest, "main "+name, "it is over at node %s, which has not left: its program may not know it yet", m.at.address)
	case m.incarnation == at.Incarnation && m.at == n && m.run != run && !m.cut && !m.over:
		t.cut(&m.execution) // its function has returned an error, and runs once more
		t.touch(n)
	}
	m.asked = begin{n, at.Incarnation, run, birth}
	t.tryRollback(&m.execution)
	t.readmit(m)
	return t.take(), nil
}

// readmit lets a main begin that has asked, if nothing is in its way.
func (t *Table) readmit(m *main) {
	if m.asked.at != nil && m.asked.incarnation <= m.asked.at.dead {
		m.asked = begin{} // whoever asked has failed
	}
	if m.asked.at == nil || m.cut || m.committing {
		return
	}
	n := m.asked.at
	delete(m.at.mains, m)
	n.mains[m] = struct{}{}
	again := m.asked.run == m.run || m.asked.incarnation > m.incarnation
	if m.over && (m.at != n || !again) {
		m.over, m.datagram, m.state, m.fresh = false, nil, nil, true // a new run, whose numbers go on
	}
	if m.fresh {
		m.fresh, m.birth = false, m.asked.birth
	}
	m.at, m.incarnation, m.run, m.asked = n, m.asked.incarnation, m.asked.run, begin{}
	t.keepMain(m)
	t.do(Begun{m.id, wal.Node{Address: m.at.address, Incarnation: m.incarnation}, m.run, m.over})
}

// Main returns what is logged of a main: the section of its last checkpoint's
// state, what it has journalled since, and the checkpoint's index; nothing for a
// main without a past.
func (t *Table) Main(id rpcpacket.ID) (state, journal []byte, index uint32) {
	m := t.mains[id]
	if m == nil {
		return nil, nil, 0
	}
	return m.state, m.journal, m.index
}

// Direct reports whether a main is direct, and whether it is handed over.
func (t *Table) Direct(id rpcpacket.ID) (direct, handed bool) {
	m := t.mains[id]
	return m != nil && m.birth != 0, m != nil && m.handed
}

// Run is the number of a main's present run, or its last one.
func (t *Table) Run(id rpcpacket.ID) uint64 {
	if m := t.mains[id]; m != nil {
		return m.run
	}
	return 0
}

// Directs reports whether a main is direct at a node, which then says what becomes of the regions that the main frees.
func (t *Table) Directs(id rpcpacket.ID, at netip.Addr) bool {
	m := t.mains[id]
	return m != nil && m.birth != 0 && m.at.address == at
}

// atLedger reports whether what a main does is in its node's ledger.
func (m *main) atLedger() bool { return m.birth != 0 && !m.handed }

// HandOver takes the word of a direct main that its journal and its calls are here from now on, and
// its next checkpoint. It is logged, and then acknowledged. The header's index is that of the main's
// last checkpoint.
func (t *Table) HandOver(r Request) (Verdict, Output) {
	h := &r.Message.Header
	m := t.mains[h.Parent]
	if m == nil || h.CallerIncarnation != r.Caller.Incarnation || !t.runs(h.Parent, r.Caller) {
		return Stale, t.take()
	}
	v := Done
	if m.atLedger() && h.Index >= m.index { // else a late copy: it has been direct again since
		v, m.handed, m.since = Fresh, true, h.Index
		t.keepMain(m)
	}
	t.do(Ack{Call: h.Call, To: r.Caller.Address})
	return v, t.take()
}

// Checkpoint takes a main's held checkpoint: it is logged, commits all that the
// main has done, and is then acknowledged. Of a direct main only the end comes here; one that was
// handed over is direct again.
func (t *Table) Checkpoint(r Request) (Verdict, Output) {
	h := &r.Message.Header
	m := t.mains[h.Parent]
	over := h.Flags&rpcpacket.FlagDone != 0
	switch {
	case h.CallerIncarnation != r.Caller.Incarnation || r.Caller.Incarnation <= t.node(r.Caller.Address).dead:
		return Stale, t.take()
	case m == nil, m.cut, m.at.address != r.Caller.Address, m.incarnation != r.Caller.Incarnation:
		return Stale, t.take()
	case m.committing:
		return Waiting, t.take()
	case h.Index <= m.index:
		t.do(Ack{Call: h.Call, To: r.Caller.Address})
		return Done, t.take()
	}
	m.header = *h
	m.index, m.over, m.committing, m.handed = h.Index, over, true, false
	if over {
		m.birth = 0
	}
	m.datagram, m.state = r.Datagram, stateOf(r.Message.Trailer)
	t.keepMain(m)
	t.do(Commit{m.current()})
	return Fresh, t.take()
}

// EndMain takes the word of a node that a direct main is over, whose end is in the node's ledger. It may be told again.
func (t *Table) EndMain(id rpcpacket.ID, at wal.Node, index uint32) (Output, error) {
	m := t.mains[id]
	switch {
	case m == nil, m.cut, m.at.address != at.Address, m.incarnation != at.Incarnation, m.handed:
		return t.take(), fault.New(fault.Stale, "main", "main %s does not run at incarnation %d of node %s", id, at.Incarnation, at.Address)
	case m.over:
		return t.take(), nil
	case index <= m.index:
		return t.take(), fault.New(fault.BadRequest, "main", "main %s has gone on after operation %d", id, index)
	}
	m.index, m.over, m.birth, m.datagram, m.state = index, true, 0, nil, nil
	t.keepMain(m)
	t.settleChildren(&m.execution)
	return t.take(), nil
}

// settled reports whether a call belongs to what a main did before its last
// checkpoint. The trunk's branches have the numbers of the operations that opened
// them; those of nested ones (endpoint.ChildBranch) say nothing, so the runtime
// tells in Floor after which checkpoint it sends.
func (m *main) settled(h *rpcpacket.Header) bool {
	const nested = 1 << 31
	switch {
	case h.Branch == 0:
		return h.Index <= m.index
	case h.Branch < nested:
		return h.Branch <= m.index
	}
	return h.Floor < uint64(m.index)
}

// current is the main's present run, as of its last checkpoint. Of one that is direct the node knows that.
func (m *main) current() Run {
	return Run{m.id, wal.Node{Address: m.at.address, Incarnation: m.incarnation}, m.run, max(m.index, m.since), m.atLedger()}
}

// checkpointed ends a checkpoint.
func (t *Table) checkpointed(m *main) {
	m.committing = false
	t.settleChildren(&m.execution)
	if m.incarnation > m.at.dead {
		t.do(Ack{Call: m.header.Call, To: m.at.address})
	}
	t.keepMain(m)
	if m.over && m.cut {
		m.cut, m.rolling = false, false
		m.at.cuts--
		t.touch(m.at)
		t.whole(m.at)
	}
	t.tryRollback(&m.execution)
	t.readmit(m)
}

// keepMain writes a main down.
func (t *Table) keepMain(m *main) {
	r := wal.Record{
		Kind: wal.KindCheckpoint, ID: wal.ID(m.id), Caller: wal.Node{Address: m.at.address, Incarnation: m.incarnation},
		Order: uint64(m.index), Packet: m.datagram, Data: binary.BigEndian.AppendUint64(nil, m.run),
	}
	if m.committing {
		r.Attempt |= committingMark
	}
	if m.birth != 0 {
		r.Attempt |= directMark
		r.Data = binary.BigEndian.AppendUint64(r.Data, m.birth)
	}
	if m.over && m.datagram == nil {
		r.Attempt |= overMark
	}
	if m.handed {
		r.Attempt |= handedMark
		r.Data = binary.BigEndian.AppendUint32(r.Data, m.since)
	}
	r.Data = append(r.Data, m.name...)
	t.put(r)
}

// The Attempt of a main's record is the sum of these: its last checkpoint is being committed; it is
// direct, and the birth number stands before its name; it is handed over, and the index of the last checkpoint in its
// node's ledger stands there, too.
const (
	committingMark = 1
	directMark     = 2
	handedMark     = 4
	overMark       = 8 // it is over, by its node's ledger
)
