package callgraph

// list says which of the lists that run through the calls is meant.
type list uint8

const (
	byAge    list = iota // all calls, oldest first
	byCaller             // a node's calls that have not returned
	byServer             // the calls that a service on a node runs or has queued
	byParent             // the calls that an execution has made
	byHeard              // the loose calls, that of which nothing was heard for longest first
	lists
)

// ends are the first and the last call of a list, 0 in an empty one.
type ends struct{ first, last int32 }

// link is a call's place in a list.
type link struct{ prev, next int32 }

// push appends call i to a list.
func (g *Graph) push(l list, e *ends, i int32) {
	g.calls.at(i).links[l] = link{prev: e.last}
	if e.last != 0 {
		g.calls.at(e.last).links[l].next = i
	} else {
		e.first = i
	}
	e.last = i
}

// unlink takes call i out of a list.
func (g *Graph) unlink(l list, e *ends, i int32) {
	k := g.calls.at(i).links[l]
	if k.prev != 0 {
		g.calls.at(k.prev).links[l].next = k.next
	} else {
		e.first = k.next
	}
	if k.next != 0 {
		g.calls.at(k.next).links[l].prev = k.prev
	} else {
		e.last = k.prev
	}
	g.calls.at(i).links[l] = link{}
}

// each visits a list in order; the visitor may remove the call it is given.
func (g *Graph) each(l list, e ends, visit func(i int32)) {
	for i := e.first; i != 0; {
		next := g.calls.at(i).links[l].next
		visit(i)
		i = next
	}
}
