package lease

import (
	"maps"
	"testing"

	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
	"pgregory.net/rapid"
)

// world drives a Machine with random events, applies its rules to a model of
// the switch, and checks what must hold after each step.
type world struct {
	t       *rapid.T
	m       *Machine
	granted map[Rule]bool
	moving  []Step                    // transitions in progress
	busy    map[dsmpacket.Region]bool // regions with one
	calls   []Call                    // that a callee may answer
	nodes   []Node
	alloced int // regions that came up
	ended   int // regions that went: freed, reclaimed or lost
	lastID  int
	notes   notes
}

// TestNoRuleBeyondTheTable: whatever happens in whatever order, the rules given
// are exactly those that the state gives, and no two nodes can disturb each other.
func TestNoRuleBeyondTheTable(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := &world{t: t, m: New(), granted: map[Rule]bool{}, busy: map[dsmpacket.Region]bool{}}
		for i := range 4 {
			w.nodes = append(w.nodes, nodeOf(string(rune('A'+i))))
			w.m.AddNode(w.nodes[i])
		}
		t.Repeat(map[string]func(*rapid.T){
			"":                   func(*rapid.T) { w.check() },
			"alloc":              func(*rapid.T) { w.submit(Alloc{w.node(), w.region()}) },
			"call":               func(*rapid.T) { w.call() },
			"oneway":             func(*rapid.T) { w.submit(Oneway{w.id(), w.node(), w.node(), w.pointers()}) },
			"back":               func(*rapid.T) { w.submit(Withdrawn{w.id(), CallID{}, w.node(), w.node(), w.pointers()}) },
			"reply":              func(*rapid.T) { w.reply() },
			"a reply to no call": func(*rapid.T) { w.submit(Reply{w.id(), w.node(), w.node(), w.pointers()}) },
			"free":               func(*rapid.T) { w.submit(Free{w.node(), w.region().Base}) },
			"freed":              func(*rapid.T) { w.freed() },
			"done":               func(*rapid.T) { w.done() },
			"gone":               func(*rapid.T) { w.gone() },
			"lost":               func(*rapid.T) { w.lost() },
		})
		w.drain()
	})
}

func (w *world) node() Node { return rapid.SampledFrom(w.nodes).Draw(w.t, "node") }

// region draws one of few, so that events meet.
func (w *world) region() dsmpacket.Region {
	return regionOf("r" + rapid.SampledFrom([]string{"10", "11", "12", "20", "21"}).Draw(w.t, "region"))
}

func (w *world) pointers() []dsmpacket.Pointer {
	return rapid.SliceOfN(rapid.Custom(func(t *rapid.T) dsmpacket.Pointer {
		return w.region().Base.Add(rapid.SampledFrom([]int64{0, 8, -1}).Draw(t, "offset"))
	}), 0, 3).Draw(w.t, "pointers")
}

func (w *world) id() CallID {
	w.lastID++
	return CallID{byte(w.lastID >> 8), byte(w.lastID)}
}

func (w *world) call() {
	c := Call{ID: w.id(), Caller: w.node(), Callee: w.node(), Pointers: w.pointers()}
	if len(w.calls) > 0 && rapid.Bool().Draw(w.t, "nested") {
		parent := rapid.SampledFrom(w.calls).Draw(w.t, "parent")
		c.Parent, c.Caller = parent.ID, parent.Callee
	}
	w.calls = append(w.calls, c)
	w.submit(c)
}

func (w *world) reply() {
	if len(w.calls) == 0 {
		return
	}
	c := rapid.SampledFrom(w.calls).Draw(w.t, "call")
	w.submit(Reply{c.ID, c.Caller, c.Callee, w.pointers()})
}

func (w *world) freed() {
	w.submit(Freed{w.region(), rapid.Bool().Draw(w.t, "ok")})
}

func (w *world) gone() {
	n := w.node()
	w.take(w.m.RemoveNode(n))
	if rapid.Bool().Draw(w.t, "again") {
		w.m.AddNode(n)
	}
}

func (w *world) lost() {
	w.take(w.m.RemoveMachine(regionOf("r10").Base.Prefix(), uint8(rapid.IntRange(1, 2).Draw(w.t, "machine")), 0))
}

