package rights

import (
	"fmt"
	"slices"
)

// node is a node's runtime, and what outlives its incarnations.
type node struct {
	addr   int
	row    Row
	inc    uint32
	up     bool
	gone   bool // for good
	plain  bool // a plain client: it has no next incarnation
	ledger map[string]*record
	dead   map[int]uint32  // by caller: incarnations whose calls do not begin any more
	forgot map[string]bool // calls that were forgotten
	last   map[uint32]Ref  // by call slot: the last use of this incarnation's
	lastTo map[uint32]int  // and its callee

	runtime
}

// runtime is what a crash takes.
type runtime struct {
	runs     map[string]*execution
	by       map[Ref]*sent
	sent     map[*sent]bool
	asks     map[Ref]*question
	requests map[int]*request
	request  int
	counter  uint64
	attempts map[string]map[Ref]bool // by call: under which it is to be answered
	held     map[Ref][]Region        // slots of former incarnations that are open, as told
	told     map[uint32]Slot         // the node's call slots as told at the join
	frees    map[Region]int          // requests of the runtime itself
	sharing  map[string]*execution   // standing leases that were asked for
	unshare  map[string]*execution   // and those that are to end; nil: nobody waits
	// The account.
	owned     []Region // as told at the join
	unchecked bool     // is to be gone through
	named     []Region // the fence has named them, and no word has
	audit     bool     // words are to be compared with the account
	looking   *looking // and are, nil if not
}

// looking is how far a node has come that looks for results of which it has not heard.
type looking struct {
	words  []Region     // as the Gatekeeper tells, without what is on its way by open one-ways, and what the account has explained since
	listed bool         // all of them were read
	out    map[Ref]bool // calls and questions that were out then: their answers may have brought some of them
}

func newRuntime() runtime {
	return runtime{
		runs: map[string]*execution{}, by: map[Ref]*sent{}, sent: map[*sent]bool{}, asks: map[Ref]*question{}, requests: map[int]*request{},
		attempts: map[string]map[Ref]bool{}, held: map[Ref][]Region{}, told: map[uint32]Slot{}, frees: map[Region]int{},
		sharing: map[string]*execution{}, unshare: map[string]*execution{},
	}
}

// sent is a call that is out.
type sent struct {
	*made
	m       *message
	e       *execution // that waits, if it still does
	r       *record
	leaving bool // its caller gives it up as soon as it has begun
}

// question is about a call of a former incarnation.
type question struct {
	to  int
	id  string
	ref Ref
}

// request is a request of memory that is out.
type request struct {
	m     *message
	e     *execution
	r     *record // whose free it is
	heard [2]bool
	codes [2]code
	free  bool // nobody waits
	lease bool // a read by a standing lease, which may have ended
}

func (w *world) send(n *node, m *message) {
	m.src, m.Incarnation = n.addr, n.inc
	w.flight = append(w.flight, m)
}

// run goes on with an execution until it waits.
func (w *world) run(n *node, e *execution) {
	for e.waits == "" && !e.done && !e.dirty && n.up {
		if e.at >= len(e.program.steps) {
			w.finish(n, e, ok)
			return
		}
		at := e.at
		w.step(n, e, e.program.steps[at])
		if e.waits == "" && e.at == at {
			return // no call slot: later
		}
	}
}

func (w *world) step(n *node, e *execution, s step) {
	r, v := e.record, &e.vars[s.on]
	switch s.do {
	case "alloc":
		n.writes(r)
		r.changed = true
		g, known := r.allocs[e.at]
		if !known {
			var ok bool
			if g, ok = w.pick(n); !ok {
				w.finish(n, e, noSpace)
				return
			}
			r.allocs[e.at] = g
		}
		w.ask(n, e, &message{Packet: Packet{Kind: Alloc, Region: g}})
	case "write":
		n.writes(r)
		r.changed = true
		w.ask(n, e, &message{Packet: Packet{Kind: Write, Region: v.Region}, value: contentOf(r.id, e.at)})
	case "read":
		w.ask(n, e, &message{Packet: Packet{Kind: Read, Region: v.Region, Ref: v.by}}).lease = v.standing
	case "call", "giveup":
		w.call(n, e, s)
	case "oneway":
		c := &made{id: fmt.Sprintf("%s.%d", r.id, e.at), does: s.calls, to: s.to, oneway: true, closed: map[Ref]bool{}}
		for _, i := range s.args {
			c.sent = append(c.sent, arg{Region: e.vars[i].Region, value: e.vars[i].value})
			delete(e.own, e.vars[i].Region)
		}
		r.oneways = append(r.oneways, c)
		e.at++
	case "share":
		n.writes(r)
		h := &shared{id: fmt.Sprintf("%s.%d/%d", r.id, e.at, n.inc), region: v.Region, to: s.to}
		r.shares[e.at], n.sharing[h.id] = h, e
		e.waits = "share " + h.id
		w.control(n, h, "share")
	case "unshare":
		for _, h := range r.shares {
			if h.region == v.Region && !h.ended {
				n.unshare[h.id] = e
				e.waits = "unshare " + h.id
				w.control(n, h, "unshare")
			}
		}
	case "name":
		h := &e.vars[s.results[0]]
		*h = *v
		h.by, h.handle = Ref{}, true
		e.at++
	case "use":
		v.handle = false
		e.at++
	}
}

