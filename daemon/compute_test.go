package daemon

import (
	"context"
	"errors"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/internal/join"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
	"github.com/bifrost-rack/bifrost/internal/wire"
)

// bad is a network at its worst.
var bad = wire.Impairment{Delay: time.Millisecond, Loss: 0.2, Duplicate: 0.2, Reorder: 0.2, Late: 0.1}

func TestLifeOfANode(t *testing.T) {
	for name, impair := range map[string]wire.Impairment{"good network": {}, "bad network": bad} {
		t.Run(name, func(t *testing.T) {
			inRack(t, impair, func(r *rack) {
				c, _, stop := r.compute(ComputeConfig{})
				s, err := c.Join(r.ctx, "arrays")
				if err != nil {
					t.Fatal(err)
				}
				id := s.Node()
				if !reflect.DeepEqual(id, join.Identity{Name: "arrays", Blade: "b1", Address: rackaddr.Node(1), Incarnation: 1, Blocks: []uint32{5}}) || !r.blade.Accepts(id.Address) {
					t.Errorf("node %+v, its address accepted: %v", id, r.blade.Accepts(id.Address))
				}
				if _, err := s.Export(r.ctx, control.Export{Service: "Arrays", Methods: []control.Method{{Name: "add"}}}); err != nil {
					t.Error(err)
				}
				if st := c.Status(0); len(st.Nodes) != 1 || !slices.Equal(st.Nodes[0].Services, []string{"Arrays"}) || !st.Registered {
					t.Errorf("status %+v", st)
				}
				if err := s.Close(r.ctx); err != nil {
					t.Error(err)
				}
				<-s.Done()
				if r.blade.Accepts(id.Address) {
					t.Error("the address remains")
				}
				if err := stop(); err != nil {
					t.Error(err)
				}
				if e := r.gk.exports; len(e) != 1 || e[0].Node != id.Address || e[0].Incarnation != 1 {
					t.Errorf("exports %+v", e)
				}
				if l := r.gk.left(); len(l) != 1 || l[0].Node != id.Address || l[0].Crashed || len(r.gk.joins) != 1 {
					t.Errorf("leaves %+v after %d joins", l, len(r.gk.joins))
				}
			})
		})
	}
}

