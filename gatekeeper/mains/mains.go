package mains

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"iter"
	"net/netip"
	"slices"

	"github.com/bifrost-rack/bifrost/gatekeeper/wal"
	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// Table is all durable mains that run, or that are over and whose nodes have not left.
type Table struct {
	mains map[rpcpacket.ID]*main
	out   Output
}

// Output is what an input has changed: records for the log, as one batch.
type Output struct {
	Put    []wal.Record
	Delete []wal.Key
}

// main is a durable main.
type main struct {
	id    rpcpacket.ID
	name  string
	at    wal.Node // that runs it, or has run it last
	run   uint64   // which of its runs this is
	birth uint64   // of the memory where its node has the ledger
	over  bool
	index uint32 // of its last checkpoint among its operations, if it has ended once
	asked *Question
}

// Question is a program's wish to run a main.
type Question struct {
	Main rpcpacket.ID // endpoint.MainID of the name
	Name string
	At   wal.Node
	// Run tells one run of a program from the next, so that a question which is repeated begins no other run. A later
	// run has a higher number: the id of the control request will do.
	Run uint64
	// Birth is that of the memory where the node has its ledger; 0 if it has none.
	Birth uint64
}

// New returns an empty Table.
func New() *Table { return &Table{mains: map[rpcpacket.ID]*main{}} }

func (t *Table) take() Output {
	o := t.out
	t.out = Output{}
	return o
}

// Begin says that a program asks to run a main. The error says why it may not. Admit lets it begin: at once unless wait says
// that a former run may have calls out which have leases. Then their callees read what memory machines have to take back first. A later
// question takes the place of one that waits.
func (t *Table) Begin(q Question) (wait bool, err error) {
	refuse := func(code fault.Code, format string, args ...any) (bool, error) {
		return false, fault.New(code, "main "+q.Name, format, args...)
	}
	m := t.mains[q.Main]
	switch {
	case q.Birth == 0:
		return refuse(fault.Unavailable, "node %s has no ledger, since no memory machine was in service when it joined: start its program again", q.At.Address)
	case m == nil:
		t.mains[q.Main] = &main{id: q.Main, name: q.Name, asked: &q}
		return false, nil
	case m.at.IsZero():
	case m.at.Address != q.At.Address && m.over:
		return refuse(fault.BadRequest, "it is over at node %s, which has not left: its program may not know it yet", m.at.Address)
	case m.at.Address != q.At.Address:
		return refuse(fault.BadRequest, "its checkpoints are in the ledger of node %s: run it there, or give the node up (bifrost undeploy, bifrost forget)", m.at.Address)
	case !m.over && m.birth != q.Birth:
		return refuse(fault.Unavailable, "the ledger is lost that had its checkpoints: undeploy its program, and deploy it anew; if somebody started it by hand, end it, and forget its node (bifrost nodes, bifrost forget NODE)")
	}
	m.asked = &q
	return !m.over && !m.at.IsZero() && (m.at != q.At || m.run != q.Run), nil
}

// Asked is the question about a main that has not been answered yet.
func (t *Table) Asked(id rpcpacket.ID) (q Question, asked bool) {
	if m := t.mains[id]; m != nil && m.asked != nil {
		return *m.asked, true
	}
	return q, false
}

// Admit lets the run begin that somebody has asked for last. What View says of the main then is the answer. A main that was over
// when its node failed stays so for the node's next incarnation; any other run after the end begins afresh, but its operations go
// on from the last one, so that its calls are not taken for former ones.
func (t *Table) Admit(id rpcpacket.ID) Output {
	m := t.mains[id]
	if m == nil || m.asked == nil {
		return t.take()
	}
	q := *m.asked
	if again := m.at == q.At && m.run == q.Run || m.at.Incarnation < q.At.Incarnation; m.over && !again {
		m.over = false
	}
	m.asked, m.at, m.run, m.birth = nil, q.At, q.Run, q.Birth
	t.keep(m)
	return t.take()
}

// Over takes the word of a node that a main is over, whose end is in the node's ledger. It may be told again.
func (t *Table) Over(id rpcpacket.ID, at wal.Node, index uint32) (Output, error) {
	m := t.mains[id]
	switch {
	case m == nil, m.at != at:
		return t.take(), fault.New(fault.Stale, "main", "main %s does not run at incarnation %d of node %s", id, at.Incarnation, at.Address)
	case m.over:
		return t.take(), nil
	case index <= m.index:
		return t.take(), fault.New(fault.BadRequest, "main", "main %s has gone on after operation %d", id, index)
	}
	m.index, m.over = index, true
	t.keep(m)
	return t.take(), nil
}

