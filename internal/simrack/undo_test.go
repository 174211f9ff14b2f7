package simrack_test

import (
	"net/netip"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
	"github.com/bifrost-rack/bifrost/examples/counter/gen-go/counter"
	"github.com/bifrost-rack/bifrost/examples/counter/tally"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
	"github.com/bifrost-rack/bifrost/internal/simrack"
	"github.com/bifrost-rack/bifrost/internal/wire"
	"github.com/bifrost-rack/bifrost/p4switch/shared/frame"
	"github.com/bifrost-rack/bifrost/rpc"
)

// withDirectBank runs a bank whose Counter is called straight, and writes to memory that two blades keep.
func withDirectBank(t *testing.T, cfg simrack.Config, f func(b *bank, to tally.Adder, nodes *[]*rpc.Node)) {
	t.Helper()
	cfg.Blades = slices.DeleteFunc(simrack.Thesis(), func(b simrack.Blade) bool { return b.Name == "m3" })
	cfg.Machines = [][]string{{"m1", "m2"}}
	withBankOn(t, cfg, func(b *bank) {
		var nodes []*rpc.Node // of the Counter, one incarnation after the other
		b.wrap = func(c *tally.Counter, n *rpc.Node) counter.CounterRefHandler {
			nodes = append(nodes, n)
			return c
		}
		b.deploy("counter")
		to, _ := b.client("c1", tally.CounterName)
		f(b, to, &nodes)
	})
}

// little adds 1 by a reference that travels inside the call.
func (b *bank) little(to tally.Adder, want int64) {
	b.t.Helper()
	if got, err := to.Add(b.ctx, 3, rpc.RefOf([]byte{1})); err != nil || got != want {
		b.t.Errorf("added: %d, %v; want %d", got, err, want)
	}
}

// TestDirectMemory: a service that writes to memory commits that itself when its ledger has the
// outcome, and what it had not come to the end of is taken back when it is run again.
func TestDirectMemory(t *testing.T) {
	withDirectBank(t, simrack.Config{}, func(b *bank, to tally.Adder, nodes *[]*rpc.Node) {
		for n := int64(1); n <= 3; n++ { // the first one allocates
			b.little(to, n)
		}
		if s := (*nodes)[0].Stats(); s.Committed != 3 {
			t.Errorf("%+v: want three executions committed by the node, none handed over", s)
		}
		b.on(&b.entered, b.crash)
		b.little(to, 4)
		b.little(to, 5)
		if n := b.runs.Load(); n != 6 {
			t.Errorf("%d runs, want 6", n)
		}
		if s := (*nodes)[1].Stats(); s.RolledBack != 1 {
			t.Errorf("%+v: want one execution taken back by the next incarnation", s)
		}
	})
}

// TestDirectMemory_Foreseen: what a method has changed is added to the ledger when its next call begins:
// between what it reads and what it writes, that call does not wait for the ledger.
func TestDirectMemory_Foreseen(t *testing.T) {
	var seen []string // what the counter asks of memory, in order
	var server netip.Addr
	cfg := simrack.Config{OnFrame: func(f wire.Frame) {
		u, err := frame.ParseUDP6(f.Data)
		if err != nil || !f.ToSwitch || f.Stage != wire.Arrived || u.Src.Addr() != server || u.Dst.Port() != rackaddr.PortDSM {
			return
		}
		what := dsmpacket.FromAddr(u.Dst.Addr()).Op().String()
		seen = append(seen, what)
	}}
	withDirectBank(t, cfg, func(b *bank, to tally.Adder, nodes *[]*rpc.Node) {
		server = (*nodes)[0].Address()
		b.add(to, 1)
		b.add(to, 2)
		seen = seen[:0]
		b.add(to, 3) // its argument is lent
		if at := slices.Index(seen, "ledger"); at < 0 || at > slices.Index(seen, "read") {
			t.Errorf("%q: want the ledger to have it before it reads", seen)
		}
	})
}

// TestDirectMemory_Gatekeeper: the Gatekeeper dies while an execution has changed memory, and the
// next one leaves that alone.
func TestDirectMemory_Gatekeeper(t *testing.T) {
	withDirectBank(t, simrack.Config{}, func(b *bank, to tally.Adder, _ *[]*rpc.Node) {
		b.little(to, 1)
		b.on(&b.entered, func(instance string) {
			b.CrashGatekeeper()
			b.must(b.RestartGatekeeper(b.ctx))
			b.crash(instance)
		})
		b.little(to, 2)
		b.little(to, 3)
		if n := b.runs.Load(); n != 4 {
			t.Errorf("%d runs, want 4", n)
		}
	})
}

// TestDirectMemory_Committed: the service dies when a memory blade has just committed what an
// execution wrote. The outcome is in the ledger by then, so nothing is run again.
func TestDirectMemory_Committed(t *testing.T) {
	var committed atomic.Pointer[func()] // called once
	cfg := simrack.Config{OnFrame: func(f wire.Frame) {
		u, err := frame.ParseUDP6(f.Data)
		if err != nil || !f.ToSwitch || u.Src.Port() != rackaddr.PortDSM {
			return
		}
		from := dsmpacket.FromAddr(u.Src.Addr())
		if from.Op() == dsmpacket.OpLedger && dsmpacket.LedgerOp(from.Arg()) == dsmpacket.LedgerCommit {
			if call := committed.Swap(nil); call != nil {
				go (*call)()
			}
		}
	}}
	withDirectBank(t, cfg, func(b *bank, to tally.Adder, _ *[]*rpc.Node) {
		b.little(to, 1)
		crash := func() { b.crash("counter/p/1") }
		committed.Store(&crash)
		b.little(to, 2)
		b.little(to, 3)
		if n := b.runs.Load(); n != 3 {
			t.Errorf("%d runs, want 3", n)
		}
	})
}
