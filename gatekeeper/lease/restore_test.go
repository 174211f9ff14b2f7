package lease

import (
	"maps"
	"slices"
	"testing"

	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
)

// notes is what a log keeps of a Machine: regions as Step.Changed tells, and
// calls from their Call to their end.
type notes struct {
	regions map[dsmpacket.Region]Region
	calls   []Call
}

// take notes what steps tell.
func (n *notes) take(m *Machine, steps []Step) {
	if n.regions == nil {
		n.regions = map[dsmpacket.Region]Region{}
	}
	for _, s := range steps {
		for _, r := range s.Changed {
			if v, ok := m.Find(r.Base); ok && v.Region == r {
				n.regions[r] = v
			} else {
				n.lose(r)
			}
		}
		switch e := s.Event.(type) {
		case Call:
			if s.Outcome == Done {
				n.calls = append(n.calls, e)
			}
		case Reply:
			if s.Outcome == Done || s.Refusal != nil && s.Refusal.Reason != NotTheCall {
				n.end(e.ID)
			}
		case Ended:
			n.end(e.ID)
		}
	}
}

func (n *notes) end(id CallID) {
	n.calls = slices.DeleteFunc(n.calls, func(c Call) bool { return c.ID == id })
}

// lose forgets a region. Its address will not name another one, except here; so
// no call may speak of it.
func (n *notes) lose(r dsmpacket.Region) {
	delete(n.regions, r)
	for i := range n.calls {
		n.calls[i].Pointers = slices.DeleteFunc(slices.Clone(n.calls[i].Pointers), func(p dsmpacket.Pointer) bool {
			return r.Contains(p)
		})
	}
}

// restore makes a Machine from the notes, in which nodes that are gone are not yet.
func (n *notes) restore(t interface{ Fatalf(string, ...any) }, nodes []Node) *Machine {
	m := New()
	for _, a := range nodes {
		m.AddNode(a)
	}
	for _, r := range n.regions {
		if !m.Adopt(r) {
			t.Fatalf("region %s is not adopted", r.Region)
		}
	}
	for _, c := range n.calls {
		if !m.Resume(c) {
			t.Fatalf("call %s is not resumed", c.ID)
		}
	}
	return m
}

// same checks that two machines give the same rules and know the same leases.
// Which replies wait for which nested calls may differ where a region was lost.
func same(t interface{ Fatalf(string, ...any) }, got, want *Machine) {
	rules := func(m *Machine) map[Rule]bool {
		set := map[Rule]bool{}
		for r := range m.Rules() {
			set[r] = true
		}
		return set
	}
	if g, w := rules(got), rules(want); !maps.Equal(g, w) {
		t.Fatalf("restored, the rules are %v, want %v", g, w)
	}
	if got.Calls() != want.Calls() {
		t.Fatalf("restored, there are %d calls, want %d", got.Calls(), want.Calls())
	}
	for id, k := range want.calls {
		if g := got.calls[id]; g == nil || len(g.leases) != len(k.leases) || g.caller != k.caller || g.callee != k.callee {
			t.Fatalf("restored, call %s is %+v, want %+v", id, g, k)
		}
	}
}

func TestRestore_Refuses(t *testing.T) {
	m := New()
	a, r := nodeOf("A"), regionOf("r10")
	m.AddNode(a)
	if !m.Adopt(Region{Region: r, Owner: a, Controller: nodeOf("B")}) {
		t.Fatal("not adopted")
	}
	if v, ok := m.Find(r.Base); !ok || v.Controller.IsValid() {
		t.Errorf("a region whose controller is gone: %+v, %v", v, ok)
	}
	if m.Adopt(Region{Region: r, Owner: a, Controller: a}) {
		t.Error("adopted twice")
	}
	if m.Resume(Call{ID: CallID{1}, Caller: a, Callee: nodeOf("B")}) {
		t.Error("a call to a node that is not known was resumed")
	}
}

// A region that was about to go when the restart came, since nobody controls or
// leases it any more, goes then; one that a call still leases goes with the call.
func TestSweep(t *testing.T) {
	m := New()
	a, b := nodeOf("A"), nodeOf("B")
	m.AddNode(a)
	m.AddNode(b)
	regions := map[string]dsmpacket.Region{"nobody's": regionOf("r10"), "leased": regionOf("r20"), "controlled": regionOf("r30")}
	m.Adopt(Region{Region: regions["nobody's"], Owner: a})
	m.Adopt(Region{Region: regions["leased"], Owner: a})
	m.Adopt(Region{Region: regions["controlled"], Owner: a, Controller: a})
	call := Call{ID: CallID{15: 1}, Caller: a, Callee: b, Pointers: []dsmpacket.Pointer{regions["leased"].Base}}
	if !m.Resume(call) {
		t.Fatal("the call is not resumed")
	}
	reclaimed := func(steps []Step) (all []dsmpacket.Region) {
		for _, s := range steps {
			all = append(all, s.Reclaim...)
			all = append(all, reclaimedBy(m.Done(s.ID))...)
		}
		return all
	}
	if got := reclaimed(m.Sweep()); !slices.Equal(got, []dsmpacket.Region{regions["nobody's"]}) {
		t.Errorf("swept %v", got)
	}
	if got := reclaimed(m.Submit(Ended{call.ID}, nil)); !slices.Equal(got, []dsmpacket.Region{regions["leased"]}) {
		t.Errorf("the end of the call took %v", got)
	}
	if got := m.Sweep(); len(got) != 0 || m.Len() != 1 {
		t.Errorf("a second time: %v, %d regions left", got, m.Len())
	}
}

func reclaimedBy(steps []Step) (all []dsmpacket.Region) {
	for _, s := range steps {
		all = append(all, s.Reclaim...)
	}
	return all
}
