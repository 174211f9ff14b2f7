package gatekeeper

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
	"github.com/bifrost-rack/bifrost/gatekeeper/p4rtclient"
	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// restartSwitch replaces the switch by one that knows nothing, and waits until
// the Gatekeeper has brought it up to date.
func (r *rack) restartSwitch(meanwhile func()) {
	r.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	events := r.gk.Subscribe(ctx)
	r.stopSwitch()
	r.settle()
	if meanwhile != nil {
		meanwhile()
	}
	r.startSwitch()
	awaitSwitch(events)
	r.settle()
}

func TestSwitch_RestartLosesNothing(t *testing.T) {
	inSmall(t, func(s *small) {
		s.restartSwitch(nil)
		if n := s.snapshot().Counters.Reconciled; n < 10 {
			t.Errorf("only %d entries were repaired", n)
		}
		if n := s.reconciled(); n != 0 {
			t.Errorf("%d entries were repaired again", n)
		}
	})
}

// What happens while the switch is away is on it when it is back. That nothing was
// heard of the blades meanwhile does not count: nobody could hear them. An operator's
// word does.
func TestSwitch_ChangesWhileAway(t *testing.T) {
	inSmall(t, func(s *small) {
		p := s.m1.alloc(s.a, 1, 1)
		s.restartSwitch(func() {
			pass(4 * missedHeartbeats * time.Second)
			if err := s.gk.MarkFailed(context.Background(), "c1", "smoke"); err != nil {
				t.Error(err)
			}
		})
		pass(2 * time.Second) // what was asked meanwhile is asked again
		if got := s.a.memory(dsmpacket.OpRead, p); len(got) != 0 || len(s.m1.take()) != 0 {
			t.Errorf("a failed blade's node still reads: %+v", got)
		}
		if n := s.snapshot(); len(n.Nodes) != 2 || !n.Switch {
			t.Errorf("state %+v", n)
		}
		s.beat((missedHeartbeats+1)*time.Second, s.m1, s.b.testBlade)
		if got := inService(s.snapshot()); slices.Contains(got, "s2") {
			t.Errorf("the silent blade s2 has not failed: %v", got)
		}
	})
}

// A second Gatekeeper takes over: the first ends, and what it had let happen is
// not known to the second, so it is not on the switch any more.
func TestGatekeeper_TakesOver(t *testing.T) {
	inSmall(t, func(s *small) {
		p := s.m1.alloc(s.a, 1, 1)
		first, stop := s.gk, s.stop
		s.start(Config{Election: control.Election{High: 1}})
		s.settle()
		if err := stop(); !errors.Is(err, p4rtclient.ErrNotPrimary) {
			t.Errorf("the first ended with %v", err)
		}
		if _, err := first.Snapshot(context.Background()); !errors.Is(err, ErrStopped) {
			t.Errorf("its snapshot: %v", err)
		}
		if got := s.a.memory(dsmpacket.OpRead, p); len(got) != 0 || len(s.m1.take()) != 0 {
			t.Errorf("a node of the first still reads: %+v", got)
		}
		var reply control.HeartbeatReply
		if err := s.a.ask(control.KindHeartbeat, control.Heartbeat{Blade: "c1", Boot: s.a.boot}, &reply); err != nil || reply.Known {
			t.Errorf("heartbeat: %+v, %v", reply, err)
		}
		// The memory blade's regions belong to nobody any more, and it learns that.
		if again := s.m1.hello("m1", control.Memory); again.Began == s.m1.began || again.Began == 0 {
			t.Errorf("the rack began at %#x, and then at %#x", s.m1.began, again.Began)
		}
		s.a.hello("c1", control.Compute)
		n := s.a.join("c1", "program")
		s.m1.alloc(n, 1, 7)
	})
}

func TestGatekeeper_LowerElectionIsRefused(t *testing.T) {
	inSmall(t, func(s *small) {
		second, err := New(Config{Conn: s.conn, Open: true, Election: control.Election{Low: 1}})
		if err != nil {
			t.Fatal(err)
		}
		if err := second.Run(context.Background()); !errors.Is(err, p4rtclient.ErrNotPrimary) {
			t.Errorf("it ended with %v", err)
		}
		s.m1.alloc(s.a, 1, 1) // the first still rules
	})
}

