package callgraph

import (
	"fmt"
	"slices"
	"strings"

	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// Deadlock is the error of a call that would wait for itself.
type Deadlock struct {
	// Call is the one that was refused.
	Call Call
	// Loose: a call of the cycle is known from a digest only, so it may be over,
	// and its end not heard of. Then it is for the caller of Sent to judge.
	Loose bool
	// Cycle are the calls over which it would wait. Call would be queued behind
	// the first. Each further one is made by the execution before it or, where
	// that one is queued, is what its service runs. The last one's execution
	// makes Call.
	Cycle []View
}

// Error tells the whole way.
func (d *Deadlock) Error() string {
	var way strings.Builder
	for _, v := range d.Cycle {
		fmt.Fprintf(&way, " → %s (%s.%s on %s)", v.ID, v.Service, v.Method, v.Callee.Address)
	}
	return fmt.Sprintf("call %s to %s.%s would wait for itself%s", d.Call.ID, d.Call.Service, d.Call.Method, way.String())
}

// Code is fault.Deadlock, for the exception that the caller gets.
func (d *Deadlock) Code() fault.Code { return fault.Deadlock }

// step is a call that is waited for, and the step before it in Graph.search.
type step struct{ call, before int32 }

// deadlock finds out whether a call that is about to be sent would wait for
// itself.
//
// The callers that wait for it are its ancestors: the call that its Parent
// serves, the one on whose behalf that was made, and so on. It waits for them in
// turn if its way leads to one of them: from the call that its service runs now
// to the calls which that one has made, from a queued call to the one that its
// service runs, and so on. Ancestors can be reached from elsewhere only through
// a service that runs one of them while others are queued there. So there is
// nothing to search unless a serial service runs an ancestor, as it is in most
// programs; the cost is then the length of the chain.
func (g *Graph) deadlock(c *Call) *Deadlock {
	if !c.Serial || c.Oneway || g.index[c.Parent] == 0 {
		return nil
	}
	head := g.headFor(c)
	if head == 0 {
		return nil
	}
	if !g.markAncestors(c.Parent) {
		return nil
	}
	k := g.searchAncestor(head)
	if k < 0 {
		return nil
	}
	d := &Deadlock{Call: *c}
	met := g.search[k].call
	for i := g.index[c.Parent]; i != met; i = g.index[g.calls.at(i).parent] {
		d.Cycle = append(d.Cycle, g.view(i))
	}
	for j := int32(k); j >= 0; j = g.search[j].before {
		d.Cycle = append(d.Cycle, g.view(g.search[j].call))
	}
	slices.Reverse(d.Cycle)
	d.Loose = slices.ContainsFunc(d.Cycle, func(v View) bool { return v.Loose })
	return d
}

// headFor is the call that would be run before a new one, 0 for none.
func (g *Graph) headFor(c *Call) int32 {
	node, service := g.nodes.find(c.Callee.key()), g.services.find(c.Service)
	if s := g.servers.find(serverKey{node, service}); node != 0 && service != 0 && s != 0 {
		return g.servers.value(s).calls.first
	}
	return 0
}

// markAncestors marks the calls that wait for what an execution does, itself
// first, and reports whether a serial service runs one of them.
func (g *Graph) markAncestors(execution rpcpacket.ID) (serial bool) {
	g.newMark()
	for i := g.index[execution]; i != 0; i = g.index[g.calls.at(i).parent] {
		c := g.calls.at(i)
		if c.mark == g.mark || c.finished() {
			return serial
		}
		c.mark = g.mark
		s := g.servers.value(c.server)
		serial = serial || s.serial && s.calls.first == i
		if c.is(oneway) {
			return serial // nobody waits for it
		}
	}
	return serial
}

// searchAncestor follows what is waited for from a call on, breadth first, until
// it meets a marked ancestor: its place in g.search, or -1 if there is none.
func (g *Graph) searchAncestor(head int32) int {
	ancestor := g.mark
	g.mark++ // newMark left room for this
	g.search = append(g.search[:0], step{head, -1})
	for k := 0; k < len(g.search); k++ {
		c := g.calls.at(g.search[k].call)
		if c.mark == ancestor {
			return k
		}
		if c.mark == g.mark {
			continue
		}
		c.mark = g.mark
		if running := g.blocker(c, g.search[k].call); running != 0 {
			g.search = append(g.search, step{running, int32(k)})
		}
		g.each(byParent, g.parents[c.id], func(i int32) {
			if child := g.calls.at(i); !child.finished() && !child.is(oneway) {
				g.search = append(g.search, step{i, int32(k)})
			}
		})
	}
	return -1
}
