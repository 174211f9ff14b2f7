package callgraph

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// waitsModel is services with state, each on a node of its own, whose executions call each other
// at random. It knows who waits for whom, and what the nodes tell of it comes later.
type waitsModel struct {
	t        *testing.T
	r        *rand.Rand
	waits    Waits
	now      time.Time
	services []*waitsService
	calls    []*waitsCall // under way
	made     byte
	refused  int
}

type waitsService struct {
	name   string
	serial bool
	queue  []*waitsCall // the first one has the slot
	report func()       // that is on its way, nil for none
}

type waitsCall struct {
	id     rpcpacket.ID
	parent *waitsCall
	at     *waitsService
	child  *waitsCall
	ended  bool
}

// nodeOf is the node that runs a service.
func nodeOf(name string) Node { return nodeAt(uint64(name[0])) }

func newWaitsModel(t *testing.T, seed uint64) *waitsModel {
	m := &waitsModel{t: t, r: rand.New(rand.NewPCG(seed, 1)), now: time.Unix(100, 0)}
	for i := range 2 + m.r.IntN(4) {
		m.services = append(m.services, &waitsService{name: string(rune('S' + i)), serial: m.r.IntN(4) > 0})
	}
	return m
}

// runs reports whether a call runs, and does not wait for its turn.
func (c *waitsCall) runs() bool { return !c.at.serial || c.at.queue[0] == c }

// lineage is which executions of services with state wait for a call.
func (c *waitsCall) lineage() (all []rpcpacket.ID) {
	for p := c.parent; p != nil; p = p.parent {
		if p.at.serial {
			all = append(all, p.id)
		}
	}
	return all
}

// call makes a call.
func (m *waitsModel) call(parent *waitsCall) {
	m.made++
	c := &waitsCall{id: rpcpacket.ID{15: m.made}, parent: parent, at: m.services[m.r.IntN(len(m.services))]}
	if parent != nil {
		parent.child = c
	}
	c.at.queue = append(c.at.queue, c)
	m.calls = append(m.calls, c)
}

// end ends a call.
func (m *waitsModel) end(c *waitsCall) {
	c.ended = true
	if c.parent != nil {
		c.parent.child = nil
	}
	remove := func(o *waitsCall) bool { return o == c }
	c.at.queue, m.calls = slices.DeleteFunc(c.at.queue, remove), slices.DeleteFunc(m.calls, remove)
}

// waitsForItself is the truth.
func (m *waitsModel) waitsForItself(c *waitsCall) bool {
	k := c
	for range len(m.calls) + 1 {
		switch {
		case !k.runs():
			k = k.at.queue[0]
		case k.child != nil:
			k = k.child
		default:
			return false
		}
		if k == c {
			return true
		}
	}
	return false
}

// tell has a node tell what waits there. It is received later.
func (m *waitsModel) tell(s *waitsService) {
	var waits []Wait
	for _, c := range m.calls {
		switch l := c.lineage(); {
		case c.at != s:
		case !c.runs() && len(l) > 0:
			waits = append(waits, Wait{ID: c.id, Behind: s.queue[0].id, For: l, Service: s.name})
		}
	}
	node := nodeOf(s.name).Address
	s.report = func() {
		m.waits.Report(node, m.now, waits)
		if k, circle, found := m.waits.Deadlock(node, m.now); found {
			m.refuse(k, circle)
		}
	}
}

// refuse refuses a call, if it should be.
func (m *waitsModel) refuse(k Wait, circle []rpcpacket.ID) {
	i := slices.IndexFunc(m.calls, func(c *waitsCall) bool { return c.id == k.ID })
	if i < 0 || !m.waitsForItself(m.calls[i]) || m.calls[i].runs() {
		m.t.Fatalf("call %s does not wait for itself by %s", k.ID, circle)
	}
	m.refused++
	m.end(m.calls[i])
}

// step does something at random; calls are made only at first.
func (m *waitsModel) step(making bool) {
	m.now = m.now.Add(time.Duration(1+m.r.IntN(10)) * time.Millisecond)
	if s := m.services[m.r.IntN(len(m.services))]; m.r.IntN(2) == 0 {
		if s.report != nil {
			s.report()
		}
		m.tell(s)
		return
	}
	if making && len(m.calls) < 12 && m.made < 200 && m.r.IntN(3) == 0 {
		m.call(nil)
		return
	}
	if len(m.calls) == 0 {
		return
	}
	switch c := m.calls[m.r.IntN(len(m.calls))]; {
	case !c.runs() || c.child != nil:
	case making && m.made < 200 && m.r.IntN(3) > 0:
		m.call(c)
	default:
		m.end(c)
	}
}

// TestWaits: whatever calls wait for each other, and however late the Gatekeeper hears of it, a
// call is refused if it waits for itself, and no other one.
func TestWaits(t *testing.T) {
	refused := 0
	for seed := range uint64(1000) {
		m := newWaitsModel(t, seed)
		for range 300 {
			m.step(true)
		}
		for range 2000 {
			if len(m.calls) == 0 {
				break
			}
			m.step(false)
		}
		if len(m.calls) > 0 {
			t.Fatalf("seed %d: %d calls wait for ever", seed, len(m.calls))
		}
		refused += m.refused
	}
	if refused < 500 {
		t.Errorf("%d deadlocks: too few to say something", refused)
	}
}

// A call that is to be refused is named again if it still waits a second later, and a node that
// is gone tells nothing.
func TestWaits_Refused(t *testing.T) {
	var w Waits
	id := func(n byte) rpcpacket.ID { return rpcpacket.ID{n} }
	a, b := nodeOf("A").Address, nodeOf("B").Address
	tell := func(node string, ms int) (rpcpacket.ID, bool) {
		at := time.Unix(100, 0).Add(time.Duration(ms) * time.Millisecond)
		k := Wait{ID: id(3), Behind: id(1), For: []rpcpacket.ID{id(2)}}
		n := a
		if node == "B" {
			k, n = Wait{ID: id(4), Behind: id(2), For: []rpcpacket.ID{id(1)}}, b
		}
		w.Report(n, at, []Wait{k})
		v, _, found := w.Deadlock(n, at)
		return v.ID, found
	}
	for i, s := range []struct {
		node  string
		ms    int
		found bool
	}{{"A", 0, false}, {"B", 10, true}, {"A", 20, false}, {"B", 1500, true}, {"A", 1600, false}} {
		if v, found := tell(s.node, s.ms); found != s.found || found && v != id(4) {
			t.Errorf("report %d, of %s: %v, %t", i, s.node, v, found)
		}
	}
	w.Gone(a)
	if _, found := tell("B", 3000); found {
		t.Error("a deadlock with a node that is gone")
	}
}
