package gatekeeper

import (
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

var seedFlag = flag.Uint64("seed", 0, "run only this seed of the random tests")

// TestRandom lets three nodes do random things to each other's regions, honest
// and not, and holds what the switch lets each of them do against a model that
// is written down from the design's table alone.
func TestRandom(t *testing.T) {
	seeds := 12
	if testing.Short() {
		seeds = 3
	}
	for seed := uint64(1); seed <= uint64(seeds); seed++ {
		if *seedFlag != 0 {
			seed = *seedFlag
		}
		t.Run(fmt.Sprint("seed=", seed), func(t *testing.T) {
			bothWays(t, func(s *small) {
				m := newModel(s, rand.New(rand.NewPCG(seed, 0)))
				for range 60 {
					m.step()
					if s.t.Failed() {
						return
					}
				}
				m.check()
			})
		})
		if *seedFlag != 0 {
			return
		}
	}
}

func serviceName(i int) string { return fmt.Sprint("Service", i) }

// model is what the table says, step by step.
type model struct {
	*small
	rng     *rand.Rand
	nodes   []*testNode
	regions map[dsmpacket.Pointer]*modelRegion
	order   []dsmpacket.Pointer // of their allocation
	calls   []*modelCall        // that have arrived and are not answered
	last    uint64
}

func newModel(s *small, rng *rand.Rand) *model {
	m := &model{small: s, rng: rng, regions: map[dsmpacket.Pointer]*modelRegion{}, nodes: []*testNode{s.a, s.b, s.c}}
	for i, n := range m.nodes {
		if err := n.export(serviceName(i), "m"); err != nil {
			s.t.Fatal(err)
		}
	}
	return m
}

type modelRegion struct {
	controller int
	leases     []*modelCall
}

type modelCall struct {
	caller, callee int
	parent         *modelCall        // whose execution made it, nil for none
	message        rpcpacket.Message // as it arrived
	lent           []dsmpacket.Pointer
}

// may is the table.
func (m *model) may(n int, p dsmpacket.Pointer) string {
	r := m.regions[p]
	switch {
	case r == nil:
		return "nothing"
	case r.controller == n && len(r.leases) == 0:
		return "read+write"
	case r.controller == n || slices.ContainsFunc(r.leases, func(c *modelCall) bool { return c.callee == n }):
		return "read"
	}
	return "nothing"
}

func (m *model) pick() int { return m.rng.IntN(len(m.nodes)) }

// pointers picks some regions' middles.
func (m *model) pointers() (ps []dsmpacket.Pointer) {
	for range m.rng.IntN(3) {
		if len(m.order) > 0 {
			ps = append(ps, m.order[m.rng.IntN(len(m.order))].Add(int64(m.rng.IntN(2)*64)))
		}
	}
	return ps
}

// bases are the regions that pointers lie in, each once.
func bases(ps []dsmpacket.Pointer) []dsmpacket.Pointer {
	set := map[dsmpacket.Pointer]bool{}
	for _, p := range ps {
		set[p.Base()] = true
	}
	return slices.SortedFunc(maps.Keys(set), func(a, b dsmpacket.Pointer) int { return slices.Compare(a[:], b[:]) })
}

func (m *model) step() {
	switch k := m.rng.IntN(10); {
	case k < 2:
		m.alloc()
	case k < 5:
		m.call(rpcpacket.Call)
	case k < 8:
		m.answer()
	case k < 9:
		m.call(rpcpacket.Oneway)
	default:
		m.free()
	}
	if m.rng.IntN(4) == 0 {
		m.check()
	}
}

func (m *model) alloc() {
	n := m.pick()
	m.last++
	p := m.m1.alloc(m.nodes[n], 1, m.last)
	m.regions[p] = &modelRegion{controller: n}
	m.order = append(m.order, p)
}

// call makes a call or one-way, allowed or not.
func (m *model) call(kind rpcpacket.Type) {
	from, to := m.pick(), m.pick()
	ps := m.pointers()
	allowed := true
	for _, p := range bases(ps) {
		r := m.regions[p]
		allowed = allowed && r != nil && (r.controller == from || kind == rpcpacket.Call && m.may(from, p) != "nothing")
	}
	n := m.nodes[from]
	n.at = (n.at + 1) % (rpcpacket.MaxBlocks * rpcpacket.BlockSlots) // so that no call settles another
	msg := n.message(serviceName(to), "m", ps...)
	msg.Type = kind
	outer := m.executing(from)
	if outer != nil { // it is made by the execution of another call
		msg.Parent = outer.message.Call
	}
	if len(ps) > 0 {
		msg.Flags |= rpcpacket.FlagHeld
	}
	for range 1 + m.rng.IntN(2) { // sent twice now and then
		n.call(serviceName(to), msg)
	}
	arrived := m.nodes[to].messages()
	if !allowed {
		if len(arrived) != 0 && arrived[0].Type != rpcpacket.Exception {
			m.t.Errorf("%s %d→%d with %v arrived: %+v", kind, from, to, ps, arrived)
		}
		m.nodes[from].take()
		return
	}
	if len(arrived) == 0 || arrived[0].Type != kind {
		m.t.Errorf("%s %d→%d with %v: got %+v, %+v", kind, from, to, ps, arrived, n.messages())
		return
	}
	c := &modelCall{caller: from, callee: to, message: arrived[0], lent: bases(ps)}
	if kind == rpcpacket.Call {
		m.calls = append(m.calls, c)
		c.parent = outer
	}
	for _, p := range c.lent {
		if r := m.regions[p]; kind == rpcpacket.Call {
			r.leases = append(r.leases, c)
		} else {
			r.controller = to
		}
	}
}

// executing picks, half of the time, a call that a node serves.
func (m *model) executing(n int) *modelCall {
	for _, c := range m.calls {
		if c.callee == n && m.rng.IntN(2) == 0 {
			return c
		}
	}
	return nil
}

// answer answers a call with results that are the callee's, or not.
func (m *model) answer() {
	if len(m.calls) == 0 {
		return
	}
	i := m.rng.IntN(len(m.calls))
	c := m.calls[i]
	if slices.ContainsFunc(m.calls, func(o *modelCall) bool { return o.parent == c }) {
		return // the execution waits for its nested calls
	}
	results := m.pointers()
	if stranger := m.pick(); stranger != c.callee { // does not count: the caller has not called it
		forged := c.message
		forged.Trailer = make([]byte, originBytes)
		m.nodes[stranger].reply(m.nodes[c.caller].address, &forged, results...)
	}
	for range 1 + m.rng.IntN(2) {
		m.nodes[c.callee].reply(m.nodes[c.caller].address, &c.message, results...)
	}
	m.calls = slices.Delete(m.calls, i, i+1)
	for _, p := range c.lent {
		if r := m.regions[p]; r != nil {
			r.leases = slices.DeleteFunc(r.leases, func(o *modelCall) bool { return o == c })
		}
	}
	good := true
	for _, p := range bases(results) {
		good = good && m.regions[p] != nil && m.regions[p].controller == c.callee
	}
	want := rpcpacket.Exception
	if good {
		want = rpcpacket.Reply
		for _, p := range bases(results) {
			m.regions[p].controller = c.caller
		}
	}
	got := m.nodes[c.caller].messages()
	if len(got) == 0 || got[0].Type != want || got[0].Call != c.message.Call {
		m.t.Errorf("reply %d→%d with %v: got %+v, want a %s", c.callee, c.caller, results, got, want)
	}
}

// free frees a region, allowed or not.
func (m *model) free() {
	if len(m.order) == 0 {
		return
	}
	n, p := m.pick(), m.order[m.rng.IntN(len(m.order))]
	allowed := m.may(n, p) == "read+write"
	m.nodes[n].memory(dsmpacket.OpFree, p)
	if served := len(m.m1.serve()) > 0; served != allowed {
		m.t.Errorf("free of %s by %d: done %v, want %v", p, n, served, allowed)
	}
	m.nodes[n].take()
	if allowed {
		delete(m.regions, p)
	}
}

// check tries what the switch lets each node do with each region.
func (m *model) check() {
	for _, p := range m.order {
		for i, n := range m.nodes {
			if got, want := n.may(m.m1, p), m.may(i, p); got != want {
				m.t.Errorf("node %d may %s with %s, want %s", i, got, p, want)
			}
		}
	}
	rules := 0
	for _, r := range m.regions {
		readers := map[int]bool{r.controller: true}
		for _, c := range r.leases {
			readers[c.callee] = true
		}
		rules += len(readers)
		if len(r.leases) == 0 {
			rules += 2
		}
	}
	found, err := m.gk.client.Read(m.t.Context(), "dsm_access")
	if err != nil || len(found) != rules {
		m.t.Errorf("the switch has %d access rules, %v; the table gives %d", len(found), err, rules)
	}
}