func (w *world) submit(e Event) { w.take(w.m.Submit(e, nil)) }

// take applies steps to the model of the switch.
func (w *world) take(steps []Step) {
	w.notes.take(w.m, steps)
	for _, s := range steps {
		if s.Outcome == parked {
			w.t.Fatalf("%s: parked is not for outside", eventText(s.Event))
		}
		w.account(s)
		touched := map[dsmpacket.Region]bool{}
		for _, r := range s.Revoke {
			if !w.granted[r] {
				w.t.Fatalf("%s revokes %s, which is not granted", eventText(s.Event), r)
			}
			delete(w.granted, r)
			touched[r.Region] = true
		}
		for _, r := range s.Grant {
			if w.granted[r] {
				w.t.Fatalf("%s grants %s again", eventText(s.Event), r)
			}
			w.granted[r] = true
			touched[r.Region] = true
		}
		for r := range touched {
			if w.busy[r] {
				w.t.Fatalf("%s changes %s during another transition", eventText(s.Event), r)
			}
			w.busy[r] = true
		}
		if (s.ID != 0) != (len(touched) > 0) {
			w.t.Fatalf("%s: id %d with %d regions touched", eventText(s.Event), s.ID, len(touched))
		}
		if s.ID != 0 {
			w.moving = append(w.moving, s)
		}
	}
}

// account counts regions that come and go.
func (w *world) account(s Step) {
	w.ended += len(s.Reclaim)
	if s.Outcome != Done {
		return
	}
	switch e := s.Event.(type) {
	case Alloc:
		w.alloced++
	case Freed:
		if e.OK {
			w.ended++
		}
	case Lost:
		if len(s.Revoke) > 0 {
			w.ended++
		}
	}
}

// done completes one of the transitions in progress.
func (w *world) done() {
	if len(w.moving) == 0 {
		return
	}
	i := rapid.IntRange(0, len(w.moving)-1).Draw(w.t, "transition")
	s := w.moving[i]
	w.moving = append(w.moving[:i], w.moving[i+1:]...)
	for _, r := range append(s.Revoke, s.Grant...) {
		delete(w.busy, r.Region)
	}
	w.take(w.m.Done(s.ID))
}

// check compares the switch with the state, and holds it against the table.
func (w *world) check() {
	derived := map[Rule]bool{}
	for r := range w.m.Rules() {
		derived[r] = true
	}
	if !maps.Equal(derived, w.granted) {
		w.t.Fatalf("the switch has %v\nthe state gives %v", w.granted, derived)
	}
	w.counted()
	same(w.t, w.notes.restore(w.t, w.nodes), w.m)
	for r := range w.granted {
		if r.Op != dsmpacket.OpWrite {
			continue
		}
		for o := range w.granted {
			if o.Region == r.Region && o.Node != r.Node {
				w.t.Fatalf("%s while %s", r, o)
			}
		}
	}
}

// counted checks how many bytes the regions of each machine have.
func (w *world) counted() {
	bytes := map[uint8]uint64{}
	for _, r := range w.m.regions {
		if !r.dead {
			bytes[r.id.Base.Machine()] += r.id.Size()
		}
	}
	for machine := range uint8(4) {
		if w.m.Bytes(machine) != bytes[machine] {
			w.t.Fatalf("the regions of machine %d have %d bytes, want %d", machine, w.m.Bytes(machine), bytes[machine])
		}
	}
}

// drain ends everything: then nothing may be left.
func (w *world) drain() {
	for _, n := range w.nodes {
		w.take(w.m.RemoveNode(n))
	}
	for len(w.moving) > 0 {
		w.done()
		w.check()
	}
	if n := len(w.granted) + w.m.Pending() + w.m.Parked() + w.m.Len() + w.m.Calls(); n != 0 {
		w.t.Fatalf("left over: rules %v, %d pending, %d regions, %d calls", w.granted, w.m.Pending(), w.m.Len(), w.m.Calls())
	}
	if w.alloced != w.ended {
		w.t.Fatalf("%d regions came up, %d went", w.alloced, w.ended)
	}
}