// TestHeartbeats: on a bad network, the Gatekeeper hears of the blade at least
// once every three intervals, for minutes.
func TestHeartbeats(t *testing.T) {
	inRack(t, wire.Impairment{Delay: time.Millisecond, Loss: 0.05, Duplicate: 0.05, Reorder: 0.05, Late: 0.05}, func(r *rack) {
		c, _, stop := r.compute(ComputeConfig{})
		if _, err := c.Join(r.ctx, "n"); err != nil {
			t.Fatal(err)
		}
		before := 0
		for i := range 1000 {
			pass(300 * time.Millisecond)
			r.gk.set(func() {
				if r.gk.beats == before {
					t.Errorf("no heartbeat in interval %d", i)
				}
				before = r.gk.beats
			})
		}
		if h := r.gk.last; h.Blade != "b1" || h.Boot != 77 || h.Used != 1 || !slices.Equal(h.Nodes, []netip.Addr{rackaddr.Node(1)}) {
			t.Errorf("heartbeat %+v", h)
		}
		if len(r.gk.hellos) != 1 {
			t.Errorf("%d hellos", len(r.gk.hellos))
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}

// TestNewsOfTheRack: memory blades come with the heartbeats.
func TestNewsOfTheRack(t *testing.T) {
	inRack(t, wire.Impairment{}, func(r *rack) {
		c, _, stop := r.compute(ComputeConfig{})
		h, err := c.Host(r.ctx, join.Program{Name: "n", PID: 5})
		if err != nil {
			t.Fatal(err)
		}
		changed := h.Changed()
		r.gk.set(func() {
			r.gk.reply.Rack.Memories = []control.MemoryBlade{{Machine: 3, Free: 7}}
		})
		for len(h.Rack().Memories) != 1 || h.Rack().Memories[0].Machine != 3 {
			<-changed
			changed = h.Changed()
		}
		pass(time.Second)
		select {
		case <-changed:
			t.Error("a heartbeat without news wakes the programs")
		default:
		}
		if n := c.Status(0).Nodes[0]; n.PID != 5 {
			t.Errorf("status %+v", n)
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
		<-h.Done()
		if l := r.gk.left(); len(l) != 1 || l[0].Crashed {
			t.Errorf("leaves %+v", l)
		}
	})
}

// TestGatekeeperForgets: nodes end when the Gatekeeper does not know them, or
// the blade, any more; the blade says hello again.
func TestGatekeeperForgets(t *testing.T) {
	inRack(t, wire.Impairment{}, func(r *rack) {
		c, registered, stop := r.compute(ComputeConfig{})
		one, err := c.Join(r.ctx, "one")
		if err != nil {
			t.Fatal(err)
		}
		two, err := c.Join(r.ctx, "two")
		if err != nil {
			t.Fatal(err)
		}
		r.gk.set(func() { r.gk.reply.Gone = []netip.Addr{one.Node().Address} })
		<-one.Done()
		if _, err := one.Export(r.ctx, control.Export{Service: "S"}); fault.CodeOf(err) != fault.Stale {
			t.Errorf("export by a fenced node: %v", err)
		}
		if _, err := one.Stack().ListenUDP(netip.AddrPortFrom(one.Node().Address, rackaddr.PortRPC)); fault.CodeOf(err) != fault.Stale {
			t.Errorf("a socket for a fenced node: %v", err)
		}
		select {
		case <-two.Done():
			t.Error("both nodes have ended")
		default:
		}
		r.gk.set(func() { r.gk.reply.Known = false })
		<-two.Done()
		<-registered
		if len(r.gk.hellos) != 2 || r.gk.hellos[1].Boot != 77 {
			t.Errorf("hellos %+v", r.gk.hellos)
		}
		if err := one.Close(r.ctx); err != nil {
			t.Errorf("close after the end: %v", err)
		}
		if _, err := c.Join(r.ctx, "three"); err != nil {
			t.Errorf("after the second hello: %v", err)
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
		if l := r.gk.left(); len(l) != 1 || l[0].Node != rackaddr.Node(3) {
			t.Errorf("leaves %+v", l)
		}
	})
}

func TestCrash(t *testing.T) {
	inRack(t, wire.Impairment{}, func(r *rack) {
		c, _, stop := r.compute(ComputeConfig{})
		h, err := c.Host(r.ctx, join.Program{Name: "n"})
		if err != nil {
			t.Fatal(err)
		}
		h.Crash("segmentation fault")
		h.Crash("again")
		<-h.Done()
		pass(time.Second)
		if l := r.gk.left(); len(l) != 1 || !l[0].Crashed || l[0].Reason != "segmentation fault" {
			t.Errorf("leaves %+v", l)
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
		h.Crash("after the daemon's end")
	})
}

func TestJoinErrors(t *testing.T) {
	inRack(t, wire.Impairment{}, func(r *rack) {
		c, _, stop := r.compute(ComputeConfig{Nodes: 1})
		r.gk.set(func() { r.gk.refuse = fault.New(fault.NoSpace, "join", "no addresses left") })
		if _, err := c.Join(r.ctx, "n"); fault.CodeOf(err) != fault.NoSpace {
			t.Errorf("refused: %v", err)
		}
		r.gk.set(func() { r.gk.refuse = nil })
		if _, err := c.Join(r.ctx, "n"); err != nil {
			t.Fatal(err)
		}
		if _, err := c.Join(r.ctx, "m"); fault.CodeOf(err) != fault.Overloaded {
			t.Errorf("blade full: %v", err)
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
		if _, err := c.Join(r.ctx, "n"); fault.CodeOf(err) != fault.Unavailable {
			t.Errorf("daemon stopped: %v", err)
		}
	})
}

// TestJoinOfForgottenBlade: a Gatekeeper that has forgotten a blade refuses its joins
// until it says hello, which is no program's business, whenever the blade hears of it. A
// Gatekeeper that knows the blade means what it says.
func TestJoinOfForgottenBlade(t *testing.T) {
	inRack(t, wire.Impairment{Delay: time.Millisecond}, func(r *rack) {
		c, registered, stop := r.compute(ComputeConfig{Nodes: 1000})
		for i := range 500 { // everywhere in the 100 ms between two heartbeats
			pass(time.Duration(i) * 200 * time.Microsecond)
			r.gk.set(func() { r.gk.reply.Known = false })
			if _, err := c.Join(r.ctx, "n"); err != nil {
				t.Error(err)
			}
			<-registered
		}
		r.gk.set(func() { r.gk.refuse = fault.New(fault.Stale, "join", "not to run here") })
		if _, err := c.Join(r.ctx, "n"); fault.CodeOf(err) != fault.Stale {
			t.Errorf("refused: %v", err)
		}
		r.gk.set(func() { r.gk.refuse = nil })
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}

// TestGivenUpJoinLeaves: a join that its program no longer waits for leaves no
// node behind. When the program joins again, the Gatekeeper has heard of the end of
// that node: the program may be its next incarnation.
func TestGivenUpJoinLeaves(t *testing.T) {
	inRack(t, wire.Impairment{Delay: time.Second}, func(r *rack) {
		c, _, stop := r.compute(ComputeConfig{})
		ctx, cancel := context.WithTimeout(r.ctx, 100*time.Millisecond)
		defer cancel()
		if _, err := c.Join(ctx, "n"); fault.CodeOf(err) != fault.Deadline {
			t.Errorf("join: %v", err)
		}
		n, err := c.Join(r.ctx, "n")
		if l := r.gk.left(); err != nil || len(l) != 1 || len(r.gk.joins) != 2 || len(c.Status(0).Nodes) != 1 {
			t.Errorf("joins again: %v; %d joins, leaves %+v", err, len(r.gk.joins), l)
		}
		if err := n.Close(r.ctx); err != nil {
			t.Error(err)
		}
		pass(time.Minute)
		if l := r.gk.left(); len(l) != 2 || len(c.Status(0).Nodes) != 0 || len(c.unsettled)+len(c.givenUp) != 0 {
			t.Errorf("%d joins, leaves %+v", len(r.gk.joins), l)
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}

// TestUnsettled: whatever a heartbeat says, a node that the Gatekeeper knows is among
// its nodes or unsettled, from before its join until its leave is answered.
func TestUnsettled(t *testing.T) {
	inRack(t, wire.Impairment{Delay: time.Second}, func(r *rack) { // four to an answer
		c, _, stop := r.compute(ComputeConfig{})
		joined := make(chan join.Hosted, 1)
		go func() {
			h, err := c.Host(r.ctx, join.Program{Name: "n"})
			if err != nil {
				t.Error(err)
			}
			joined <- h
		}()
		says := func(nodes, unsettled int) {
			t.Helper()
			pass(time.Second / 2)
			if h := c.heartbeat(); h.Token != 1 || len(h.Nodes) != nodes || len(h.Unsettled) != unsettled {
				t.Errorf("heartbeat %+v, want %d nodes, %d unsettled", h, nodes, unsettled)
			}
		}
		says(0, 1)
		h := <-joined
		says(1, 0)
		h.Crash("test")
		says(0, 1)
		pass(4 * time.Second)
		says(0, 0)
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}

// slowGuard takes a second for each address that goes.
type slowGuard struct{ noGuard }

func (slowGuard) Disown(netip.Addr) error {
	<-time.After(time.Second) // virtual
	return nil
}

// TestSlowAddress: when a node leaves, nothing of the blade waits until its address is gone.
func TestSlowAddress(t *testing.T) {
	inRack(t, wire.Impairment{}, func(r *rack) {
		c, _, stop := r.compute(ComputeConfig{Guard: slowGuard{}})
		one, err := c.Join(r.ctx, "one")
		if err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		if err := one.Close(r.ctx); err != nil {
			t.Error(err)
		}
		if _, err := c.Join(r.ctx, "two"); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(began); took >= time.Second {
			t.Errorf("the blade has stood still for %v", took)
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}

// TestHelloRefused: what only a person can resolve ends the daemon; what passes
// does not.
func TestHelloRefused(t *testing.T) {
	inRack(t, wire.Impairment{}, func(r *rack) {
		registered := make(chan struct{}, 1)
		c, err := NewCompute(ComputeConfig{Blade: r.config(registered), Nodes: 1})
		if err != nil {
			t.Fatal(err)
		}
		r.gk.set(func() { r.gk.refuse = fault.New(fault.Internal, "hello", "the switch is not ready") })
		ended := make(chan error)
		go func() { ended <- c.Run(r.ctx) }()
		pass(10 * time.Second)
		r.gk.set(func() { r.gk.refuse = fault.New(fault.BadRequest, "hello", "another blade has this name") })
		err = <-ended
		var f *fault.Error
		if !errors.As(err, &f) || f.Code != fault.BadRequest || !strings.Contains(f.Msg, "another blade") {
			t.Errorf("ended with %v", err)
		}
	})
}

func TestBadConfiguration(t *testing.T) {
	inRack(t, wire.Impairment{}, func(r *rack) {
		good := r.config(nil)
		edit := func(f func(b *Blade)) Blade { b := good; f(&b); return b }
		for name, b := range map[string]Blade{
			"no name":    edit(func(b *Blade) { b.Name = "" }),
			"no stack":   edit(func(b *Blade) { b.Stack = nil }),
			"no address": edit(func(b *Blade) { b.Address = netip.Addr{} }),
			"foreign":    edit(func(b *Blade) { b.Address = rackaddr.Blade(9) }),
		} {
			if _, err := NewCompute(ComputeConfig{Blade: b, Nodes: 1}); err == nil {
				t.Errorf("compute, %s: no error", name)
			}
			if _, err := NewMemory(MemoryConfig{Blade: b, Capacity: 1}); err == nil {
				t.Errorf("memory, %s: no error", name)
			}
		}
		if _, err := NewCompute(ComputeConfig{Blade: good}); err == nil {
			t.Error("no nodes: no error")
		}
		if _, err := NewMemory(MemoryConfig{Blade: good}); err == nil {
			t.Error("no capacity: no error")
		}
	})
}

// A daemon ends when the Gatekeeper is of another release, and says which both are.
func TestAnotherRelease(t *testing.T) {
	inRack(t, wire.Impairment{}, func(r *rack) {
		r.gk.set(func() { r.gk.welcome.Speaks = control.Release{Protocol: 9, Build: "v9"} })
		c, err := NewCompute(ComputeConfig{Blade: r.config(nil), Nodes: 1})
		if err != nil {
			t.Fatal(err)
		}
		err = c.Run(r.ctx)
		if fault.CodeOf(err) != fault.BadRequest || !strings.Contains(err.Error(), "the Gatekeeper speaks protocol 9 (build v9), blade") {
			t.Errorf("welcomed by another release: %v", err)
		}
	})
}
