package rights

import (
	"fmt"
	"slices"
)

// ask sends a request of memory for an execution, which waits.
func (w *world) ask(n *node, e *execution, m *message) *request {
	n.request++
	m.request, m.id, m.unlogged = n.request, e.id, n.plain || e.program.none
	m.src, m.Incarnation = n.addr, n.inc
	q := &request{m: m, e: e}
	n.requests[m.request] = q
	e.waits = m.Kind.String()
	w.send(n, m.clone())
	return q
}

// pick chooses a slot and a generation in the node's batch, by the servers' word.
func (w *world) pick(n *node) (Region, bool) {
	used := map[uint32]bool{}
	for _, r := range n.ledger {
		for _, g := range r.allocs {
			if !r.done {
				used[g.Slot] = true
			}
		}
	}
	for _, q := range n.requests {
		if q.m.Kind == Alloc {
			used[q.m.Region.Slot] = true
		}
	}
	var can []Region
	batch := uint32(n.row)
	for slot := batch * w.sw.Batch; slot < (batch+1)*w.sw.Batch; slot++ {
		last, live := w.floor[n.row], false
		for _, c := range w.memory {
			if s := c.regions[slot]; s != nil {
				last, live = max(last, s.generation), live || s.live
			}
		}
		if !live && !used[slot] {
			can = append(can, Region{slot, last + 1})
		}
	}
	if len(can) == 0 {
		return Region{}, false
	}
	return can[w.rnd.Intn(len(can))], true
}

// lends reports whether a call of this incarnation's is open that lends a region, as far as its account says.
func (n *node) lends(g Region) bool {
	for ref, o := range n.by {
		if !o.oneway && !o.closed[ref] && slices.ContainsFunc(o.m.args, func(a arg) bool { return a.Region == g }) {
			return true
		}
	}
	return false
}

// free frees a region, now or later. The switch says no if it is not the node's any more.
func (w *world) free(n *node, g Region, r *record) {
	if n.frees[g] != 0 || n.lends(g) {
		return
	}
	n.request++
	n.frees[g] = n.request
	m := &message{Packet: Packet{Kind: Free, Region: g, Incarnation: n.inc}, request: n.request, src: n.addr}
	n.requests[n.request] = &request{m: m, free: true, r: r}
	w.send(n, m.clone())
}

func (w *world) freed(n *node, q *request) {
	delete(n.requests, q.m.request)
	delete(n.frees, q.m.Region)
	if q.r != nil {
		delete(q.r.frees, q.m.Region)
		w.tidy(n, q.r)
	}
}

// served takes an answer of memory.
func (w *world) served(n *node, m *message) {
	q := n.requests[m.request]
	if q == nil || q.m.Kind != m.of || m.client != n.inc {
		return
	}
	g, e := m.Region, q.e
	if m.of == Read {
		delete(n.requests, m.request)
		if m.code != ok {
			w.fail("READ of r%d.g%d by %s: %v", g.Slot, g.Generation, e.id, m.code)
			return
		}
		for _, v := range e.vars {
			if v.Region == g && v.value != m.value {
				w.fail("READ of r%d by %s gives %d, not %d", g.Slot, e.id, m.value, v.value)
			}
		}
		w.next(n, e)
		return
	}
	q.heard[m.copy], q.codes[m.copy] = true, m.code
	if !q.heard[0] || !q.heard[1] {
		return
	}
	if q.free {
		w.freed(n, q)
		return
	}
	delete(n.requests, m.request)
	both := q.codes == [2]code{}
	switch {
	case m.of == Alloc && !both: // freed on both copies, and another slot is tried
		delete(e.allocs, e.at)
		if q.codes[0] == ok || q.codes[1] == ok {
			n.frees[g] = 0
			w.free(n, g, nil)
		}
		e.waits = ""
		w.run(n, e)
		return
	case m.of == Alloc:
		e.own[g] = true
		e.vars[e.program.steps[e.at].on] = arg{Region: g}
	case !both:
		w.fail("WRITE of r%d.g%d by %s: %v, %v", g.Slot, g.Generation, e.id, q.codes[0], q.codes[1])
		return
	default:
		for i := range e.vars {
			if e.vars[i].Region == g {
				e.vars[i].value = q.m.value
			}
		}
	}
	w.next(n, e)
}

