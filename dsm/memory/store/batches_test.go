package store

import (
	"net/netip"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
)

// A region comes up in its node's batch only, in a slot without one that has rested, and with a higher generation than those before it in the slot.
// What a node is told of its slots is what it may do with them.
func TestSlots(t *testing.T) {
	type known struct {
		last  uint32
		live  bool
		rests time.Duration
	}
	rapid.Check(t, func(t *rapid.T) {
		floor := rapid.SampledFrom([]uint32{0, 7, dsmpacket.MaxGeneration - 70}).Draw(t, "floor")
		s := newTestStore(1 << 20)
		s.batches.floor = floor
		owner := map[uint32]netip.Addr{}
		slots := map[uint32]*known{}
		slot := func() (uint32, *known) {
			n := dsmpacket.BatchSlots*rapid.Uint32Range(1, 3).Draw(t, "batch") + rapid.SampledFrom([]uint32{0, 1, 63}).Draw(t, "slot")
			if slots[n] == nil {
				slots[n] = &known{}
			}
			return n, slots[n]
		}
		node := func() netip.Addr { return rackaddr.Node(rapid.Uint64Range(1, 2).Draw(t, "node")) }
		now, request := time.Duration(0), uint64(0)
		ask := func(n netip.Addr, op dsmpacket.Op, id dsmpacket.RegionID, length uint64) Answer {
			request++
			a, drop := s.Handle(&Request{Node: n, To: dsmpacket.Make(rackaddr.DefaultDSMPrefix, testMachine, id).With(op), Header: dsmpacket.Header{
				Kind: dsmpacket.Request, Request: request, Floor: request, Incarnation: 1, Length: length,
			}})
			if drop != NotDropped {
				t.Fatalf("%v: %v", op, drop)
			}
			return a
		}
		t.Repeat(map[string]func(*rapid.T){
			"grant": func(*rapid.T) {
				b := control.BatchOf{Batch: rapid.Uint32Range(0, 3).Draw(t, "batch"), Node: node()}
				if err := s.Grant(control.Grant{Batches: []control.BatchOf{b}}); (err == nil) != (b.Batch > 0) {
					t.Fatal(err)
				} else if err == nil {
					owner[b.Batch] = b.Node
				}
			},
			"alloc": func(*rapid.T) {
				n, k := slot()
				who, least := node(), max(k.last, floor)
				id := dsmpacket.IDOf(n, min(least+rapid.SampledFrom([]uint32{0, 1, 2, 8, 9}).Draw(t, "above"), dsmpacket.MaxGeneration))
				want, why := fault.OK, uint8(0)
				switch {
				case id.Generation() == 0:
					want = fault.BadRequest
				case k.live && id.Generation() == k.last:
					want, why = fault.NoSpace, dsmpacket.FlagSlot
				case owner[id.Batch()] != who:
					want = fault.Overloaded
				case id.Generation() > least+8:
					want = fault.BadRequest
				case k.live || id.Generation() <= least || now < k.rests:
					want, why = fault.NoSpace, dsmpacket.FlagSlot
				}
				a := ask(who, dsmpacket.OpAlloc, id, 64)
				if a.Header.Status != want || a.Header.Flags != why {
					t.Fatalf("%s after %+v: %v, flags %#x; want %v, %#x", id, *k, a.Header.Status, a.Header.Flags, want, why)
				}
				if want == fault.OK {
					*k = known{last: id.Generation(), live: true}
				}
			},
			"free": func(*rapid.T) {
				n, k := slot()
				if !k.live {
					return
				}
				if a := ask(node(), dsmpacket.OpFree, dsmpacket.IDOf(n, k.last), 0); a.Header.Status != fault.OK {
					t.Fatal(a.Header.Status)
				}
				k.live, k.rests = false, now+time.Second
			},
			"free what another copy has made": func(*rapid.T) {
				n, k := slot()
				id := dsmpacket.IDOf(n, min(max(k.last, floor)+rapid.SampledFrom([]uint32{0, 1, 20}).Draw(t, "above"), dsmpacket.MaxGeneration))
				if k.live && id.Generation() == k.last || !id.Valid() {
					return
				}
				if a := ask(node(), dsmpacket.OpFree, id, 0); a.Header.Status != fault.NotFound {
					t.Fatal(a.Header.Status)
				}
				if _, known := owner[id.Batch()]; known && !k.live && id.Generation() > k.last {
					k.last, k.rests = id.Generation(), now+time.Second
				}
			},
			"time": func(*rapid.T) {
				now += rapid.SampledFrom([]time.Duration{time.Millisecond, time.Second - 1, time.Second}).Draw(t, "passes")
				s.Tick(now)
			},
			"slots": func(*rapid.T) {
				n, _ := slot()
				who := node()
				a := ask(who, dsmpacket.OpSlots, dsmpacket.IDOf(n, 0), dsmpacket.SlotsSize)
				if owner[n/dsmpacket.BatchSlots] != who {
					if a.Header.Status != fault.Overloaded {
						t.Fatalf("of another node's batch: %v", a.Header.Status)
					}
					return
				}
				states, err := dsmpacket.ParseSlots(a.Data)
				if err != nil || a.Header.Status != fault.OK {
					t.Fatal(a.Header.Status, err)
				}
				for i, got := range states {
					k := slots[n/dsmpacket.BatchSlots*dsmpacket.BatchSlots+uint32(i)]
					if k == nil {
						k = &known{}
					}
					if want := (dsmpacket.SlotState{Generation: max(k.last, floor), Live: k.live, Rests: !k.live && now < k.rests}); got != want {
						t.Fatalf("slot %d: %+v, want %+v", i, got, want)
					}
				}
			},
		})
	})
}

