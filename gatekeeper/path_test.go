package gatekeeper

import (
	"testing"

	"github.com/bifrost-rack/bifrost/internal/control"
)

// small is the rack of most tests: a caller, a callee, a third, and memory.
type small struct {
	*rack
	m1      *testBlade
	a, b, c *testNode
}

func inSmall(t *testing.T, f func(s *small)) {
	t.Helper()
	inRack(t, func(r *rack) { f(newSmall(r)) })
}

func newSmall(r *rack) *small {
	r.t.Helper()
	s := &small{rack: r, m1: r.plug(4)}
	s.m1.hello("m1", control.Memory)
	var nodes []*testNode
	for i, name := range []string{"c1", "s1", "s2"} {
		b := r.plug(uint16(i + 1))
		b.hello(name, control.Compute)
		nodes = append(nodes, b.join(name, "program"))
	}
	s.a, s.b, s.c = nodes[0], nodes[1], nodes[2]
	if err := s.b.export("Arrays", "add", "make"); err != nil {
		r.t.Fatal(err)
	}
	return s
}
