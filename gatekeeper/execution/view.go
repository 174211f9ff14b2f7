package execution

import (
	"net/netip"

	"github.com/bifrost-rack/bifrost/gatekeeper/wal"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// View is one call as it is now.
type View struct {
	Header rpcpacket.Header
	Caller netip.Addr
	// Callee is to which incarnation of which node it was delivered last; incarnation
	// 0 means to none yet.
	Callee wal.Node
	Order  uint64 // its number in a stateful service, else 0
	// Attempts is how often its execution was cut off.
	Attempts uint16
	Stage    string // admitting, running, aborting, committing, returning or done
	// Held: a one-way that waits for its parent's commit. Cut: its node has failed, and
	// what it did is not rolled back yet. Lends: it lends its callee regions.
	Held, Cut, Lends bool
}

var stages = [...]string{"", "admitting", "running", "aborting", "committing", "returning", "done", ""}

// String returns the stage's name.
func (s stage) String() string { return stages[s&7] }

// View returns a call that is on record, done ones included.
func (t *Table) View(id rpcpacket.ID) (View, bool) {
	k := t.calls[id]
	if k == nil {
		return View{}, false
	}
	return t.view(k), true
}

func (t *Table) view(k *call) View {
	return View{
		Header: k.header, Caller: k.caller, Callee: wal.Node{Address: k.at.address, Incarnation: k.incarnation}, Order: k.order,
		Attempts: k.attempts, Stage: k.stage.String(), Held: k.stage == running && t.held(k), Cut: k.cut, Lends: k.leases,
	}
}

// All calls yield for every call on record, in no order, until that returns false.
func (t *Table) All(yield func(View) bool) {
	for _, k := range t.calls {
		if !yield(t.view(k)) {
			return
		}
	}
}

// Where returns the node that runs an execution, or ran it last; false if the
// execution is not known.
func (t *Table) Where(id rpcpacket.ID) (netip.Addr, bool) {
	if k := t.calls[id]; k != nil {
		return k.at.address, true
	}
	if m := t.mains[id]; m != nil {
		return m.at.address, true
	}
	return netip.Addr{}, false
}

// Journal returns what an execution has journalled, if it is logged as running at
// just that node and incarnation.
func (t *Table) Journal(id rpcpacket.ID, at wal.Node) (journal []byte, ok bool) {
	if !t.runs(id, at) {
		return nil, false
	}
	if k := t.calls[id]; k != nil {
		return k.journal, true
	}
	return t.mains[id].journal, true
}

// Over reports whether an execution is a durable main that has come to its end,
// and where.
func (t *Table) Over(id rpcpacket.ID) (at netip.Addr, over bool) {
	m := t.mains[id]
	if m == nil || !m.over || m.committing {
		return netip.Addr{}, false
	}
	return m.at.address, true
}

// Known reports whether anything is on record of a durable main.
func (t *Table) Known(main rpcpacket.ID) bool { return t.mains[main] != nil }

// Leave says that a node leaves in an orderly way: nobody asks for its mains that
// are over any more. Fail follows.
func (t *Table) Leave(at wal.Node) Output {
	if n := t.nodes[at.Address]; n != nil && at.Incarnation > n.dead {
		for _, m := range sortedMains(n.mains) {
			if m.over && !m.committing && !m.cut && m.incarnation == at.Incarnation {
				delete(n.mains, m)
				delete(t.mains, m.id)
				t.strike(wal.KindCheckpoint, wal.ID(m.id))
			}
		}
	}
	return t.take()
}

// Finished reports whether a node has run a durable main, and all that it has run are over.
func (t *Table) Finished(at wal.Node) bool {
	n := t.nodes[at.Address]
	return n != nil && len(n.mains) > 0 && !t.Unfinished(at)
}

// Unfinished reports whether a node, or a former incarnation of it, has run a durable main that
// is not over.
func (t *Table) Unfinished(at wal.Node) bool {
	n := t.nodes[at.Address]
	if n == nil {
		return false
	}
	for m := range n.mains {
		if m.incarnation <= at.Incarnation && !m.over {
			return true
		}
	}
	return false
}

// Mains is how many durable mains a node has run, over or not, that nobody else has run since.
func (t *Table) Mains(a netip.Addr) int {
	if n := t.nodes[a]; n != nil {
		return len(n.mains)
	}
	return 0
}

// Absent says which nodes are gone for good, after a restart: mains that ran there last may begin
// elsewhere. What they did is rolled back, else the node would be known.
func (t *Table) Absent(gone func(a netip.Addr) bool) {
	for _, m := range t.mains {
		if gone(m.at.address) {
			m.at.dead = max(m.at.dead, m.incarnation)
		}
	}
}

// Disown forgets the durable mains of a node that is gone for good, when nothing of it is
// left to be rolled back: nobody wants them to go on. Their one-ways that wait for the next
// checkpoint never leave; the calls that they have out run to their ends. It returns the mains.
func (t *Table) Disown(a netip.Addr) (mains []rpcpacket.ID, out Output) {
	n := t.nodes[a]
	if n == nil || !n.gone {
		return nil, t.take()
	}
	for _, m := range sortedMains(n.mains) {
		mains = append(mains, m.id)
		t.dropWithheld(&m.execution)
		t.settleChildren(&m.execution)
		delete(n.mains, m)
		delete(t.mains, m.id)
		t.strike(wal.KindCheckpoint, wal.ID(m.id))
	}
	return mains, t.take()
}

// Gone reports whether a node is gone for good: calls to it fail.
func (t *Table) Gone(a netip.Addr) bool { return t.nodes[a] != nil && t.nodes[a].gone }

// Forget forgets a node that is gone for good, if nothing of it is on record any
// more. Its address must never be used again.
func (t *Table) Forget(a netip.Addr) {
	if n := t.nodes[a]; n != nil && n.gone && len(n.calls) == 0 && len(n.mains) == 0 {
		delete(t.nodes, a)
	}
}

// Lonely reports whether there are calls that Again has to deliver once more.
func (t *Table) Lonely() bool { return len(t.lonely) > 0 }

// Open reports whether what an execution did is neither committed nor rolled back.
func (t *Table) Open(id rpcpacket.ID) bool {
	if k := t.calls[id]; k != nil {
		return k.stage == running || k.stage == aborting || k.stage == committing
	}
	m := t.mains[id]
	return m != nil && (!m.over || m.committing)
}

// Depth is how many executions wait for a call that the parent makes, as far as they are on
// record, and no more than is worth knowing: 0 for an outermost call.
func (t *Table) Depth(parent rpcpacket.ID) (depth int) {
	const enough = 8
	for !parent.IsZero() && depth < enough {
		depth++
		k := t.calls[parent]
		if k == nil {
			break
		}
		parent = k.parent
	}
	return depth
}

// DepthOf is Depth for a call that is on record.
func (t *Table) DepthOf(id rpcpacket.ID) int {
	if k := t.calls[id]; k != nil {
		return t.Depth(k.parent)
	}
	return 0
}