// Two copies of which each has made a region that the other one refused are equal after a fence: nobody has heard of these regions. What both have
// made stays, also if one of them has heard that it is settled.
func TestLevelAllocations(t *testing.T) {
	var copies [2]*Store
	for i := range copies {
		copies[i] = newTestStore(1 << 20)
		copies[i].batches.at(1).node = rackaddr.Node(1)
		if err := copies[i].Become(control.Mirror{Epoch: 1, Copy: uint8(i), Members: 2}); err != nil {
			t.Fatal(err)
		}
	}
	at := func(n uint32) dsmpacket.Pointer {
		return dsmpacket.Make(rackaddr.DefaultDSMPrefix, testMachine, dsmpacket.IDOf(dsmpacket.BatchSlots+n, 1))
	}
	alloc := func(s *Store, request, floor uint64, n uint32) {
		a, _ := s.Handle(&Request{Node: rackaddr.Node(1), To: at(n).With(dsmpacket.OpAlloc), Header: dsmpacket.Header{
			Kind: dsmpacket.Request, Request: request, Floor: floor, Incarnation: 1, Length: 64,
		}})
		if a.Header.Status != fault.OK {
			t.Fatal(a.Header.Status)
		}
	}
	for _, s := range copies {
		alloc(s, 1, 1, 0)
		alloc(s, 2, 1, 1)
	}
	alloc(copies[0], 3, 1, 2)
	alloc(copies[1], 4, 2, 3) // it has heard that request 1 is settled
	q := control.Level{Epoch: 1, Fence: control.Fence{Node: rackaddr.Node(1), Incarnation: 1}}
	q.First, q.Second = copies[0].Fence(q.Fence).Unsettled, copies[1].Fence(q.Fence).Unsettled
	if q.Equal() {
		t.Error("the copies count as equal")
	}
	items, err := copies[0].Level(q)
	if err != nil {
		t.Fatal(err)
	}
	for _, next := range items {
		for item := next(4096); item != nil; item = next(4096) {
			if err := copies[1].Take(item); err != nil {
				t.Fatal(err)
			}
		}
	}
	for i, s := range copies {
		for n, want := range []bool{true, true, false, false} {
			if got := s.lives(at(uint32(n)).ID()); got != want {
				t.Errorf("copy %d, region %d: there %v, want %v", i, n, got, want)
			}
		}
	}
}

// A run gets one region in a place, in whatever slots it asks. The next run gets that one again, and no other one in its place.
func TestSlots_Place(t *testing.T) {
	w, e, node := newWorld(t), control.ExecutionID{1}, rackaddr.Node(1)
	first := w.alloc(node, e)
	again := func(p dsmpacket.Pointer, want fault.Code) {
		t.Helper()
		if a := w.ask(node, dsmpacket.OpAlloc, p.With(dsmpacket.OpAlloc), e, "", 64); a.Header.Status != want {
			t.Errorf("%s: %v, want %v", p, a.Header.Status, want)
		}
	}
	again(first, fault.Nondeterminism)
	again(choose(w.Store, node), fault.Nondeterminism)
	w.Fence(control.Fence{Node: node, Incarnation: 1})
	w.begins(node)
	w.Rollback(control.Run{Execution: e, Node: node, Incarnation: 1}, 2)
	again(choose(w.Store, node), fault.Nondeterminism)
	again(first, fault.OK)
}

