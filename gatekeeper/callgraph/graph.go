package callgraph

import (
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// Graph is the graph of the calls under way. It is not safe for concurrent use.
type Graph struct {
	limit    int
	calls    slab[call]
	index    map[rpcpacket.ID]int32
	parents  map[rpcpacket.ID]ends // of byParent, for executions that have calls out
	age      ends                  // byAge
	heard    ends                  // byHeard
	nodes    interned[nodeKey, node]
	services interned[string, struct{}]
	servers  interned[serverKey, server]
	methods  interned[methodKey, struct{}]
	carried  slab[carried]
	pointers map[dsmpacket.Pointer]int32 // newest of those carried
	sequence uint64
	mark     uint32
	search   []step // scratch of deadlock
}

// New returns an empty graph that takes up to limit calls at a time.
func New(limit int) *Graph {
	return &Graph{
		limit: limit, index: map[rpcpacket.ID]int32{}, parents: map[rpcpacket.ID]ends{}, pointers: map[dsmpacket.Pointer]int32{},
		nodes: newInterned[nodeKey, node](), services: newInterned[string, struct{}](),
		servers: newInterned[serverKey, server](), methods: newInterned[methodKey, struct{}](),
	}
}

// ErrKnown is what Sent returns for a call that is in the graph already: it was
// sent again.
var ErrKnown = errors.New("the call is known")

// Sent adds a call (a1). A call that is refused leaves the graph as it was. The error is
// ErrKnown if the call is there already; one that is Loose has then been heard of again,
// for Expire. It is a *Deadlock if the call would wait for itself, and a *fault.Error of
// code Overloaded if the graph is full.
func (g *Graph) Sent(c Call, at time.Time) error {
	if i := g.index[c.ID]; i != 0 {
		g.hear(i, at)
		return ErrKnown
	}
	if g.calls.len >= g.limit {
		return fault.New(fault.Overloaded, fmt.Sprintf("call %s.%s", c.Service, c.Method), "%d calls are under way", g.limit)
	}
	if d := g.deadlock(&c); d != nil {
		return d
	}
	i := g.calls.add()
	g.sequence++
	*g.calls.at(i) = call{
		id: c.ID, parent: c.Parent, sequence: g.sequence, times: [3]int64{nanos(at)}, policy: c.Policy, flags: flagsOf(&c),
		caller: g.nodes.use(c.Caller.key()), method: g.methods.use(methodKey{c.Service, c.Method}),
	}
	g.index[c.ID] = i
	r := g.calls.at(i)
	g.push(byAge, &g.age, i)
	g.push(byCaller, &g.nodes.value(r.caller).sent, i)
	if !c.Parent.IsZero() {
		siblings := g.parents[c.Parent]
		g.push(byParent, &siblings, i)
		g.parents[c.Parent] = siblings
	}
	g.enqueue(i, c.Callee, c.Service, c.Serial)
	g.carry(i, c.Pointers)
	if c.Loose {
		r.heard = nanos(at)
		g.push(byHeard, &g.heard, i)
	}
	return nil
}

// hear notes that a loose call is still being sent.
func (g *Graph) hear(i int32, at time.Time) {
	if c := g.calls.at(i); c.is(loose) {
		c.heard = nanos(at)
		g.unlink(byHeard, &g.heard, i)
		g.push(byHeard, &g.heard, i)
	}
}

func flagsOf(c *Call) (f flags) {
	if c.Oneway {
		f |= oneway
	}
	if c.Loose {
		f |= loose
	}
	return f
}

// nanos is a time as calls keep it; 0 is for none, so nothing happens at 1970.
func nanos(t time.Time) int64 {
	if n := t.UnixNano(); n != 0 {
		return n
	}
	return 1
}

// enqueue ties a call to a service of a node and, unless it is finished, puts it
// last there.
func (g *Graph) enqueue(i int32, callee Node, service string, serial bool) {
	key := serverKey{g.nodes.use(callee.key()), g.services.use(service)}
	s := g.servers.use(key)
	g.calls.at(i).server = s
	if g.servers.slab.at(s).uses == 1 {
		n := g.nodes.value(key.node)
		n.servers = append(n.servers, s)
	}
	g.servers.value(s).serial = serial
	if !g.calls.at(i).finished() {
		g.push(byServer, &g.servers.value(s).calls, i)
	}
}

// newMark makes a mark that no call has; nor does any have the mark after it.
func (g *Graph) newMark() {
	if g.mark >= math.MaxUint32-2 {
		g.each(byAge, g.age, func(i int32) { g.calls.at(i).mark = 0 })
		g.mark = 0
	}
	g.mark++
}
