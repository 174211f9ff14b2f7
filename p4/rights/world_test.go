package rights

import (
	"fmt"
	"math/rand"
	"strings"
)

// nodeRule is a rule of the nodes' and the Gatekeeper's half that can be left out, to see what it is for.
type nodeRule int

const (
	rackNumbers  nodeRule = iota // incarnations are numbered rack-wide
	goingRule                    // a node that is gone for good is marked as going first
	askFirst                     // what is made again is first asked about, under the slot on record
	joinList                     // the list of owned regions is of the moment of the join, without what is on its way by open one-ways
	reread                       // for that list, slots are read, then words, and then slots again
	forgetFrees                  // a callee frees unclaimed results when the call is forgotten (FREE decides)
	askAll                       // the next incarnation asks until it hears, about all slots on record
	fenceList                    // the next incarnation frees also what the fence has named and no word has
	handedOn                     // unless another execution has handed them over since
	sweepLate                    // frees at forget wait for re-runs
	forsake                      // what a node that is gone has changed is taken back when its slots are closed, not before
	bound                        // a call of policy none is for one incarnation of its callee, and so is a question about it
	auditOwn                     // after `unavailable` or `never began`, the caller looks for what it got
	auditWaits                   // and waits for the calls that are out when it is told what it has
	lastNumbers                  // an empty switch is told the last number of every slot
	hold                         // a runtime holds an answer back while calls of the execution lend its regions: that spares packets
	overload                     // a call that finds no slots for long has never begun
	leaseEnds                    // a standing lease ends with the incarnation that has given it
	leaseRests                   // before its owner may write, what has passed by it has arrived
	ownResults                   // an answer with a region that its node does not own becomes an exception before it is on record
	unknownFails                 // an operator fails a call only if its callee does not know it
	ruleCount
)

var ruleNames = [ruleCount]string{
	"rack numbers", "going rule", "ask first", "join list", "reread", "forget frees", "ask all", "fence list", "handed on", "sweep late", "forsake", "bound",
	"audit", "audit waits", "last numbers", "hold", "overload", "lease ends", "lease rests", "own results", "unknown fails",
}

// setting says what a world is like, and what happens in it.
type setting struct {
	seed     int64
	programs []string // of mains
	clients  int      // at the beginning; one in two of them is plain
	steps    int      // before everything settles
	faults   float64  // the share of steps at which a node crashes
	gone     bool     // services may go for good
	restarts bool     // the Gatekeeper dies, now and then
	empty    bool     // the switch comes back empty, now and then
	silent   bool     // and who is down then gives no account: only wrong rights count
	operator bool     // an operator ends standing leases and fails calls, now and then
	few      bool     // blocks have two slots
	looks    bool     // nodes look for results of which they have not heard without a reason, too
	watched  bool     // each packet is held against the theorems
	without  []string // rules that are left out
	traced   bool
}

// small has few of everything, so that slots run out and counts come to their ends.
var small = Sizes{Batch: 10, Block: 6, PerCall: 4, PerSlot: 2, Results: 16, Lent: 7, Children: 7}

// world is a rack: switch, memory, nodes, Gatekeeper, and packets on their way.
type world struct {
	setting
	rnd        *rand.Rand
	sw         *Switch
	memory     [2]*memoryCopy
	nodes      map[int]*node
	gk         gatekeeper
	flight     []*message
	left       [ruleCount]bool
	floor      map[Row]uint32 // of the generations in a row's batch
	freeRows   []Row
	rows       Row
	effects    map[string]int
	again      map[string]uint32 // with which incarnation an execution has run again
	nextClient int               // the next client
	overloads  int
	ended      map[Ref]bool // calls that an operator has failed
	trace      []string
	broken     string
}

func newWorld(s setting) *world {
	w := &world{
		setting: s, rnd: rand.New(rand.NewSource(s.seed)), nodes: map[int]*node{}, floor: map[Row]uint32{},
		effects: map[string]int{}, ended: map[Ref]bool{}, again: map[string]uint32{}, nextClient: s.clients + 1,
	}
	if w.programs == nil {
		w.programs = mains
	}
	sizes := small
	if s.few {
		sizes.Block = 2
	}
	w.sw = New(sizes)
	for _, name := range s.without {
		w.leaveOut(name)
	}
	w.gk = gatekeeper{leases: map[string]*lease{}, ends: map[int]*end{}, inc: w.number(1)}
	w.sw.Election = 1
	for i := range w.memory {
		w.memory[i] = newCopy(i == 1 && w.rnd.Intn(2) == 0)
		w.sw.Identities[Source{uint16(copiesAt + i), at(copiesAt + i)}] = Identity{Memory, Nobody, 1}
	}
	for i := range s.clients {
		w.join(i+1, true, i%2 == 1)
	}
	for a := 11; a <= 13; a++ {
		w.join(a, false, false)
	}
	return w
}