// A node's next incarnation gets what a former one has allocated on behalf of no execution, and has not heard of. Nobody else does, nor the
// same incarnation, nor is it another size.
func TestSlots_NextIncarnation(t *testing.T) {
	s := newTestStore(1 << 20)
	s.KeepUndo(1 << 16)
	s.batches.at(1).node, s.batches.at(2).node = rackaddr.Node(1), rackaddr.Node(2)
	request := uint64(0)
	ask := func(node uint64, incarnation uint32, op dsmpacket.Op, id dsmpacket.RegionID, length uint64, e control.ExecutionID) fault.Code {
		request++
		a, _ := s.Handle(&Request{Node: rackaddr.Node(node), To: dsmpacket.Make(rackaddr.DefaultDSMPrefix, testMachine, id).With(op), Header: dsmpacket.Header{
			Kind: dsmpacket.Request, Request: request, Floor: request, Incarnation: incarnation, Length: length, Execution: e,
		}})
		return a.Header.Status
	}
	first, second := dsmpacket.IDOf(dsmpacket.BatchSlots, 1), dsmpacket.IDOf(dsmpacket.BatchSlots+1, 1)
	for _, c := range []struct {
		what        string
		node        uint64
		incarnation uint32
		id          dsmpacket.RegionID
		length      uint64
		execution   control.ExecutionID
		want        fault.Code
	}{
		{"a region", 1, 3, first, 100, control.ExecutionID{}, fault.OK},
		{"an execution's", 1, 3, second, 100, control.ExecutionID{1}, fault.OK},
		{"the same incarnation", 1, 3, first, 100, control.ExecutionID{}, fault.NoSpace},
		{"another node", 2, 4, first, 100, control.ExecutionID{}, fault.NoSpace},
		{"another size", 1, 4, first, 200, control.ExecutionID{}, fault.NoSpace},
		{"for an execution", 1, 4, first, 100, control.ExecutionID{1}, fault.NoSpace},
		{"of an execution", 1, 4, second, 100, control.ExecutionID{}, fault.NoSpace},
		{"the next incarnation", 1, 4, first, 100, control.ExecutionID{}, fault.OK},
		{"the next incarnation once more", 1, 4, first, 100, control.ExecutionID{}, fault.NoSpace},
	} {
		if got := ask(c.node, c.incarnation, dsmpacket.OpAlloc, c.id, c.length, c.execution); got != c.want {
			t.Errorf("%s: %v, want %v", c.what, got, c.want)
		}
	}
	s.batches.at(1).node = rackaddr.Node(2)
	for node := range uint64(2) {
		if got := ask(node+1, 5, dsmpacket.OpAlloc, first, 100, control.ExecutionID{}); got != fault.NoSpace {
			t.Errorf("when the batch has been given on, to node %d: %v", node+1, got)
		}
	}
}

// What a machine has lost is unavailable, up to the last generation that it had. What is above that has been freed, or was never made.
func TestLost(t *testing.T) {
	s := newTestStore(1 << 20)
	s.Lost(7)
	for generation, want := range map[uint32]fault.Code{1: fault.Unavailable, 7: fault.Unavailable, 8: fault.NotFound} {
		for i, op := range []dsmpacket.Op{dsmpacket.OpRead, dsmpacket.OpWrite, dsmpacket.OpFree} {
			a, _ := s.Handle(&Request{
				Node: rackaddr.Node(1), To: dsmpacket.Make(rackaddr.DefaultDSMPrefix, testMachine, dsmpacket.IDOf(dsmpacket.BatchSlots, generation)).With(op),
				Header: dsmpacket.Header{Kind: dsmpacket.Request, Request: uint64(generation)*9 + uint64(i), Floor: 1, Incarnation: 1}, //nolint:gosec // few
			})
			if a.Header.Status != want {
				t.Errorf("%v of generation %d: %v, want %v", op, generation, a.Header.Status, want)
			}
		}
	}
}