// contentOf is what a step of an execution writes.
func contentOf(id string, at int) int {
	h := 17 + at*31
	for _, c := range id {
		h = h*131 + int(c)
	}
	return h & 0xffff
}

// finish ends an execution: it commits, and from then on it owes.
func (w *world) finish(n *node, e *execution, code code) {
	r := e.record
	if w.has(ownResults) && slices.ContainsFunc(r.program.result, func(i int) bool { return !n.holds(e.vars[i].Region) }) && code == ok {
		code = wasDenied
	}
	r.done, r.code, r.frees = true, code, map[Region]bool{}
	if code == ok {
		for _, i := range r.program.result {
			a := e.vars[i]
			a.by = Ref{}
			r.result = append(r.result, a)
			delete(e.own, a.Region)
		}
	} else {
		for _, c := range r.oneways {
			for _, a := range c.sent {
				e.own[a.Region] = true
			}
		}
		r.oneways = nil
	}
	for g := range e.own {
		r.frees[g] = true
	}
	n.writes(r)
	for _, c := range w.memory {
		c.commit(r.id)
	}
	if code == ok {
		if w.effects[r.id]++; w.effects[r.id] > 1 {
			w.fail("EFFECT %s is done %d times", r.id, w.effects[r.id])
		}
	}
	if w.has(askAll) { // calls of former runs that this one has not made count as given up
		for _, c := range r.all() {
			if !c.oneway && !c.over && !n.out(c) && len(c.refs) > 0 {
				c.givenUp = true
				n.askAgain(r, c)
			}
		}
	}
	n.unshareAll(r)
	delete(n.runs, r.id)
	n.noteAll(r.id, e.refs)
	w.pay(n, r)
}

// note remembers a number under which a call is to be answered.
func (n *node) note(id string, ref Ref) { n.noteAll(id, map[Ref]bool{ref: true}) }

func (n *node) noteAll(id string, refs map[Ref]bool) {
	if n.attempts[id] == nil {
		n.attempts[id] = map[Ref]bool{}
	}
	for ref := range refs {
		n.attempts[id][ref] = true
	}
}

// pay does what a done execution owes.
func (w *world) pay(n *node, r *record) {
	if !r.done {
		return
	}
	if !r.root && !w.holdsBack(n, r) {
		for _, ref := range sortedRefs(n.attempts[r.id]) {
			w.answer(n, r, ref)
		}
		clear(n.attempts[r.id])
	}
	for _, g := range sortedRegions(r.frees) {
		w.free(n, g, r)
	}
	for _, c := range r.oneways {
		if c.over || n.out(c) {
			continue
		}
		if o, _ := w.sendCall(n, c, c.sent, Oneway); o != nil {
			o.r = r
		}
	}
	for _, c := range r.all() {
		if !c.settled && len(c.refs) > 0 && n.closedAll(c) && (c.over || c.givenUp) {
			w.send(n, &message{Packet: Packet{Kind: Plain}, dst: c.to, id: c.id, does: "forget"})
		}
	}
	if r.root {
		r.forgotten = true
	}
	w.tidy(n, r)
}

func (w *world) answer(n *node, r *record, ref Ref) {
	m := &message{Packet: Packet{Kind: Reply, Ref: ref, Results: regionsOf(r.result)}, dst: r.caller, id: r.id, code: r.code, args: slices.Clone(r.result)}
	if r.code != ok {
		m.Kind, m.Results, m.args = Exception, nil, nil
	}
	w.send(n, m)
}

// control asks the Gatekeeper for something about a standing lease.
func (w *world) control(n *node, h *shared, does string) {
	w.send(n, &message{Packet: Packet{Kind: Plain, Region: h.region}, dst: gatekeeperAt, id: h.id, does: does, value: h.to})
}

// unshareAll has the standing leases of an execution end.
func (n *node) unshareAll(r *record) {
	for _, h := range r.shares {
		if _, is := n.unshare[h.id]; !h.ended && !is {
			n.unshare[h.id] = nil
		}
	}
}

