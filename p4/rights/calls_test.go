package rights

import (
	"fmt"
	"slices"
)

// call makes the call of a step, or asks what became of it.
func (w *world) call(n *node, e *execution, s step) {
	r := e.record
	c := r.calls[e.at]
	if c == nil {
		c = &made{id: fmt.Sprintf("%s.%d", r.id, e.at), does: s.calls, to: s.to, closed: map[Ref]bool{}, none: r.program.none}
		if to := w.nodes[s.to]; programs[s.calls].none && w.has(bound) && to != nil {
			c.bound = to.inc
		}
		r.calls[e.at] = c
	}
	if c.givenUp { // by a former run, which has journalled it
		e.at++
		return
	}
	if c.code != ok && c.over { // an outcome that this side has journalled
		w.finish(n, e, c.code)
		return
	}
	n.writes(r)
	var args []arg
	for _, i := range s.args {
		a := e.vars[i]
		if e.own[a.Region] && !a.handle {
			a.by = Ref{}
		}
		args = append(args, a)
	}
	o, short := w.sendCall(n, c, args, Call)
	if o == nil {
		if e.short++; short && e.short > 40 && w.has(overload) { // a refusal that this side journals: the call has never begun
			c.over, c.decided, c.code = true, true, overloaded
			w.overloads++
			w.finish(n, e, overloaded)
		}
		return
	}
	o.e, o.r, o.leaving = e, r, s.do == "giveup"
	e.waits, e.short = "call "+c.id, 0
}

// freeSlots takes consecutive call slots, and gives them a number.
func (w *world) freeSlots(n *node, want int) (Ref, bool) {
	taken := map[uint32]bool{}
	take := func(ref Ref, slots int) {
		for i := range max(1, slots) {
			taken[ref.Slot+uint32(i)] = true
		}
	}
	for ref, o := range n.by {
		take(ref, o.slots)
	}
	for ref := range n.asks {
		take(ref, int(n.told[ref.Slot].Slots))
	}
	for ref := range n.held {
		take(ref, int(n.told[ref.Slot].Slots))
	}
	if w.has(askFirst) { // on record of what is to be made again
		for _, r := range n.ledger {
			for _, c := range r.all() {
				if ref, ok := n.openAs(c); ok && !c.over {
					take(ref, c.slots)
				}
			}
		}
	}
	first := uint32(n.row) * w.sw.Block
	for k := first; k+uint32(want) <= first+w.sw.Block; k++ {
		free := true
		for i := range uint32(want) {
			free = free && !taken[k+i]
		}
		if free {
			n.counter += 2 // the number between is for those who rebuild registers
			ref := Ref{k, MakeNumber(n.inc, n.counter)}
			for i := range uint32(want) {
				n.last[k+i] = ref
			}
			return ref, true
		}
	}
	return Ref{}, false
}

// openAs gives the use of a slot under which a call is out, or is to be asked about.
func (n *node) openAs(c *made) (Ref, bool) {
	if len(c.refs) == 0 {
		return Ref{}, false
	}
	ref := c.refs[len(c.refs)-1]
	t := n.told[ref.Slot]
	return ref, ref != c.spent && (ref.Number.Incarnation() == n.inc || t.Number == ref.Number && t.State != Failed && t.State != Refused)
}

// sendCall sends a call, or the question about it. It returns nil if that has to wait, and whether it is short of slots.
func (w *world) sendCall(n *node, c *made, args []arg, kind Kind) (o *sent, short bool) {
	args = slices.Clone(args)
	blocks := pack(w.sw.Sizes, args)
	var ref Ref
	if w.has(askFirst) {
		if old, is := n.openAs(c); is && old.Number.Incarnation() != n.inc {
			ref, kind = old, Ask
		} else if len(c.refs) > 0 && n.asks[c.refs[len(c.refs)-1]] != nil {
			return nil, false
		}
	}
	if ref == (Ref{}) {
		var found bool
		if ref, found = w.freeSlots(n, blocks); !found {
			return nil, true
		}
		c.refs = append(c.refs, ref)
		c.slots, c.sent = blocks, args
		for i := range uint32(blocks) {
			n.lastTo[ref.Slot+i] = c.to
		}
	}
	m := &message{Packet: Packet{Kind: kind, Ref: ref}, dst: c.to, id: c.id, does: c.does, args: args, bound: c.bound, light: c.none}
	if kind != Ask {
		m.Blocks = blocksOf(args, blocks)
	}
	o = &sent{made: c, m: m}
	n.by[ref], n.sent[o] = o, true
	delete(n.asks, ref)
	w.send(n, m.clone())
	return o, false
}

// askAgain asks for the answer of a call that was given up, until it comes. It does not ask about a slot that was refused, or has
// failed: there is no answer, and another call may use the slot.
func (n *node) askAgain(r *record, c *made) {
	ref, is := n.openAs(c)
	if !is {
		c.over = true
		return
	}
	o := &sent{made: c, r: r, leaving: true, m: &message{Packet: Packet{Kind: Ask, Ref: ref}, dst: c.to, id: c.id, bound: c.bound}}
	n.by[ref], n.sent[o] = o, true
	delete(n.asks, ref)
}

