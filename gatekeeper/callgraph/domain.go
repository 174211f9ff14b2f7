package callgraph

import (
	"net/netip"
	"slices"

	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// Node is one incarnation of a node.
type Node struct {
	Address     netip.Addr
	Incarnation uint32
}

// Call is one call under way.
type Call struct {
	ID rpcpacket.ID
	// Parent is the execution that makes the call: the id of the call that it serves, or of a main; zero for a plain client.
	Parent         rpcpacket.ID
	Caller, Callee Node
	Policy         rpcpacket.Policy
	// Oneway: the caller does not wait, and nothing returns.
	Oneway bool
}

// Domain is a failure domain: what the failure of some nodes takes back.
type Domain struct {
	// Nodes are the nodes that have failed, and those that have to be started
	// anew because an execution on them shares the fate of one that failed.
	Nodes []Node
	// Rerun are the calls to these nodes that will run again, the latest first.
	Rerun []rpcpacket.ID
	// Cut are the calls to these nodes that fail: policy none.
	Cut []rpcpacket.ID
	// Out are the calls that these nodes have sent elsewhere. They
	// run on, and a re-run waits for those of its execution.
	Out []rpcpacket.ID
	// Waiting are the calls elsewhere whose executions wait for one
	// of Rerun or Cut, directly or through other calls.
	Waiting []rpcpacket.ID
}

// DomainOf returns the failure domain of nodes that have failed or would fail, by the calls under way, the oldest first. It
// grows by the policies of calls between two executions (docs/exactly-once.md): recover and none spread nothing; with fate-share,
// the failure of one side takes the other back; with tainted, all descendants of the call besides. A one-way runs when the
// execution that made it has committed, so it shares nobody's fate.
func DomainOf(calls []Call, failed ...Node) Domain {
	d := domain{
		calls: calls, in: map[Node]bool{}, sent: map[Node][]int{}, served: map[Node][]int{}, made: map[rpcpacket.ID][]int{},
		index: map[rpcpacket.ID]int{},
	}
	for i := range calls {
		k := &calls[i]
		d.sent[k.Caller] = append(d.sent[k.Caller], i)
		d.served[k.Callee] = append(d.served[k.Callee], i)
		d.made[k.Parent] = append(d.made[k.Parent], i)
		d.index[k.ID] = i
	}
	for _, n := range failed {
		d.add(n)
	}
	for next := 0; next < len(d.order); next++ {
		d.spread(d.order[next])
	}
	return d.collect()
}

// domain is a Domain that is being found.
type domain struct {
	calls        []Call
	sent, served map[Node][]int         // by caller, by callee
	made         map[rpcpacket.ID][]int // by the execution that makes them
	index        map[rpcpacket.ID]int
	in           map[Node]bool
	order        []Node
}

func (d *domain) add(n Node) {
	if !d.in[n] {
		d.in[n] = true
		d.order = append(d.order, n)
	}
}

// spread adds the nodes whose executions share the fate of a node's.
func (d *domain) spread(n Node) {
	for _, i := range slices.Concat(d.sent[n], d.served[n]) {
		k := &d.calls[i]
		if k.Oneway || !k.Policy.SharesFates() {
			continue
		}
		d.add(k.Caller)
		d.add(k.Callee)
		if k.Policy == rpcpacket.PolicyTainted {
			d.taint(k.ID, map[rpcpacket.ID]bool{})
		}
	}
}

// taint adds the nodes of an execution's descendants.
func (d *domain) taint(execution rpcpacket.ID, seen map[rpcpacket.ID]bool) {
	for _, i := range d.made[execution] {
		if k := &d.calls[i]; !k.Oneway && !seen[k.ID] {
			seen[k.ID] = true
			d.add(k.Callee)
			d.taint(k.ID, seen)
		}
	}
}

// collect sorts the calls that the nodes take part in.
func (d *domain) collect() Domain {
	var rerun, cut, out, waiting []int
	for _, n := range d.order {
		for _, i := range d.served[n] {
			if d.calls[i].Policy == rpcpacket.PolicyNone {
				cut = append(cut, i)
			} else {
				rerun = append(rerun, i)
			}
		}
		for _, i := range d.sent[n] {
			if !d.in[d.calls[i].Callee] {
				out = append(out, i)
			}
		}
	}
	seen := map[int]bool{}
	for _, i := range slices.Concat(rerun, cut) {
		for !d.calls[i].Oneway {
			parent, known := d.index[d.calls[i].Parent]
			if !known || seen[parent] {
				break
			}
			i, seen[parent] = parent, true
			if !d.in[d.calls[i].Callee] {
				waiting = append(waiting, i)
			}
		}
	}
	last := d.ids(rerun)
	slices.Reverse(last)
	return Domain{Nodes: d.order, Rerun: last, Cut: d.ids(cut), Out: d.ids(out), Waiting: d.ids(waiting)}
}

// ids are those of calls, the oldest first.
func (d *domain) ids(calls []int) (all []rpcpacket.ID) {
	slices.Sort(calls)
	for _, i := range calls {
		all = append(all, d.calls[i].ID)
	}
	return all
}
