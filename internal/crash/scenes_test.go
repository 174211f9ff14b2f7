package crash

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
	"github.com/bifrost-rack/bifrost/internal/wire"
	"github.com/bifrost-rack/bifrost/p4switch/shared/frame"
)

// lent is a program in which callees keep what they are lent for seconds, and must read the same there all the time. What
// lends it is a durable main, which writes to some regions between its checkpoints, and an execution.
func lent() *Program {
	keep := func(n int, regions ...int) Op {
		s := Script{Slots: len(regions), Result: -1}
		for range 2 {
			for i := range regions {
				s.Ops = append(s.Ops, Op{N: n + 1 + len(s.Ops), Kind: Read, Slot: i, Size: 64})
			}
			s.Ops = append(s.Ops, Op{N: n + 1 + len(s.Ops), Kind: Wait, Within: time.Second})
		}
		return Op{N: n, Kind: Call, Service: 1, Slot: -1, Lend: regions, Body: []Script{s}}
	}
	main := Script{Slots: 4, Result: -1}
	add := func(ops ...Op) { main.Ops = append(main.Ops, ops...) }
	each := func(n int, k Kind) {
		for i := range 4 {
			add(Op{N: n + i, Kind: k, Slot: i, Size: 64})
		}
	}
	each(100, Alloc)
	each(110, Write)
	add(Op{N: 120, Kind: Checkpoint})
	each(130, Read)
	each(140, Write)
	add(keep(200, 0, 1, 2, 3), Op{N: 150, Kind: Checkpoint})
	each(160, Read)
	add(Op{N: 170, Kind: Call, Service: 0, Slot: -1, Body: []Script{{Slots: 1, Result: -1, Ops: []Op{
		{N: 171, Kind: Alloc, Size: 64}, {N: 172, Kind: Write, Size: 64}, keep(220, 0), {N: 173, Kind: Write, Size: 64}, {N: 174, Kind: Read, Size: 64},
	}}}}, Op{N: 180, Kind: Checkpoint})
	each(190, Free)
	return &Program{Services: []Service{{}, {}}, Apart: true, Clients: []Client{{Main: true, Script: main}}}
}

// TestLent kills the lenders at packets of lent, on a rack whose switch takes its time in half of the cases.
func TestLent(t *testing.T) {
	p := lent()
	packets := runProgram(t, p, Options{}).Packets
	step := 3
	if testing.Short() {
		step = 60
	}
	for at := 0; at < packets; at += step {
		for _, victim := range []string{"main0", "A"} {
			opt := Options{Seed: *flagFrom + uint64(at), Crashes: Crashes{{At: at, After: at%4 < 2, Victim: victim, How: Kill}}} //nolint:gosec // not negative
			if at%2 == 1 {
				opt.Network = slow
			}
			t.Run(opt.Crashes.String(), func(t *testing.T) { runProgram(t, p, opt) })
		}
	}
}

// ledgersOnly is a program that keeps nothing in regions: all of it is in ledgers.
func ledgersOnly() *Program {
	call := func(n, service int, ops ...Op) Op {
		return Op{N: n, Kind: Call, Service: service, Slot: -1, Body: []Script{{Result: -1, Ops: ops}}}
	}
	post := Op{N: 140, Kind: Post, Service: 2, Body: []Script{{Result: -1, Ops: []Op{{N: 141, Kind: Add}, {N: 142, Kind: Effect}}}}}
	round := func(n int) Op {
		c := call(n+30, 2, Op{N: n + 31, Kind: Add}, Op{N: n + 32, Kind: Effect})
		b := call(n+20, 1, Op{N: n + 21, Kind: Add}, Op{N: n + 22, Kind: Look}, c, Op{N: n + 23, Kind: Add}, Op{N: n + 24, Kind: Effect})
		return call(n+10, 0, Op{N: n + 11, Kind: Look}, b, Op{N: n + 12, Kind: Effect})
	}
	return &Program{
		Services: []Service{{}, {Stateful: true}, {Stateful: true, Deltas: true}}, Apart: true,
		Clients: []Client{{Main: true, Script: Script{Result: -1, Ops: []Op{
			{N: 1, Kind: Effect}, {N: 2, Kind: Checkpoint}, round(100), post, {N: 3, Kind: Look}, {N: 4, Kind: Checkpoint}, round(200), {N: 5, Kind: Effect},
		}}}},
	}
}