// Packets come in while rules are being written: nothing is released before its
// rules are in place, however many calls meet on one region.
func TestRelease_NeverBeforeItsRules(t *testing.T) {
	inSmall(t, func(s *small) {
		p := s.m1.alloc(s.a, 1, 1)
		s.a.slot(50)
		// No settling between the packets: they all wait in the Gatekeeper at once.
		settle := s.settle
		s.settle = func() {}
		for range 50 {
			s.a.at++
			call := s.a.message("Arrays", "add", p)
			s.a.call("Arrays", call)
			early := *call
			early.Payload, early.Trailer = nil, nil
			s.b.reply(s.a.address, &early)
		}
		s.settle = settle
		calls := s.b.messages()
		if len(calls) != 50 {
			t.Fatalf("%d calls arrived, want 50", len(calls))
		}
		for _, c := range calls {
			s.b.reply(s.a.address, &c)
		}
		answered := map[rpcpacket.ID]bool{}
		for _, m := range s.a.messages() {
			answered[m.Call] = m.Type == rpcpacket.Reply
		}
		if len(answered) != 50 {
			t.Errorf("%d calls are answered, want 50", len(answered))
		}
		if a, b := s.a.may(s.m1, p), s.b.may(s.m1, p); a != "read+write" || b != "nothing" {
			t.Errorf("a may %s, b %s", a, b)
		}
	})
}

func TestConfig_Refused(t *testing.T) {
	inRack(t, func(r *rack) {
		for what, cfg := range map[string]Config{
			"no connection": {}, "a small MTU": {Conn: r.conn, MTU: 1000}, "a large MTU": {Conn: r.conn, MTU: 1 << 17},
			"a hectic heartbeat": {Conn: r.conn, Heartbeat: 1},
		} {
			if _, err := New(cfg); err == nil {
				t.Errorf("%s: no error", what)
			}
		}
		if err := r.gk.Run(context.Background()); err == nil {
			t.Error("Run twice: no error")
		}
	})
}

// reconciled has the tables read back.
func (r *rack) reconciled() int {
	r.t.Helper()
	n, err := r.gk.Reconcile(context.Background())
	if err != nil {
		r.t.Fatal(err)
	}
	return n
}

func TestReconcile_WithoutSwitch(t *testing.T) {
	inSmall(t, func(s *small) {
		s.restartSwitch(func() {
			if _, err := s.gk.Reconcile(context.Background()); !errors.Is(err, ErrNoSwitch) {
				t.Errorf("without a switch: %v", err)
			}
		})
		s.stopGatekeeper()
		if _, err := s.gk.Reconcile(context.Background()); !errors.Is(err, ErrStopped) {
			t.Errorf("without a Gatekeeper: %v", err)
		}
	})
}

// Somebody else has changed the switch's tables: a rule too many, one that is
// missing, and one that leads elsewhere.
func TestReconcile_RepairsTheSwitch(t *testing.T) {
	inSmall(t, func(s *small) {
		p := s.m1.alloc(s.a, 1, 1)
		if n := s.reconciled(); n != 0 {
			t.Errorf("%d entries were repaired where nothing was wrong", n)
		}
		all, err := s.c.wantsBatches(1, 1)
		if err != nil {
			t.Fatal(err)
		}
		stolen, lost := controlEntry(s.c.row, 1, p.ID().Batch(), true), controlEntry(s.c.row, 1, all[0], true)
		astray := l3Entry(host(s.b.address), hopOf(3))
		if err := s.gk.client.Write(context.Background(), []p4rtclient.Update{
			{Op: p4rtclient.Insert, Entry: stolen}, {Op: p4rtclient.Delete, Entry: lost}, {Op: p4rtclient.Modify, Entry: astray},
		}); err != nil {
			t.Fatal(err)
		}
		if n := s.reconciled(); n != 3 {
			t.Errorf("%d entries were repaired, want 3", n)
		}
		if n := s.reconciled(); n != 0 {
			t.Errorf("%d entries were repaired again", n)
		}
	})
}
