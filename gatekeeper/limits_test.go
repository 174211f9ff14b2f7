package gatekeeper

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
)

// A node has a bounded number of methods routed to it.
func TestQuota_Routes(t *testing.T) {
	inRack(t, func(r *rack) {
		s := newSmall(r)
		var methods []string
		for i := range maxMethods {
			methods = append(methods, fmt.Sprint("m", i))
		}
		exported := 0
		var err error
		for ; exported < 10 && err == nil; exported++ {
			err = s.c.export(fmt.Sprint("Squat", exported), methods...)
		}
		if exported-1 != maxRoutes/maxMethods || fault.CodeOf(err) != fault.Overloaded {
			t.Errorf("%d services of %d methods, then %v", exported-1, maxMethods, err)
		}
		if err := s.c.export("Squat0", methods...); err != nil {
			t.Errorf("what it exports already: %v", err)
		}
		if err := s.a.export("Small", "do"); err != nil {
			t.Errorf("another node: %v", err)
		}
	})
}

// Who owns as many names as one may own gets no more. Others do.
func TestQuota_Names(t *testing.T) {
	inSmall(t, func(s *small) {
		begin := func(n *testNode, name string) error {
			return n.ask(control.KindMain, control.BeginMain{Node: n.address, Incarnation: n.incarnation, Name: name}, nil)
		}
		var err error
		begun := 0
		for ; begun <= maxClaims && err == nil; begun++ {
			if begun%500 == 499 {
				pass(time.Second) // a port has a rate of control packets
			}
			err = begin(s.a, fmt.Sprint("m", begun))
		}
		if begun-1 != maxClaims || fault.CodeOf(err) != fault.Overloaded {
			t.Errorf("one owner has %d names, then %v", begun-1, err)
		}
		if err := begin(s.c, "another's"); err != nil {
			t.Errorf("another one: %v", err)
		}
	})
}

// A user of a blade has its share of the rack's nodes, and the blade has: other blades', and another user of the blade, find some.
func TestQuota_Nodes(t *testing.T) {
	c := &population{nodes: map[netip.Addr]*node{}}
	number := uint64(0)
	greedy, other := &blade{nodes: map[netip.Addr]*node{}}, &blade{nodes: map[netip.Addr]*node{}}
	join := func(b *blade, user uint32, instance string) error {
		err := c.mayHaveNode(b, &control.Join{User: user, Instance: instance})
		if err == nil {
			number++
			n := &node{address: rackaddr.Node(number), blade: b, user: user}
			c.nodes[n.address], b.nodes[n.address] = n, n
		}
		return err
	}
	one := 0
	for ; one < maxNodes && join(greedy, 1000, "") == nil; one++ {
	}
	if one < maxNodes/2 || one > maxNodes*7/9 {
		t.Errorf("a user has %d of %d nodes", one, maxNodes)
	}
	if err := join(greedy, 1001, ""); err != nil {
		t.Errorf("another user of the blade: %v", err)
	}
	for user := uint32(2000); user < 2000+maxNodes; user++ { // as many users as the blade likes
		_ = join(greedy, user, "")
	}
	if n := len(greedy.nodes); n > maxNodes*7/8 {
		t.Errorf("a blade has %d of %d nodes", n, maxNodes)
	}
	if err := join(greedy, 1, ""); fault.CodeOf(err) != fault.Overloaded || !strings.Contains(err.Error(), "its share") {
		t.Errorf("a node too many: %v", err)
	}
	if err := join(greedy, 1000, "app/program/1"); err != nil {
		t.Errorf("a program of a deployment: %v", err)
	}
	for n := range 100 {
		if err := join(other, 1000, ""); err != nil {
			t.Fatalf("node %d of another blade: %v", n, err)
		}
	}
}