// out reports whether a call is out.
func (n *node) out(c *made) bool {
	for _, o := range n.by {
		if o.made == c {
			return true
		}
	}
	return false
}

// closedAll reports whether no slot of a call is known to be open.
func (n *node) closedAll(c *made) bool {
	return !slices.ContainsFunc(c.refs, func(ref Ref) bool {
		_, held := n.held[ref]
		return held || n.by[ref] != nil || n.asks[ref] != nil
	})
}

// holdsBack reports whether a call of an execution is open that lends what the answer hands over, or what it was lent: the
// answer would be turned around.
func (w *world) holdsBack(n *node, r *record) bool {
	if !w.has(hold) {
		return false
	}
	has := map[Region]bool{}
	for _, a := range r.result {
		has[a.Region] = true
	}
	for _, a := range r.args {
		has[a.Region] = true
	}
	for ref, o := range n.by {
		if !o.oneway && !o.closed[ref] && o.r == r && slices.ContainsFunc(o.m.args, func(a arg) bool { return has[a.Region] }) {
			return true
		}
	}
	for ref, regions := range n.held {
		own := slices.ContainsFunc(r.all(), func(c *made) bool { return slices.Contains(c.refs, ref) })
		if own && slices.ContainsFunc(regions, func(g Region) bool { return has[g] }) {
			return true
		}
	}
	return false
}

// outs are the calls that are out, in the order of their numbers.
func (n *node) outs() []*sent {
	all := make([]*sent, 0, len(n.sent))
	for o := range n.sent {
		all = append(all, o)
	}
	slices.SortFunc(all, func(a, b *sent) int { return byNumber(a.m.Ref, b.m.Ref) })
	return all
}

// sendAgain sends all calls again that are out. Some are given up: their callee has said that they have begun.
func (w *world) sendAgain(n *node) {
	for _, o := range n.outs() {
		if e := o.e; o.leaving && !o.givenUp && e != nil && !e.done && n.runs[e.id] == e && w.rnd.Intn(2) == 0 && w.hasBegun(o.made) {
			o.givenUp = true
			e.waits = ""
			e.at++
			w.run(n, e)
		}
		if n.by[o.m.Ref] == o {
			w.send(n, o.m.clone())
		}
	}
}

func (w *world) hasBegun(c *made) bool {
	n := w.nodes[c.to]
	return n != nil && (n.ledger[c.id] != nil || n.forgot[c.id])
}

// ---- the callee

// says answers a packet of a call with an exception.
func (w *world) says(n *node, m *message, c code) {
	w.send(n, &message{Packet: Packet{Kind: Exception, Ref: m.Ref}, dst: m.src, id: m.id, code: c})
}

// called takes a call, or a copy of one.
func (w *world) called(n *node, m *message) {
	if m.bound != 0 && m.bound != n.inc {
		w.says(n, m, unavail) // it may have run
		return
	}
	r, e := n.ledger[m.id], n.runs[m.id]
	switch {
	case e != nil:
		e.refs[m.Ref] = true
		return
	case n.forgot[m.id]:
		w.says(n, m, unbegun)
		return
	case r != nil:
		n.note(m.id, m.Ref)
		w.pay(n, r)
		return
	case m.Incarnation <= n.dead[m.src]:
		return
	}
	r = newRecord(m.id, m.does)
	r.caller, r.callerInc, r.light, r.ref = m.src, m.Incarnation, m.light, m.Ref
	for _, a := range m.args {
		if !a.handle {
			a.by, a.standing = Ref{m.Ref.Slot + uint32(a.block), m.Ref.Number}, false
		}
		r.args = append(r.args, a)
	}
	e = n.begin(r, map[Ref]bool{m.Ref: true})
	if m.Kind == Oneway {
		n.writes(r)
	}
	w.run(n, e)
}

// find finds a call by a number under which it has come.
func (n *node) find(ref Ref) *record {
	for _, id := range sorted(n.runs) {
		if e := n.runs[id]; e.refs[ref] || e.ref == ref {
			return e.record
		}
	}
	for _, id := range sorted(n.ledger) {
		if r := n.ledger[id]; r.ref == ref || n.attempts[r.id][ref] {
			return r
		}
	}
	return nil
}

// asked takes a question: of a later incarnation of the caller's, or of the Gatekeeper in its name.
func (w *world) asked(n *node, m *message) {
	if m.bound != 0 && m.bound != n.inc {
		w.says(n, m, unavail)
		return
	}
	r := n.find(m.Ref)
	if r == nil && m.id != "" {
		if e := n.runs[m.id]; e != nil {
			r = e.record
		} else {
			r = n.ledger[m.id]
		}
	}
	switch {
	case r == nil:
		n.dead[m.src] = max(n.dead[m.src], m.Incarnation-1)
		w.says(n, m, unbegun)
	case r.caller != m.src:
	case r.done:
		n.note(r.id, m.Ref)
		w.pay(n, r)
	case n.runs[r.id] != nil:
		n.runs[r.id].refs[m.Ref] = true
	}
}

