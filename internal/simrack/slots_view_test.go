package simrack_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/bifrost-rack/bifrost/dsm"
	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
	"github.com/bifrost-rack/bifrost/gatekeeper"
	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/rpc"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// slots are those that are open.
func slots(ctx context.Context, t *testing.T, gk *gatekeeper.Gatekeeper) []gatekeeper.SlotState {
	t.Helper()
	page, err := gk.Slots(ctx, gatekeeper.SlotQuery{Limit: 100})
	if err != nil || page.More || len(page.Missing) > 0 {
		t.Fatalf("%+v, %v", page, err)
	}
	return page.Slots
}

// TestCancelSlot: an operator ends a call that its callee does not answer, leaves first: its caller hears that it is unavailable, and may write what it had lent. The callee reads no more.
func TestCancelSlot(t *testing.T) {
	withJudge(t, func(j *judging, owner, stranger, callee *bare) {
		gk, p := j.Gatekeeper(), owner.region(0)
		owner.has(p)
		use, on := owner.use(0, 2), callee.use(0, 2)
		call := owner.says(rpcpacket.Call, callee, use, lists(listed(own, p)))
		j.expect("a call that lends", passes, call)
		j.expect("the callee reads", passes, callee.memory(dsmpacket.OpRead, p, by(use)))
		j.expect("the callee lends it on", passes, callee.says(rpcpacket.Call, stranger, on, lists(listed(use, p))))
		all := slots(j.ctx, t, gk)
		if len(all) != 2 || all[0].Slot != use.Slot || all[0].Number != use.Number || all[0].Caller != owner.id.Address || all[0].Callee != callee.id.Address ||
			len(all[0].Regions) != 1 || all[0].Children != 1 || all[0].Call != "" || all[1].Slot != on.Slot {
			t.Fatalf("open: %+v", all)
		}
		if _, err := gk.CancelSlot(j.ctx, use.Slot); fault.CodeOf(err) != fault.BadRequest || !strings.Contains(err.Error(), "lent on by slot") {
			t.Errorf("what is lent on: %v", err)
		}
		if _, err := gk.CancelSlot(j.ctx, on.Slot); err != nil {
			t.Fatal(err)
		}
		j.expect("who got it from the callee reads", denied, stranger.memory(dsmpacket.OpRead, p, by(on)))
		j.expect("the callee reads still", passes, callee.memory(dsmpacket.OpRead, p, by(use)))
		if _, err := gk.CancelSlot(j.ctx, use.Slot); err != nil {
			t.Fatal(err)
		}
		j.expect("the callee reads after the end", denied, callee.memory(dsmpacket.OpRead, p, by(use)))
		j.expect("the callee answers after the end", dropped, callee.says(rpcpacket.Reply, owner, use, nil))
		j.expect("a copy of the call", gone, call)
		j.expect("the owner writes", passes, owner.memory(dsmpacket.OpWrite, p))
		if all := slots(j.ctx, t, gk); len(all) != 0 {
			t.Errorf("open: %+v", all)
		}
		if _, err := gk.CancelSlot(j.ctx, use.Slot); fault.CodeOf(err) != fault.NotFound {
			t.Errorf("once more: %v", err)
		}
		oneway := owner.use(1, 2)
		j.expect("a one-way", passes, owner.says(rpcpacket.Oneway, callee, oneway, lists(listed(own, p))))
		if _, err := gk.CancelSlot(j.ctx, oneway.Slot); fault.CodeOf(err) != fault.Unsupported {
			t.Errorf("a one-way: %v", err)
		}
	})
}

