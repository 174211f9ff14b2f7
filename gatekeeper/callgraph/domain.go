package callgraph

import (
	"cmp"
	"slices"

	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// Domain is a failure domain: what the failure of some nodes takes back. Calls
// that are finished are in no domain: nothing logged is taken back.
type Domain struct {
	// Nodes are the nodes that have failed, and those that have to be started
	// anew because an execution on them shares the fate of one that failed.
	Nodes []Node
	// Rerun are the unfinished calls to these nodes that will run again, the
	// innermost first.
	Rerun []View
	// Cut are the unfinished calls to these nodes that fail: policy none.
	Cut []View
	// Out are the unfinished calls that these nodes have sent elsewhere. They
	// run on, and a re-run waits for those of its execution.
	Out []View
	// Waiting are the unfinished calls elsewhere whose executions wait for one
	// of Rerun or Cut, directly or through other calls.
	Waiting []View
}

// Domain returns the failure domain of nodes that have failed or would fail. It
// grows by the policies of unfinished calls between two executions
// (docs/exactly-once.md): recover and none spread nothing; with fate-share, the failure of
// one side takes the other back; with tainted, all unfinished descendants of the
// call besides. A one-way runs when the execution that made it has committed, so it
// shares nobody's fate.
func (g *Graph) Domain(failed ...Node) Domain {
	d := domain{g: g, in: map[int32]bool{}}
	var all Domain
	for _, n := range failed {
		if k := g.nodes.find(n.key()); k != 0 {
			d.add(k)
		} else if !slices.Contains(all.Nodes, n) {
			all.Nodes = append(all.Nodes, n) // it has no calls
		}
	}
	for len(d.todo) > 0 {
		k := d.todo[0]
		d.todo = d.todo[1:]
		d.spread(k)
	}
	for _, k := range d.order {
		all.Nodes = append(all.Nodes, g.nodes.key(k).node())
	}
	d.collect(&all)
	return all
}

// domain is a Domain that is being found.
type domain struct {
	g     *Graph
	in    map[int32]bool // nodes
	order []int32
	todo  []int32
}

func (d *domain) add(node int32) {
	if !d.in[node] {
		d.in[node] = true
		d.order, d.todo = append(d.order, node), append(d.todo, node)
	}
}

// spread adds the nodes whose executions share the fate of node k's.
func (d *domain) spread(k int32) {
	visit := func(i int32) {
		c := d.g.calls.at(i)
		if c.finished() || c.is(oneway) || c.policy != rpcpacket.PolicyFateShare && c.policy != rpcpacket.PolicyTainted {
			return
		}
		if !c.is(orphan) {
			d.add(c.caller)
		}
		d.add(d.g.calleeOf(c))
		if c.policy == rpcpacket.PolicyTainted {
			d.taint(c.id)
		}
	}
	d.g.each(byCaller, d.g.nodes.value(k).sent, visit)
	for _, i := range d.g.served(k) {
		visit(i)
	}
}

// taint adds the nodes of an execution's unfinished descendants.
func (d *domain) taint(execution rpcpacket.ID) {
	d.g.newMark()
	for stack := []rpcpacket.ID{execution}; len(stack) > 0; {
		id := stack[len(stack)-1]
		stack = stack[:len(stack)-1]
		d.g.each(byParent, d.g.parents[id], func(i int32) {
			c := d.g.calls.at(i)
			if c.mark == d.g.mark || c.finished() || c.is(oneway) {
				return
			}
			c.mark = d.g.mark
			d.add(d.g.calleeOf(c))
			stack = append(stack, c.id)
		})
	}
}

func (g *Graph) calleeOf(c *call) int32 { return g.servers.key(c.server).node }

// collect sorts the calls that the nodes take part in.
func (d *domain) collect(all *Domain) {
	g := d.g
	for _, k := range d.order {
		for _, i := range g.served(k) {
			if g.calls.at(i).policy == rpcpacket.PolicyNone {
				all.Cut = append(all.Cut, g.view(i))
			} else {
				all.Rerun = append(all.Rerun, g.view(i))
			}
		}
		g.each(byCaller, g.nodes.value(k).sent, func(i int32) {
			if c := g.calls.at(i); !c.finished() && !d.in[g.calleeOf(c)] {
				all.Out = append(all.Out, g.view(i))
			}
		})
	}
	d.waiting(all)
	// A call becomes known after the one on whose behalf it is made.
	slices.SortFunc(all.Rerun, func(a, b View) int { return cmp.Compare(b.Sequence, a.Sequence) })
	for _, views := range [][]View{all.Cut, all.Out, all.Waiting} {
		slices.SortFunc(views, func(a, b View) int { return cmp.Compare(a.Sequence, b.Sequence) })
	}
}

// waiting collects the ancestors of what was cut off.
func (d *domain) waiting(all *Domain) {
	g := d.g
	g.newMark()
	for _, views := range [][]View{all.Rerun, all.Cut} {
		for _, v := range views {
			if v.Oneway {
				continue
			}
			for i := g.index[v.Parent]; i != 0; i = g.index[g.calls.at(i).parent] {
				c := g.calls.at(i)
				if c.mark == g.mark || c.finished() {
					break
				}
				c.mark = g.mark
				if !d.in[g.calleeOf(c)] {
					all.Waiting = append(all.Waiting, g.view(i))
				}
				if c.is(oneway) {
					break
				}
			}
		}
	}
}
