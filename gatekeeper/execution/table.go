package execution

import (
	"net/netip"
	"slices"

	"github.com/bifrost-rack/bifrost/gatekeeper/wal"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// DefaultAttempts is how often an execution may be cut off before its call fails.
const DefaultAttempts = 5

// Table is all exactly-once calls and durable mains that are under way, and the
// outcomes that somebody may still ask for.
type Table struct {
	// attempts is how often an execution may be cut off.
	attempts uint16
	calls    map[rpcpacket.ID]*call
	mains    map[rpcpacket.ID]*main
	nodes    map[netip.Addr]*node
	sessions map[wal.ID]*session
	charges  map[netip.Addr]int // bytes of the log that the calls of plain clients take
	services map[uint64]*service
	// lonely are logged calls that nobody sends again: one-ways, those whose callers are
	// cut, or wait no more, and those that others wait behind (chase).
	lonely   map[*call]struct{}
	sequence uint64
	out      Output
	dirty    []*node // whose records have changed
}

// New returns an empty Table. Attempts is how often an execution may be cut off
// before its call fails; 0 stands for DefaultAttempts.
func New(attempts uint16) *Table {
	if attempts == 0 {
		attempts = DefaultAttempts
	}
	return &Table{
		attempts: attempts, calls: map[rpcpacket.ID]*call{}, mains: map[rpcpacket.ID]*main{}, nodes: map[netip.Addr]*node{},
		sessions: map[wal.ID]*session{}, charges: map[netip.Addr]int{}, services: map[uint64]*service{}, lonely: map[*call]struct{}{},
	}
}

// execution is one run of a handler, or a durable main.
type execution struct {
	id       rpcpacket.ID
	at       *node
	journal  []byte
	children map[*call]struct{}
	attempts uint16 // how often it was cut off
	// cut: its node has failed, and it was not rolled back since; rolling: that is
	// under way.
	cut, rolling bool
}

// stage is how far a call has got.
type stage uint8

const (
	admitting  stage = iota + 1 // Admit is asked; not logged
	running                     // logged; a one-way may wait for its parent's commit
	aborting                    // its outcome is logged, it is being rolled back
	committing                  // its outcome is logged, Commit is asked
	returning                   // Return is asked
	done
)

// call is one call, with the execution that serves it.
type call struct {
	execution
	header      rpcpacket.Header // of its packet
	parent      rpcpacket.ID
	caller      netip.Addr
	service     uint64
	order       uint64
	print       fingerprint
	trail       fingerprint // of the trailer that is logged
	astray      bool        // it has come again with another one
	sequence    uint64      // by when it became known
	incarnation uint32      // of its node, to which it was delivered last; 0: to none
	sent        bool        // to the node's present incarnation, by this Gatekeeper
	delivery    uint64      // number among those that this Table has delivered to the node; 0 for none
	stage       stage
	oneway      bool
	leases      bool
	hands       bool
	settled     bool // nobody will ask for its outcome
	discarded   bool // while admitting: its caller is gone
	enlisted    bool // it is a direct call that its callee has handed over
	disowned    bool // enlisted: its caller says that nobody waits for it
	serial      bool // enlisted: of a service that runs one call at a time
	session     *session
	charged     int      // bytes to the node that pays for it
	request     *request // while admitting
	// record is that of a one-way which has not left.
	record *wal.Record
}

// node is what executes: an address, in one incarnation after the other.
type node struct {
	address     netip.Addr
	incarnation uint32 // the present one; 0 while that is not known
	dead        uint32 // all up to this one have failed
	gone        bool   // there will be no other
	fenced      bool   // nothing of the dead ones can happen any more
	empties     bool   // the present one gets no more calls
	up          map[uint64]bool
	cuts        int                // executions that are cut
	calls       map[*call]struct{} // to it, not done
	mains       map[*main]struct{}
	delivered   uint64 // how many calls this Table has delivered to it
	logged      bool   // it has a record
	dirty       bool
}

func (n *node) id() wal.Node { return wal.Node{Address: n.address, Incarnation: n.incarnation} }

// next is the incarnation that gets what is logged now; none if there is no node.
func (n *node) next() wal.Node {
	switch {
	case !n.address.IsValid():
		return wal.Node{}
	case n.incarnation > n.dead:
		return n.id()
	}
	return wal.Node{Address: n.address, Incarnation: n.dead + 1}
}

func (t *Table) node(a netip.Addr) *node {
	n := t.nodes[a]
	if n == nil {
		n = &node{address: a, up: map[uint64]bool{}, calls: map[*call]struct{}{}, mains: map[*main]struct{}{}}
		t.nodes[a] = n
	}
	return n
}

// owner finds what a call names as its parent; nil if it has ended.
func (t *Table) owner(id rpcpacket.ID) *execution {
	if k := t.calls[id]; k != nil && k.stage != done {
		return &k.execution
	}
	if m := t.mains[id]; m != nil {
		return &m.execution
	}
	return nil
}

func (t *Table) do(a Action) { t.out.Actions = append(t.out.Actions, a) }

func (t *Table) put(r wal.Record) { t.out.Put = append(t.out.Put, r) }

func (t *Table) strike(kind wal.Kind, id wal.ID) {
	t.out.Delete = append(t.out.Delete, wal.Key{Kind: kind, ID: id})
}

// take ends an input.
func (t *Table) take() Output {
	for _, n := range t.dirty {
		t.keepNode(n)
	}
	t.dirty = t.dirty[:0]
	o := t.out
	t.out = Output{}
	return o.compact()
}

// compact drops records that are put again, or struck out, by the same input: what
// is struck out is never put later.
func (o Output) compact() Output {
	if len(o.Put)+len(o.Delete) < 2 {
		return o
	}
	last := map[wal.Key]int{}
	for i := range o.Put {
		last[o.Put[i].Key()] = i
	}
	for _, k := range o.Delete {
		last[k] = -1
	}
	put := o.Put[:0]
	for i, r := range o.Put {
		if last[r.Key()] == i {
			put = append(put, r)
		}
	}
	o.Put = put
	return o
}

// sorted returns a set of calls in the order in which they became known.
func sorted(set map[*call]struct{}) []*call {
	s := make([]*call, 0, len(set))
	for k := range set {
		s = append(s, k)
	}
	slices.SortFunc(s, func(a, b *call) int { return int(a.sequence) - int(b.sequence) }) //nolint:gosec // both count up from 1
	return s
}

// Calls is how many calls are on record, Open how many of them are not done.
func (t *Table) Calls() (calls, open int) {
	for _, k := range t.calls {
		if k.stage != done {
			open++
		}
	}
	return len(t.calls), open
}