// TestPower takes the power from all memory blades at each packet of ledgersOnly, or from them and from others, up to the whole
// rack. Ledgers are on disk, so nothing that was acknowledged is lost.
func TestPower(t *testing.T) {
	p := ledgersOnly()
	rest := []string{Gatekeeper, Switch, "s1", "s2", "s3", "s4"}
	packets := runProgram(t, p, Options{Setting: Setting{Disks: true, Sync: true}}).Packets
	t.Logf("%d packets", packets)
	step := 1
	if testing.Short() {
		step = 20
	}
	for at := 0; at < packets; at += step {
		var cs Crashes
		for i, name := range append(slices.Clone(memoryBlades), rest...) {
			if i < len(memoryBlades) || at%3 == 0 || at%3 == 1 && at%(4+i) == 0 {
				one := Crash{At: at, After: at%2 == 1, Victim: name, How: Cut, Back: time.Duration(1+at*(i+1)%7) * 700 * time.Millisecond}
				if kindOf(name) == name {
					one.How = Restart
				}
				cs = append(cs, one)
			}
		}
		t.Run(cs.String(), func(t *testing.T) {
			opt := Options{Seed: *flagFrom + uint64(at), Crashes: cs, Setting: Setting{Disks: true, Sync: true, Pairs: at%4 < 2}} //nolint:gosec // not negative
			if at%2 == 1 {
				opt.Network = uneven
			}
			runProgram(t, p, opt)
		})
	}
}

// TestLateCopies: a memory blade without a mirror loses a node's ledger, and the node begins anew with another one there. A copy of what
// its first incarnation has sent to the ledger arrives after each packet of the rest, and changes nothing.
func TestLateCopies(t *testing.T) {
	main := Script{Result: -1}
	for n := range 4 {
		main.Ops = append(main.Ops, Op{N: 10 * (n + 1), Kind: Call, Slot: -1, Body: []Script{{Result: -1, Ops: []Op{{N: 10*(n+1) + 1, Kind: Effect}}}}})
	}
	p := &Program{Services: []Service{{}}, Clients: []Client{{Main: true, Script: main}}}
	packets := runProgram(t, p, Options{}).Packets
	step := 1
	if testing.Short() {
		step = 20
	}
	kept := memoryBlades[1] // has the ledger of the first node
	for at := packets / 3; at < 2*packets; at += step {
		for n := range 2 {
			t.Run(fmt.Sprint("packet ", at, ", request ", n), func(t *testing.T) {
				late := &Late{At: at, Is: ledgerIs(kept, 0, n)}
				runProgram(t, p, Options{Crashes: Crashes{{At: packets / 3, Victim: kept, How: Kill, Back: time.Millisecond}}, Late: late})
				if late.Is != nil {
					t.Error("the first copy never came")
				}
			})
		}
	}
}

// TestLateRollbacks: a service's program fails when its call has written to memory, and the next run writes there again. A copy of the
// word that has taken the first run's writes back arrives after each packet of the rest, and changes nothing.
func TestLateRollbacks(t *testing.T) {
	var ops []Op
	add := func(kinds ...Kind) {
		for _, k := range kinds {
			ops = append(ops, Op{N: 20 + len(ops), Kind: k, Size: 64})
		}
	}
	add(Alloc, Write, Read, Write, Read, Write, Read, Effect)
	p := &Program{Services: []Service{{}}, Clients: []Client{{Main: true, Script: Script{Result: -1, Ops: []Op{
		{N: 10, Kind: Call, Slot: -1, Body: []Script{{Slots: 1, Result: -1, Ops: ops}}},
	}}}}}
	begin := 0
	play := func(t *testing.T, late *Late) *Report {
		t.Helper()
		failed, packets := kill("A", true, memoryIs(0, dsmpacket.OpWrite, 2)), 0
		is := failed.Is
		failed.Is = func(f wire.Frame) bool {
			packets++
			begin = packets
			return is(f)
		}
		return runProgram(t, p, Options{When: []*Moment{failed}, Late: late})
	}
	packets := play(t, nil).Packets
	step := 1
	if testing.Short() {
		step = 20
	}
	for at := begin; at < packets; at += step {
		t.Run(fmt.Sprint("packet ", at), func(t *testing.T) {
			late := &Late{At: at, Is: rollbackOf(0)}
			if play(t, late); late.Is != nil {
				t.Error("nothing was taken back")
			}
		})
	}
	t.Logf("packets %d to %d", begin, packets)
}

// rollbackOf tells the word of a service's node that its executions' changes are to be taken back, as it comes to a memory blade.
func rollbackOf(service int) func(wire.Frame) bool {
	return func(f wire.Frame) bool {
		u, err := frame.ParseUDP6(f.Data)
		if err != nil || f.ToSwitch || u.Src.Addr() != nodeOf(service) || u.Dst.Port() != rackaddr.PortDSM {
			return false
		}
		h, data, err := dsmpacket.Parse(u.Payload)
		if err != nil {
			return false
		}
		q, err := dsmpacket.ParseLedgerRequest(dsmpacket.FromAddr(u.Dst.Addr()), &h, data)
		return err == nil && q.Op == dsmpacket.LedgerRollback
	}
}

// ledgerIs tells the n-th request, from 0, about the ledger of a service's node as it comes to a memory blade.
func ledgerIs(blade string, service, n int) func(wire.Frame) bool {
	return func(f wire.Frame) bool {
		u, err := frame.ParseUDP6(f.Data)
		if err != nil || f.Host != blade || u.Src.Addr() != nodeOf(service) || u.Dst.Port() != rackaddr.PortDSM || dsmpacket.FromAddr(u.Dst.Addr()).Op() != dsmpacket.OpLedger {
			return false
		}
		n--
		return n == -1
	}
}