// told hears the Gatekeeper about a standing lease.
func (w *world) told(n *node, m *message) {
	var h *shared
	var r *record
	for _, id := range sorted(n.ledger) {
		for _, s := range n.ledger[id].shares {
			if s.id == m.id {
				h, r = s, n.ledger[id]
			}
		}
	}
	if h == nil {
		return
	}
	if e := n.sharing[m.id]; m.does == "shared" && e != nil {
		delete(n.sharing, m.id)
		h.ref = m.ref
		v := &e.vars[e.program.steps[e.at].results[0]]
		*v = e.vars[e.program.steps[e.at].on]
		v.by, v.standing, v.handle = m.ref, true, true
		e.waits = ""
		e.at++
		w.run(n, e)
	}
	if m.does == "ended" {
		h.ended = true
		e := n.unshare[m.id]
		delete(n.unshare, m.id)
		if s := n.sharing[m.id]; s != nil { // there is none, and will be none
			delete(n.sharing, m.id)
			w.finish(n, s, unavail)
		} else if e != nil {
			e.waits = ""
			e.at++
			w.run(n, e)
		}
		w.undone(n)
		w.tidy(n, r)
	}
}

// receive has a node take a message.
func (w *world) receive(n *node, m *message) {
	if m.turned != 0 {
		w.turned(n, m)
		return
	}
	switch m.Kind {
	case Call, Oneway:
		w.called(n, m)
	case Reply, Exception:
		w.answered(n, m)
	case Ask:
		w.asked(n, m)
	case AllocAnswer, MemoryAnswer:
		w.served(n, m)
	case Plain:
		switch m.does {
		case "forget":
			w.forget(n, m)
		case "forgotten":
			for _, id := range sorted(n.ledger) {
				for _, c := range n.ledger[id].all() {
					c.settled = c.settled || c.id == m.id
				}
				w.tidy(n, n.ledger[id])
			}
		default:
			w.told(n, m)
		}
	default:
	}
}

func (w *world) forget(n *node, m *message) {
	if r := n.ledger[m.id]; r != nil {
		if !r.done {
			return
		}
		r.forgotten = true
		w.tidy(n, r)
	} else if n.runs[m.id] != nil {
		return
	}
	if n.ledger[m.id] == nil {
		n.forgot[m.id] = true
	}
	w.send(n, &message{Packet: Packet{Kind: Plain}, dst: m.src, id: m.id, does: "forgotten"})
}

// tick sends again what nobody has answered, and goes on with what has waited.
func (w *world) tick(n *node) {
	if !n.up {
		return
	}
	for _, id := range sorted(n.requests) {
		w.send(n, n.requests[id].m.clone())
	}
	w.sendAgain(n)
	for _, ref := range sortedRefs(n.asks) {
		q := n.asks[ref]
		w.send(n, &message{Packet: Packet{Kind: Ask, Ref: q.ref}, dst: q.to, id: q.id})
	}
	for _, id := range sorted(n.ledger) {
		for _, at := range sorted(n.ledger[id].shares) {
			h := n.ledger[id].shares[at]
			if _, ends := n.unshare[h.id]; ends {
				w.control(n, h, "unshare")
			} else if n.sharing[h.id] != nil {
				w.control(n, h, "share")
			}
		}
	}
	for _, id := range sorted(n.runs) {
		if e := n.runs[id]; e != nil {
			w.run(n, e)
		}
	}
	w.undone(n)
	for _, id := range sorted(n.ledger) {
		r := n.ledger[id]
		if r == nil {
			continue
		}
		if !r.root && r.done && w.isGone(r.caller) {
			r.forgotten = true
		}
		if c := w.nodes[r.caller]; r.light && r.done && c != nil && c.inc != r.callerInc { // nobody will ask
			r.forgotten = true
		}
		for _, c := range r.all() {
			if w.isGone(c.to) && n.closedAll(c) && (c.over || c.givenUp) {
				c.settled = true
			}
		}
		w.pay(n, r)
	}
	w.account(n)
	w.look(n)
}

// undone runs those again whose former runs lend nothing any more: what these have changed is taken back first.
func (w *world) undone(n *node) {
	for _, id := range sorted(n.runs) {
		e := n.runs[id]
		if e == nil || !e.dirty {
			continue
		}
		open := !e.unshared()
		for _, c := range e.calls {
			for _, ref := range c.refs {
				if _, held := n.held[ref]; held || n.asks[ref] != nil {
					open = true
				}
			}
		}
		if open && e.changed {
			continue
		}
		for _, c := range w.memory {
			c.rollback(id)
		}
		clear(e.shares)
		e.dirty = false
		w.run(n, e)
	}
}
