package callgraph

import (
	"cmp"
	"iter"
	"slices"
	"time"

	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// Len is how many calls are under way.
func (g *Graph) Len() int { return g.calls.len }

// Call returns one call.
func (g *Graph) Call(id rpcpacket.ID) (View, bool) {
	i := g.index[id]
	if i == 0 {
		return View{}, false
	}
	return g.view(i), true
}

// Children returns the calls under way that an execution has made, oldest first:
// what it waits for, and its one-ways.
func (g *Graph) Children(execution rpcpacket.ID) (all []View) {
	if execution.IsZero() {
		return nil
	}
	g.each(byParent, g.parents[execution], func(i int32) { all = append(all, g.view(i)) })
	return all
}

// Chain returns a call and the calls on whose behalf it was made, innermost
// first, as far as they are under way.
func (g *Graph) Chain(id rpcpacket.ID) (all []View) {
	g.newMark()
	for i := g.index[id]; i != 0 && g.calls.at(i).mark != g.mark; i = g.index[g.calls.at(i).parent] {
		g.calls.at(i).mark = g.mark
		all = append(all, g.view(i))
	}
	return all
}

// WaitsFor returns the calls that a node has sent and that have not returned,
// oldest first. One that is queued at a serial service waits for the call
// Behind.
func (g *Graph) WaitsFor(n Node) (all []View) {
	if k := g.nodes.find(n.key()); k != 0 {
		g.each(byCaller, g.nodes.value(k).sent, func(i int32) { all = append(all, g.view(i)) })
	}
	return all
}

// Serves returns the calls that were sent to a node and that it has not
// finished, oldest first.
func (g *Graph) Serves(n Node) (all []View) {
	if k := g.nodes.find(n.key()); k != 0 {
		for _, i := range g.served(k) {
			all = append(all, g.view(i))
		}
	}
	return all
}

// served returns the unfinished calls to node k, oldest first.
func (g *Graph) served(k int32) (all []int32) {
	for _, s := range g.nodes.value(k).servers {
		g.each(byServer, g.servers.value(s).calls, func(i int32) { all = append(all, i) })
	}
	slices.SortFunc(all, func(a, b int32) int { return cmp.Compare(g.calls.at(a).sequence, g.calls.at(b).sequence) })
	return all
}

// Nodes returns the nodes that take part in calls, ordered.
func (g *Graph) Nodes() []Node {
	all := make([]Node, 0, len(g.nodes.index))
	for k := range g.nodes.index {
		all = append(all, k.node())
	}
	slices.SortFunc(all, func(a, b Node) int {
		return cmp.Or(a.Address.Compare(b.Address), cmp.Compare(a.Incarnation, b.Incarnation))
	})
	return all
}

// Quietest returns when that loose call was last sent of which nothing was heard
// for longest; false if there is no loose call.
func (g *Graph) Quietest() (last time.Time, ok bool) {
	i := g.heard.first
	if i == 0 {
		return time.Time{}, false
	}
	return time.Unix(0, g.calls.at(i).heard), true
}

// All yields all calls, oldest first. The graph must not change meanwhile.
func (g *Graph) All() iter.Seq[View] {
	return func(yield func(View) bool) {
		for i := g.age.first; i != 0; i = g.calls.at(i).links[byAge].next {
			if !yield(g.view(i)) {
				return
			}
		}
	}
}