// leaveOut leaves out a rule, or a row of the tables.
func (w *world) leaveOut(name string) {
	for i, rule := range ruleNames {
		if rule == name {
			w.left[i] = true
			return
		}
	}
	w.sw.without[rowNamed(name)] = true
}

func (w *world) has(r nodeRule) bool { return !w.left[r] }

// fail notes the first thing that is wrong.
func (w *world) fail(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	kind, _, _ := strings.Cut(text, " ")
	if w.silent && kind != "READ" && kind != "WRITE" && kind != "INVARIANT" && kind != "EFFECT" && kind != "UNDO" && kind != "STEP" {
		return
	}
	if w.broken == "" {
		w.broken = text
		w.log("*** %s", text)
	}
}

func (w *world) log(format string, args ...any) {
	if w.traced {
		w.trace = append(w.trace, fmt.Sprintf(format, args...))
	}
}

func (w *world) isGone(a int) bool { n := w.nodes[a]; return n == nil || n.gone }

// isSwept reports whether a node is gone, and nothing is left of it.
func (w *world) isSwept(n *node) bool { return n.gone && w.gk.ends[n.addr] == nil }

// join takes a new node.
func (w *world) join(addr int, client, plain bool) {
	n := &node{
		addr: addr, inc: w.number(1), up: true, plain: plain, ledger: map[string]*record{}, dead: map[int]uint32{}, forgot: map[string]bool{},
		last: map[uint32]Ref{}, lastTo: map[uint32]int{}, runtime: newRuntime(),
	}
	w.nodes[addr] = n
	if len(w.freeRows) > 0 {
		n.row, w.freeRows = w.freeRows[0], w.freeRows[1:]
	} else {
		w.rows++
		n.row = w.rows
	}
	for i := range w.sw.Batch {
		w.floor[n.row] = max(w.floor[n.row], w.sw.Word(uint32(n.row)*w.sw.Batch+i).Generation)
	}
	w.sw.Blocks[BlockRule{n.row, uint32(n.row)}] = true
	w.sw.Controls[Control{n.row, 1, uint32(n.row)}] = true
	w.sw.Identities[Source{uint16(addr), at(addr)}] = Identity{Node, n.row, n.inc}
	w.sw.Routes[at(addr)] = Route{Row: n.row}
	if !client {
		return
	}
	does := w.programs[w.rnd.Intn(len(w.programs))]
	if w.empty && !w.silent && does == "m9" { // who has no ledger gives no account
		does = "m8"
	}
	r := newRecord(fmt.Sprintf("c%d", addr), does)
	r.root = true
	e := n.begin(r, map[Ref]bool{})
	n.writes(r)
	w.log("--- client %d runs %s, row %d", addr, does, n.row)
	w.run(n, e)
}

func (w *world) crash(n *node) {
	w.log("--- node %d (i%d) crashes", n.addr, n.inc)
	n.up = false
	for id, r := range n.ledger {
		if r.program.none {
			delete(n.ledger, id)
		}
	}
	n.runtime = newRuntime()
	w.gk.ends[n.addr] = &end{n: n}
}

// deliver takes one packet on: through the switch, or to its receiver.
func (w *world) deliver(i int, drop, twice bool) {
	m := w.flight[i]
	if !twice {
		w.flight = append(w.flight[:i], w.flight[i+1:]...)
	} else {
		m = m.clone()
	}
	if drop {
		w.log("  lost %s", m)
		return
	}
	if w.traced {
		w.log("  %s", m)
	}
	switch n := w.nodes[m.dst]; {
	case !m.passed:
		w.flight = append(w.flight, w.judge(m)...)
	case m.dst >= copiesAt:
		if a := w.serve(m.dst-copiesAt, m); a != nil {
			w.flight = append(w.flight, a)
		}
	case m.dst == gatekeeperAt:
		w.hears(m)
	case n != nil && n.up:
		w.receive(n, m)
	}
}

// most is how many packets are on their way; then the network forgets.
const most = 60

