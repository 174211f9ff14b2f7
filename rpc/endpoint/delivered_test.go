package endpoint

import (
	"math/rand/v2"
	"net/netip"
	"testing"

	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// exactCall is the n-th exactly-once call that a run of the Gatekeeper delivers.
func exactCall(n, run, number uint64) *rpcpacket.Message {
	return &rpcpacket.Message{Header: rpcpacket.Header{
		Type: rpcpacket.Call, Call: rpcpacket.SessionID(1, n), Floor: rpcpacket.DeliveryNumber(run, number),
		Flags: (rpcpacket.FlagSession | rpcpacket.FlagHeld | rpcpacket.FlagReleased).WithPolicy(rpcpacket.PolicyRecover),
	}}
}

// A callee runs any number of exactly-once calls, at whatever rate, also while one of
// them takes as long as all the others, and a late copy of none of them runs again.
func TestExactCalls_Unbounded(t *testing.T) {
	c := NewCallee(1, DefaultLimits)
	rng := rand.New(rand.NewPCG(1, 1))
	const calls = 300_000
	for n := uint64(1); n <= calls; n++ {
		a := c.Receive(0, 0, netip.Addr{}, exactCall(n, 1, n))
		if a.Verdict != Run {
			t.Fatalf("call %d: %s", n, a.Verdict)
		}
		if n == 1 {
			continue // it runs to the end
		}
		c.Commit(0, a.Entry, []byte("pong"), n)
		if tag := c.Acknowledge(a.Entry.ID, rpcpacket.DeliveryNumber(1, n)); tag != n {
			t.Fatalf("call %d: %v is committed", n, tag)
		}
		if late := 1 + rng.Uint64N(n); n%16 == 0 {
			want := Late
			if late == 1 {
				want = Duplicate
			}
			if a := c.Receive(0, 0, netip.Addr{}, exactCall(late, 1, late)); a.Verdict != want {
				t.Fatalf("a copy of call %d after %d calls: %s", late, n, a.Verdict)
			}
		}
	}
	if len(c.exact) != 1 || len(c.over.settled) != 1 {
		t.Errorf("%d calls and %d spans are remembered, want 1 of each", len(c.exact), len(c.over.settled))
	}
}

// Calls that wait for their turn take no room from the one that they wait for.
func TestExactCalls_Early(t *testing.T) {
	limits := DefaultLimits
	limits.Exact = 2
	c := NewCallee(1, limits)
	receive := func(n uint64, want Verdict) *Entry {
		t.Helper()
		a := c.Receive(0, 0, netip.Addr{}, exactCall(n, 1, n))
		if a.Verdict != want {
			t.Fatalf("call %d: %s, want %s", n, a.Verdict, want)
		}
		return a.Entry
	}
	var waiting []*Entry
	for n := uint64(2); n <= 6; n++ {
		e := receive(n, Run)
		c.Postpone(e)
		waiting = append(waiting, e)
	}
	receive(1, Run) // for which they wait
	c.Forget(waiting[4])
	c.Turn(waiting[0])
	receive(7, Full)
	c.Commit(0, waiting[0], []byte("pong"), nil)
	c.Acknowledge(waiting[0].ID, rpcpacket.DeliveryNumber(1, 2))
	receive(7, Run)
	if c.early != 3 || len(c.exact) != 5 {
		t.Errorf("%d wait of %d", c.early, len(c.exact))
	}
}

// Calls that end in any order leave one span behind, and only what has ended is late.
func TestDeliveries(t *testing.T) {
	for seed := range uint64(20) {
		rng := rand.New(rand.NewPCG(seed, 3))
		var d deliveries
		d.begin(7)
		settled := map[uint64]bool{}
		for _, n := range rng.Perm(300) {
			number := uint64(n) + 1
			d.settle(number)
			d.settle(number)
			settled[number] = true
			for probe := range uint64(303) {
				if d.late(7, probe) != settled[probe] {
					t.Fatalf("seed %d: %d is late: %v", seed, probe, d.late(7, probe))
				}
			}
		}
		if len(d.settled) != 1 {
			t.Errorf("seed %d: %v", seed, d.settled)
		}
		if !d.late(6, 9000) || d.late(8, 1) {
			t.Errorf("seed %d: a former run is not late, or the next one is", seed)
		}
	}
}