// TestCancelSlot_Known: a call that its callee runs is not failed: its handler is cancelled by the call's id. A standing lease ends; its owner hears of that.
func TestCancelSlot_Known(t *testing.T) {
	withShelf(t, false, func(r *shelf) {
		reads := make(chan struct{})
		r.borrows(func(ctx context.Context, _ dsm.Pointer) error {
			close(reads)
			<-ctx.Done()
			return ctx.Err()
		})
		p, err := filled(r.Context(), r.client.Memory())
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(r.Context())
		defer cancel()
		over := make(chan error, 1)
		go func() { over <- lendTo(ctx, r.client, p) }()
		<-reads
		gk := r.Gatekeeper()
		all := slots(r.Context(), t, gk)
		if len(all) != 1 {
			t.Fatalf("open: %+v", all)
		}
		if _, err := gk.CancelSlot(r.Context(), all[0].Slot); rpc.CodeOf(err) != rpc.BadRequest {
			t.Errorf("a call that is run: %v", err)
		}
		cancel()
		<-over
		ref, lease := r.shares(r.client, r.server)
		page, err := gk.Slots(r.Context(), gatekeeper.SlotQuery{Standing: true, Limit: 10})
		all = page.Slots
		if err != nil || len(all) != 1 || all[0].Step != "granted" || all[0].Callee != r.server.Address() || all[0].Caller != r.client.Address() {
			t.Fatalf("leases: %+v, %v", all, err)
		}
		if s, err := gk.CancelSlot(r.Context(), all[0].Slot); err != nil || s.Step != "ending" {
			t.Fatalf("%+v, %v", s, err)
		}
		<-time.After(2 * time.Second) // virtual
		if err := r.readsBy(r.server, lease); rpc.CodeOf(err) != rpc.PermissionDenied {
			t.Errorf("the reader reads after the operator has ended it: %v", err)
		}
		if o, err := gk.Overview(r.Context()); err != nil || o.Leases["ended"] != 1 {
			t.Errorf("leases %v, %v", o.Leases, err)
		}
		r.ends(ref, lease)
		if o, err := gk.Overview(r.Context()); err != nil || len(o.Leases) != 0 {
			t.Errorf("leases %v, %v", o.Leases, err)
		}
	})
}

// TestTruthWithin: what people see of owners, open slots and leases is as of a moment after they have asked, and they wait no longer than 100 ms for it, whatever
// was asked before. What calls are under way nodes have told by then. That is in virtual time: the bound of what the rack waits for, not of how fast a machine is.
func TestTruthWithin(t *testing.T) {
	withShelf(t, false, func(r *shelf) {
		gk := r.Gatekeeper()
		within := func(what string, f func() bool) {
			t.Helper()
			began := time.Now()
			for !f() {
				<-time.After(time.Millisecond) // virtual
				if time.Since(began) > time.Second {
					t.Fatalf("%s is not seen within a second", what)
				}
			}
			if took := time.Since(began); took > 100*time.Millisecond {
				t.Errorf("%s is seen after %v", what, took)
			}
		}
		region := func(p dsm.Pointer) gatekeeper.RegionState {
			h, err := gk.Holders(r.Context(), p)
			if err != nil {
				return gatekeeper.RegionState{}
			}
			return h.Region
		}
		reads, goes := make(chan struct{}, 1), make(chan struct{})
		r.borrows(func(context.Context, dsm.Pointer) error {
			reads <- struct{}{}
			<-goes
			return nil
		})
		for range 3 { // also when somebody has just asked
			ref, lease := r.shares(r.client, r.server)
			p := at(lease)
			within("a lease", func() bool {
				s := region(p)
				return s.Controller == r.client.Address() && len(s.Leases) == 1 && s.Leases[0].Standing != 0 && s.Leases[0].Node == r.server.Address()
			})
			r.ends(ref, lease)
			within("the end of a region", func() bool { return region(p).Region == "" })
		}
		p, err := filled(r.Context(), r.client.Memory())
		if err != nil {
			t.Fatal(err)
		}
		within("an owner", func() bool { return region(p).Controller == r.client.Address() && len(region(p).Leases) == 0 })
		over := make(chan error, 1)
		go func() { over <- lendTo(r.Context(), r.client, p) }()
		<-reads
		within("an open slot", func() bool { return len(slots(r.Context(), t, gk)) == 1 && len(region(p).Leases) == 1 })
		within("a call", func() bool {
			all, _, err := gk.Calls(r.Context(), gatekeeper.CallQuery{Limit: 10})
			return err == nil && len(all) == 1 && slots(r.Context(), t, gk)[0].Call == all[0].Call
		})
		close(goes)
		if err := <-over; err != nil {
			t.Fatal(err)
		}
		within("the end of a call", func() bool {
			all, _, err := gk.Calls(r.Context(), gatekeeper.CallQuery{Limit: 10})
			return err == nil && len(all) == 0 && len(slots(r.Context(), t, gk)) == 0
		})
		if err := hand(r.Context(), r.client, "Borrower", p); err != nil {
			t.Fatal(err)
		}
		<-reads
		within("another owner", func() bool {
			c := region(p).Controller
			return c.IsValid() && c != r.client.Address() || region(p).Region == ""
		})
	})
}