// explore runs a world at random.
func (w *world) explore() {
	for range w.steps {
		if w.broken != "" {
			return
		}
		x := w.rnd.Float64()
		addrs := sorted(w.nodes)
		some := w.nodes[addrs[w.rnd.Intn(len(addrs))]]
		switch {
		case x < w.faults:
			if some.up {
				w.crash(some)
			}
		case w.restarts && x > 1-0.004:
			w.restart()
		case w.empty && x > 0.99 && x < 0.993 && !w.sw.Rebuilding:
			w.loseSwitch()
		case w.empty && w.sw.Rebuilding && x > 0.97 && x < 0.99:
			w.rebuild()
		case x < 0.06:
			w.tick(some)
		case x < 0.14:
			w.turn(w.gone)
		case x < 0.15 && w.nextClient < 7 && len(w.freeRows) > 0 && !w.sw.Rebuilding:
			w.join(w.nextClient, true, w.rnd.Intn(2) == 0)
			w.nextClient++
		case len(w.flight) == 0:
		case len(w.flight) > most:
			i := w.rnd.Intn(len(w.flight))
			w.flight = append(w.flight[:i], w.flight[i+1:]...)
		default:
			i := w.rnd.Intn(len(w.flight))
			if w.rnd.Intn(3) == 0 {
				i = len(w.flight) - 1
			}
			y := w.rnd.Intn(20)
			w.deliver(i, y == 0, y == 1 || y == 2)
		}
	}
}

// settle runs everything to its end, without faults.
func (w *world) settle() {
	w.looks = false
	if w.sw.Rebuilding {
		w.rebuild()
	}
	for round := range 600 {
		for range 200 {
			if len(w.flight) == 0 || w.broken != "" {
				break
			}
			w.deliver(w.rnd.Intn(len(w.flight)), false, false)
		}
		if w.broken != "" {
			return
		}
		if round%2 == 1 {
			for range 4 {
				w.turn(false)
			}
			continue
		}
		for _, a := range sorted(w.nodes) {
			w.tick(w.nodes[a])
		}
		if round > 20 && w.quiet() {
			return
		}
	}
	w.flight = nil
}

// quiet reports whether nothing waits for anything.
func (w *world) quiet() bool {
	for _, n := range w.nodes {
		if n.up && (len(n.runs)+len(n.ledger)+len(n.by)+len(n.requests)+len(n.asks)+len(n.sharing)+len(n.unshare) > 0 || n.audit || n.looking != nil) {
			return false
		}
	}
	for _, l := range w.gk.leases {
		if l.state != ended {
			return false
		}
	}
	return len(w.gk.ends) == 0
}

// oracle looks at what is left when everything has settled.
func (w *world) oracle() string {
	if w.broken != "" {
		return w.broken
	}
	for _, a := range sorted(w.nodes) {
		n := w.nodes[a]
		if n.gone {
			continue
		}
		for _, id := range sorted(n.runs) {
			e := n.runs[id]
			w.fail("LIVENESS %s at node %d does not end: step %d, waits for %q, dirty %v", id, a, e.at, e.waits, e.dirty)
		}
		for _, id := range sorted(n.ledger) {
			r := n.ledger[id]
			owed := ""
			for _, c := range r.all() {
				owed += fmt.Sprintf("; call %s to %d: over %v, given up %v, settled %v, closed %v", c.id, c.to, c.over, c.givenUp, c.settled, n.closedAll(c))
			}
			w.fail("LEDGER of node %d keeps %s: done %v, forgotten %v, frees %v, unshared %v%s", a, id, r.done, r.forgotten, r.frees, r.unshared(), owed)
		}
	}
	for i, k := range w.sw.Slots() {
		if k.State == Open {
			w.fail("LIVENESS slot %d stays open: row %d→%d, given %v, standing %v", i, k.Caller, k.Callee, k.Given, k.Standing)
		}
	}
	for _, a := range sorted(w.gk.ends) {
		w.fail("LIVENESS node %d is never swept: step %d", a, w.gk.ends[a].step)
	}
	for i, o := range w.sw.Words() {
		if o.Lent != 0 {
			w.fail("LEFT r%d is lent %d times", i, o.Lent)
		}
	}
	for _, slot := range sorted(w.memory[0].regions) {
		r := w.memory[0].regions[slot]
		if g := (Region{slot, r.generation}); r.live && !w.explained(g) {
			w.fail("LEAK r%d.g%d is live, its word is %+v, and nobody accounts for it", slot, g.Generation, w.sw.Word(slot))
		}
	}
	return w.broken
}

// explained reports whether the owner of a region accounts for it.
func (w *world) explained(g Region) bool {
	o := w.sw.Word(g.Slot)
	for _, n := range w.nodes {
		if n.up && n.row == o.Owner && o.Generation == g.Generation && n.accounts(g) {
			return true
		}
	}
	return false
}