// Fail says that an incarnation of a node has failed: what it has asked is not answered any more.
func (t *Table) Fail(at wal.Node) {
	for _, m := range t.mains {
		if m.asked == nil || m.asked.At.Address != at.Address || m.asked.At.Incarnation > at.Incarnation {
			continue
		}
		if m.asked = nil; m.at.IsZero() {
			delete(t.mains, m.id) // it has never begun
		}
	}
}

// Leave says that a node leaves in order: nobody asks for its mains any more that are over.
func (t *Table) Leave(at wal.Node) Output {
	for _, m := range t.sorted() {
		if m.at == at && m.over {
			t.drop(m)
		}
	}
	return t.take()
}

// Disown forgets the mains of a node that is gone for good: nobody wants them to go on. It returns them.
func (t *Table) Disown(node netip.Addr) Output {
	for _, m := range t.sorted() {
		if m.at.Address == node {
			t.drop(m)
		}
	}
	return t.take()
}

// drop strikes a main out. A program that waits to run it may begin it anew.
func (t *Table) drop(m *main) {
	delete(t.mains, m.id)
	t.out.Delete = append(t.out.Delete, wal.Key{Kind: wal.KindMain, ID: wal.ID(m.id)})
}

func (t *Table) sorted() []*main {
	all := make([]*main, 0, len(t.mains))
	for _, m := range t.mains {
		all = append(all, m)
	}
	slices.SortFunc(all, func(a, b *main) int { return cmp.Or(cmp.Compare(a.name, b.name), a.id.Compare(b.id)) })
	return all
}

// View is a main as it is now.
type View struct {
	At    wal.Node
	Run   uint64
	Over  bool
	Index uint32 // of its last checkpoint among its operations, if it has ended once
}

// View returns a main that has begun; false if none is on record.
func (t *Table) View(id rpcpacket.ID) (View, bool) {
	m := t.mains[id]
	if m == nil || m.at.IsZero() {
		return View{}, false
	}
	return View{m.at, m.run, m.over, m.index}, true
}

// Known reports whether a main is on record.
func (t *Table) Known(id rpcpacket.ID) bool { return t.mains[id] != nil }

// Open reports whether a main has begun and is not over.
func (t *Table) Open(id rpcpacket.ID) bool {
	v, begun := t.View(id)
	return begun && !v.Over
}

// Runs reports whether a main that is not over is at a node: that says what becomes of the regions which the main frees.
func (t *Table) Runs(id rpcpacket.ID, at netip.Addr) bool {
	v, begun := t.View(id)
	return begun && !v.Over && v.At.Address == at
}

// At is how many mains a node has run that are on record, over or not, and how many of them are not over.
func (t *Table) At(node netip.Addr) (all, open int) {
	for _, m := range t.mains {
		if m.at.Address != node {
			continue
		}
		if all++; !m.over {
			open++
		}
	}
	return all, open
}

// overMark is the Attempt of a main that is over. The Data of a record are the run, the birth number and the name.
const overMark = 1

func (t *Table) keep(m *main) {
	data := binary.BigEndian.AppendUint64(nil, m.run)
	data = append(binary.BigEndian.AppendUint64(data, m.birth), m.name...)
	r := wal.Record{Kind: wal.KindMain, ID: wal.ID(m.id), Caller: m.at, Order: uint64(m.index), Data: data}
	if m.over {
		r.Attempt = overMark
	}
	t.out.Put = append(t.out.Put, r)
}

// Load returns the Table whose records a log has; those of other kinds are passed over.
func Load(records iter.Seq2[wal.Record, error]) (*Table, error) {
	t := New()
	for r, err := range records {
		if err != nil {
			return nil, err
		}
		if r.Kind != wal.KindMain {
			continue
		}
		if len(r.Data) < 16 || r.Attempt > overMark || r.Order > 1<<32-1 || r.Caller.IsZero() {
			return nil, fmt.Errorf("mains: %s: %d bytes, attempt %d, order %d", r.Key(), len(r.Data), r.Attempt, r.Order)
		}
		id := rpcpacket.ID(r.ID)
		t.mains[id] = &main{
			id: id, name: string(r.Data[16:]), at: r.Caller, run: binary.BigEndian.Uint64(r.Data), birth: binary.BigEndian.Uint64(r.Data[8:]),
			over: r.Attempt == overMark, index: uint32(r.Order), //nolint:gosec // checked
		}
	}
	return t, nil
}
