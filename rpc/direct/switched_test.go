package direct

import (
	"container/heap"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/rpc/endpoint"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// switched is a world whose switch has call slots: a call of policy none opens its slot, and its answer closes it. The caller restarts, too, and asks
// then about the slots that are open. It gives calls up, which it goes on sending.
type switched struct {
	world
	incarnation uint32
	slots       map[rpcpacket.Slot]*openSlot
	unbegun     map[rpcpacket.ID]bool // that was said of them
	given       map[rpcpacket.ID]bool // up
	restarts    int
	asked       int
	lent        int
}

// openSlot is a call slot of the switch.
type openSlot struct {
	number rpcpacket.Number
	open   bool
	callee int
	bound  uint32
}

func newSwitched(t *testing.T, seed uint64) *switched {
	w := &switched{
		world: *newWorld(t, seed), incarnation: 1, slots: map[rpcpacket.Slot]*openSlot{},
		unbegun: map[rpcpacket.ID]bool{}, given: map[rpcpacket.ID]bool{},
	}
	w.rng = rand.New(rand.NewPCG(seed, 2))
	return w
}

// restartCaller has the caller go on as its next incarnation, which asks about what is open.
func (w *switched) restartCaller() {
	w.restarts++
	w.incarnation++
	clear(w.open)
	w.caller = endpoint.NewCaller(callerNode, w.incarnation, nil)
	for at, s := range w.slots {
		if s.open {
			w.caller.Hold(at, s.number, nodeOf(s.callee).As16())
		}
	}
	w.caller.Grant([]uint32{1, 2, 3, 4, 5, 6, 7, 8})
	for _, at := range slices.Sorted(maps.Keys(w.slots)) {
		s := w.slots[at]
		if !s.open {
			continue
		}
		q := &endpoint.Call{RTT: &w.rtt, Slot: at, Number: s.number, Node: nodeOf(s.callee).As16(), Tag: true}
		if !w.caller.Ask(w.now, q) {
			w.t.Fatalf("slot %d is not asked about", at)
		}
		w.asked++
		w.open[q.ID] = q
		w.transmit(q)
	}
}

func (w *switched) begin() {
	callee := w.rng.IntN(len(w.callees))
	c := &endpoint.Call{RTT: &w.rtt, Node: nodeOf(callee).As16()}
	if !w.caller.Take(c) {
		w.caller.Leave(c)
		w.refused++
		w.begun++
		return
	}
	if !w.caller.Begin(w.now, c) {
		w.t.Fatal("it does not begin")
	}
	w.bound[c.ID] = w.callees[callee].incarnation
	w.begun++
	w.open[c.ID] = c
	w.transmit(c)
	if w.rng.IntN(5) == 0 {
		w.after(time.Duration(w.rng.Int64N(int64(100*time.Millisecond))), func() {
			if w.caller.Detach(c, 0) {
				w.given[c.ID] = true
				w.transmit(c)
			}
		})
	}
}

// transmit sends a call, or a question, through the switch.
func (w *switched) transmit(c *endpoint.Call) {
	h := rpcpacket.Header{Type: rpcpacket.Call, Call: c.ID, Slot: c.Slot, Number: c.Number, CallerIncarnation: w.incarnation}
	callee := 0
	if nodeOf(1).As16() == c.Node {
		callee = 1
	}
	if w.given[c.ID] {
		h.Flags |= rpcpacket.FlagGivenUp
	}
	if h.CalleeIncarnation = w.bound[c.ID]; c.Tag != nil {
		h.Type = rpcpacket.Ask
		h.Flags = 0
		if w.rng.IntN(2) == 0 {
			h.CalleeIncarnation = 0 // the Gatekeeper does not know it
			h.Call = rpcpacket.ID{}
		}
	}
	if h.Type == rpcpacket.Call && !w.passes(&h, callee) {
		return
	}
	w.send(func() { w.arrive(callee, &h) })
}

// passes has the switch judge a call.
func (w *switched) passes(h *rpcpacket.Header, callee int) bool {
	s := w.slots[h.Slot]
	if s == nil {
		s = new(openSlot)
		w.slots[h.Slot] = s
	}
	switch {
	case s.number == h.Number:
		return true
	case s.number > h.Number || s.open:
		w.t.Fatalf("%v: slot %d has %s, open %t, and %s comes", w.now, h.Slot, s.number, s.open, h.Number)
	case w.rng.IntN(20) == 0:
		w.lent++
		back := rpcpacket.Message{Header: *h}
		back.Turned = rpcpacket.Lent
		w.after(time.Microsecond, func() { w.caller.Turned(w.now, &back) })
		return false
	}
	*s = openSlot{number: h.Number, open: true, callee: callee, bound: h.CalleeIncarnation}
	return true
}

func (w *switched) arrive(i int, m *rpcpacket.Header) {
	callee := w.callees[i]
	id := rpcpacket.PlainID(callerNode, m.Slot, m.Number)
	answer := func(kind rpcpacket.Type, code fault.Code, flags rpcpacket.Flags) {
		w.answer(i, rpcpacket.Header{Type: kind, Code: code, Flags: flags, Call: id, Slot: m.Slot, Number: m.Number})
	}
	var a Arrival
	if m.Type == rpcpacket.Ask {
		a = callee.Ask(callerNode, m)
	} else {
		a = callee.Receive(w.now, callerNode, m)
	}
	if a.Abandoned != nil {
		w.ended++
	}
	switch a.Verdict {
	case Run:
		if w.runs[id]++; w.runs[id] > 1 || w.unbegun[id] {
			w.t.Fatalf("%v: call %s is run %d times, and has not begun: %t", w.now, id, w.runs[id], w.unbegun[id])
		}
		w.after(time.Duration(w.rng.Int64N(int64(50*time.Millisecond))), func() {
			if w.callees[i] == callee { // else it has failed meanwhile
				callee.Finish(a.Entry, id[:], nil)
				answer(rpcpacket.Reply, 0, 0)
			}
		})
	case Answer:
		answer(rpcpacket.Reply, 0, 0)
	case Gone, Lost:
		answer(rpcpacket.Exception, fault.Unavailable, 0)
	case Unbegun, Refused:
		if bound := w.bound[id]; w.runs[id] > 0 && (a.Verdict == Refused || m.CalleeIncarnation != 0 && bound == callee.incarnation) {
			w.t.Fatalf("%v: call %s has begun, and %s", w.now, id, a.Verdict)
		}
		w.unbegun[id] = w.unbegun[id] || m.CalleeIncarnation != 0
		answer(rpcpacket.Exception, fault.Unavailable, rpcpacket.FlagUnbegun)
	case Duplicate, Late:
	default:
		w.t.Fatalf("%v: call %s: %v", w.now, id, a.Verdict)
	}
}

// answer carries an answer through the switch, which closes the slot.
func (w *switched) answer(i int, h rpcpacket.Header) {
	if s := w.slots[h.Slot]; s == nil || s.number != h.Number || s.callee != i {
		return
	}
	w.slots[h.Slot].open = false
	w.send(func() {
		c := w.caller.Receive(w.now, nodeOf(i), &rpcpacket.Message{Header: h})
		if c == nil {
			return
		}
		if w.open[c.ID] != c || c.ID != h.Call || h.Type == rpcpacket.Reply && w.runs[c.ID] != 1 {
			w.t.Fatalf("%v: call %s, which has run %d times, gets the answer %+v", w.now, c.ID, w.runs[c.ID], h)
		}
		delete(w.open, c.ID)
		w.answered++
	})
}

func (w *switched) tick() {
	resend, _ := w.caller.Tick(w.now, nil, nil)
	for _, c := range resend {
		w.transmit(c)
	}
	if len(w.events) > 0 || w.caller.Outstanding() > 0 {
		w.after(5*time.Millisecond, w.tick)
	}
}

func (w *switched) run(calls int) {
	for i := range calls {
		w.after(time.Duration(i)*time.Millisecond, w.begin)
		switch i % 100 {
		case 49:
			w.after(time.Duration(i)*time.Millisecond, w.restartCaller)
		case 99:
			w.after(time.Duration(i)*time.Millisecond, w.restart)
		}
	}
	w.after(0, w.tick)
	for len(w.events) > 0 {
		e := heap.Pop(&w.events).(event)
		w.now = e.at
		e.do()
		if w.now > time.Hour {
			w.t.Fatalf("%d calls are not answered in an hour", w.caller.Outstanding())
		}
	}
}

// Each slot that a call has opened is closed, whether its caller waits, has given the call up, or has restarted, and whenever its callee restarts. Each call is run
// at most once, and not when "never began" was said of it to who may make it again.
func TestModel_Switch(t *testing.T) {
	var total switched
	for seed := range uint64(50) {
		t.Run(fmt.Sprint("seed=", seed), func(t *testing.T) {
			w := newSwitched(t, seed)
			w.run(500)
			for at, s := range w.slots {
				if s.open {
					t.Errorf("slot %d stays open", at)
				}
			}
			if len(w.open) > 0 || len(w.caller.All(nil)) > 0 || w.begun != 500 {
				t.Errorf("%d of %d calls are not answered", len(w.open), w.begun)
			}
			total.answered += w.answered
			total.ended += w.ended
			total.asked += w.asked
			total.lent += w.lent
			total.restarts += w.restarts
			total.incarnation += uint32(len(w.unbegun)) //nolint:gosec // small
		})
	}
	if total.asked == 0 || total.ended == 0 || total.lent == 0 || total.incarnation == 0 {
		t.Errorf("that tests little: %d restarts, %d asked, %d cancelled, %d lent, %d never began", total.restarts, total.asked, total.ended, total.lent, total.incarnation)
	}
	t.Logf("%d answered, %d restarts, %d asked, %d cancelled, %d lent, %d never began", total.answered, total.restarts, total.asked, total.ended, total.lent, total.incarnation)
}