// ---- the caller

// had checks a result that was its caller's already when the slot closed: the call was made under an earlier number, too.
func (w *world) had(m *message) {
	n := w.nodes[m.dst]
	if n == nil || !n.up {
		return
	}
	if o := n.by[m.Ref]; o != nil && len(o.refs) < 2 && o.m.Kind != Ask {
		w.fail("RESULT of %s is its caller's already", m)
	}
}

// answered takes an answer, to a call or to a question.
func (w *world) answered(n *node, m *message) {
	if (m.code == unavail || m.code == unbegun) && w.has(auditOwn) && (n.asks[m.Ref] != nil || n.by[m.Ref] != nil) {
		n.audit = true // of results that it has not heard of
	}
	if q := n.asks[m.Ref]; q != nil && q.to == m.src {
		delete(n.asks, m.Ref)
		delete(n.held, m.Ref)
		w.brought(n, m)
		w.undone(n)
	}
	delete(n.held, m.Ref)
	o := n.by[m.Ref]
	if o == nil || o.to != m.src {
		return
	}
	o.closed[m.Ref] = true
	delete(n.by, m.Ref)
	delete(n.sent, o)
	if w.has(askFirst) && m.code == unbegun && o.m.Kind == Ask {
		w.anew(n, o)
		return
	}
	w.complete(n, o, m)
}

// brought looks after what the answer to a question brings: it goes to the execution that makes the call again, or is freed.
func (w *world) brought(n *node, m *message) {
	if !w.has(askAll) {
		return
	}
	for _, id := range sorted(n.ledger) {
		r := n.ledger[id]
		for _, c := range r.all() {
			if c.id != m.id {
				continue
			}
			for _, a := range m.args {
				if e := n.runs[id]; r.done && !c.over {
					r.frees[a.Region] = true
				} else if e != nil {
					e.own[a.Region] = true
				}
			}
			return
		}
	}
	for _, a := range m.args {
		w.free(n, a.Region, nil)
	}
}

// anew makes a call under other slots: its former ones were closed, and its callee does not know it.
func (w *world) anew(n *node, o *sent) {
	o.spent = o.m.Ref
	if o.e != nil && n.runs[o.e.id] == o.e {
		o.e.waits = ""
		w.run(n, o.e)
	} else if o.r != nil && o.r.done {
		if !o.oneway { // given up, and it has never begun
			o.over = true
		}
		w.pay(n, o.r)
	}
}

// complete takes the outcome of a call.
func (w *world) complete(n *node, o *sent, m *message) {
	c, e := o.made, o.e
	if c.oneway {
		c.over = true
		if m.code != ok { // declined: they are its sender's again, and go
			for _, a := range c.sent {
				o.r.frees[a.Region] = true
			}
		}
		w.pay(n, o.r)
		return
	}
	if c.givenUp || e == nil || e.done || n.runs[e.id] != e { // what comes of a call that was given up goes
		c.over, c.givenUp = true, true
		now := n.runs[o.r.id]
		for _, a := range m.args {
			if o.r.done {
				o.r.frees[a.Region] = true
			} else if now != nil {
				now.own[a.Region] = true
			}
		}
		w.pay(n, o.r)
		return
	}
	c.over, e.waits = true, ""
	for _, a := range m.args {
		e.own[a.Region] = true
	}
	if m.code != ok {
		c.code = m.code
		c.decided = m.turned == PermissionDenied
		if m.code == unbegun && o.m.Kind != Ask {
			w.fail("CALL %s of a live caller is answered: never began", c.id)
		}
		w.finish(n, e, m.code)
		return
	}
	for i, v := range e.program.steps[e.at].results {
		if i < len(m.args) {
			e.vars[v] = arg{Region: m.args[i].Region, value: m.args[i].value}
		}
	}
	e.at++
	w.run(n, e)
}

// turned takes a packet of its own that the switch has turned around.
func (w *world) turned(n *node, m *message) {
	switch m.Kind {
	case Call, Oneway, Ask:
		o := n.by[m.Ref]
		relies := o != nil && slices.ContainsFunc(o.sent, func(a arg) bool { return a.standing && !a.handle || w.ended[a.by] })
		switch {
		case o == nil && m.Kind != Ask:
		case m.turned == Lent && m.Kind != Ask: // sent again
		case m.turned == Unavailable, m.turned == PermissionDenied && relies: // or a standing lease has ended, or an operator has failed the call that lends
			m.code, m.args = unavail, nil
			if m.turned == PermissionDenied {
				m.code = wasDenied
			}
			w.answered(n, m)
		default:
			w.fail("REFUSED honest %s", m)
		}
	case Reply, Exception:
		r := n.ledger[m.id]
		switch {
		case r == nil:
		case m.turned == Lent:
			n.note(r.id, m.Ref)
		default:
			w.send(n, &message{Packet: Packet{Kind: Exception, Ref: m.Ref}, dst: r.caller, id: r.id, code: wasDenied})
		}
	default:
		w.turnedRequest(n, m)
	}
}