// next has an execution take its next step.
func (w *world) next(n *node, e *execution) {
	e.waits = ""
	e.at++
	w.run(n, e)
}

// turnedRequest takes a request of memory that the switch has turned around.
func (w *world) turnedRequest(n *node, m *message) {
	q := n.requests[m.request]
	switch {
	case q == nil || m.Incarnation != n.inc || m.turned == Lent: // it is sent again
	case q.free: // it is gone, or has changed hands
		w.freed(n, q)
	case q.lease, w.ended[q.m.Ref]: // which has ended
		delete(n.requests, m.request)
		w.next(n, q.e)
	default:
		w.fail("DENIED honest %s of %s", m, q.m.id)
		if w.silent { // it goes no further
			delete(n.requests, m.request)
		}
	}
}

// account frees what nobody of a stateless node accounts for, after its last re-run.
func (w *world) account(n *node) {
	if !n.unchecked || len(n.asks) > 0 && w.has(askAll) {
		return
	}
	for _, e := range n.runs {
		if e.dirty || w.again[e.id] == n.inc {
			return
		}
	}
	n.unchecked = false
	list := n.owned
	if !w.has(joinList) {
		list = w.owns(n)
	}
	for _, g := range list {
		if o := w.sw.Word(g.Slot); (!w.has(joinList) || o.Owner == n.row && o.Generation == g.Generation) && !n.accounts(g) && w.liveAt(g) {
			w.free(n, g, nil)
		}
	}
	if w.has(fenceList) {
		for _, g := range n.named {
			if w.sw.Word(g.Slot).Generation < g.Generation && !n.accounts(g) { // allocates it again, and frees it
				r := newRecord(fmt.Sprintf("fenced r%d.g%d/%d", g.Slot, g.Generation, n.inc), "fenced")
				r.allocs[0] = g
				w.ask(n, &execution{record: r, own: map[Region]bool{}}, &message{Packet: Packet{Kind: Alloc, Region: g}})
			}
		}
	}
	n.named = nil
}

// look frees what nothing has explained since it began: words are read, then slots, then all calls that are out then come to their ends. Packets pass meanwhile.
func (w *world) look(n *node) {
	if l := n.looking; l != nil {
		l.words = slices.DeleteFunc(l.words, n.accounts)
	}
	switch l := n.looking; {
	case l == nil && (n.audit || w.looks && w.rnd.Intn(4) == 0) && !n.unchecked:
		n.audit = false
		n.looking = &looking{words: slices.DeleteFunc(w.wordsOf(n), n.accounts)}
	case l == nil:
	case !l.listed:
		l.words, l.listed, l.out = without(l.words, w.coming(n)), true, map[Ref]bool{}
		for ref := range n.by {
			l.out[ref] = true
		}
		for ref := range n.asks {
			l.out[ref] = true
		}
	default:
		for ref := range l.out {
			if w.has(auditWaits) && (n.by[ref] != nil || n.asks[ref] != nil) {
				return
			}
		}
		n.looking = nil
		for _, g := range l.words {
			if w.liveAt(g) {
				w.free(n, g, nil)
			}
		}
	}
}

// owns is what the words say that a node has, without what is on its way to it by one-ways.
func (w *world) owns(n *node) []Region { return without(w.wordsOf(n), w.coming(n)) }

func (w *world) wordsOf(n *node) []Region {
	all := []Region{}
	for i, o := range w.sw.Words() {
		if o.Owner == n.row && o.Generation > 0 {
			all = append(all, Region{i, o.Generation})
		}
	}
	return all
}

func (w *world) coming(n *node) map[Region]bool {
	all := map[Region]bool{}
	for _, k := range w.sw.Slots() {
		if w.has(joinList) && k.State == Open && k.Given && k.Callee == n.row {
			for _, g := range k.Regions[:k.Count] {
				all[g] = true
			}
		}
	}
	return all
}

func without(all []Region, some map[Region]bool) []Region {
	return slices.DeleteFunc(slices.Clone(all), func(g Region) bool { return some[g] })
}
