package crash

import (
	"fmt"
	"testing"
	"time"

	"github.com/bifrost-rack/bifrost/rpc"
)

// fates is a program in which a main calls A, A calls B, and B calls C, which
// returns a region. They take their time. B and C have a state.
func fates(ofB, ofC rpc.Policy) *Program {
	const short, long = 5 * time.Millisecond, 100 * time.Millisecond
	c := Op{N: 3, Kind: Call, Policy: ofC, Service: 2, Body: []Script{{Slots: 1, Ops: []Op{
		{N: 31, Kind: Add}, {N: 32, Kind: Wait, Within: long}, {N: 33, Kind: Effect}, {N: 34, Kind: Alloc, Size: 64}, {N: 35, Kind: Write, Size: 64},
	}}}}
	b := Op{N: 2, Kind: Call, Policy: ofB, Service: 1, Slot: -1, Body: []Script{{Slots: 1, Result: -1, Ops: []Op{
		{N: 21, Kind: Look}, c, {N: 22, Kind: Wait, Within: long}, {N: 23, Kind: Add}, {N: 24, Kind: Read, Size: 64}, {N: 25, Kind: Free},
	}}}}
	a := Op{N: 1, Kind: Call, Service: 0, Slot: -1, Body: []Script{{Result: -1, Ops: []Op{{N: 11, Kind: Effect}, b, {N: 12, Kind: Wait, Within: short}}}}}
	return &Program{
		Services: []Service{{}, {Stateful: true}, {Stateful: true}}, Apart: true,
		Clients: []Client{{Main: true, Script: Script{Result: -1, Ops: []Op{a, {N: 41, Kind: Checkpoint}}}}},
	}
}

// TestFates: of calls that share fates, and of some that do not, one side fails at each packet.
func TestFates(t *testing.T) {
	const recovers, shares, tainted = rpc.PolicyRecover, rpc.PolicyFateShare, rpc.PolicyTainted
	for i, policies := range [][2]rpc.Policy{
		{recovers, recovers}, {shares, recovers}, {recovers, shares}, {tainted, recovers}, {recovers, tainted},
	} {
		t.Run(fmt.Sprint(policies[0], " and ", policies[1]), func(t *testing.T) {
			scene{program: fates(policies[0], policies[1]), may: kills("A", "B", "C", "main0"), skip: i, step: 17}.play(t)
		})
	}
}

// TestSharers: which runs of a call are those that its caller's runs have asked for.
func TestSharers(t *testing.T) {
	run := func(from, gone, to int64) *stint {
		return &stint{from: from * soonHeard, gone: gone * soonHeard, to: to * soonHeard}
	}
	const ends = never / soonHeard
	for _, c := range []struct {
		name           string
		caller, callee []*stint
		issued         []int64
		wrong          bool
	}{
		{"nothing fails", []*stint{run(0, ends, 9)}, []*stint{run(2, ends, 4)}, []int64{1}, false},
		{"the caller fails, and the call is done", []*stint{run(0, 5, ends), run(6, ends, 9)}, []*stint{run(2, ends, 4)}, []int64{1, 7}, false},
		{"the caller fails, and the call goes on", []*stint{run(0, 3, ends), run(4, ends, 12)}, []*stint{run(2, ends, 9)}, []int64{1, 5}, true},
		{"the caller fails, and the call is run again", []*stint{run(0, 3, ends), run(4, ends, 12)}, []*stint{run(2, 4, ends), run(5, ends, 9)}, []int64{1, 5}, false},
		{"the call fails, and its caller does not", []*stint{run(0, ends, 12)}, []*stint{run(3, 4, ends), run(5, ends, 9)}, []int64{1}, true},
		{"both fail", []*stint{run(0, 4, ends), run(5, ends, 12)}, []*stint{run(3, 4, ends), run(7, ends, 9)}, []int64{1, 6}, false},
	} {
		for i := range c.issued {
			c.issued[i] *= soonHeard
		}
		wrong := (&sharer{up: true}).wrong(c.caller, c.callee, c.issued)
		if (wrong != "") != c.wrong {
			t.Errorf("%s: %q", c.name, wrong)
		}
	}
}
