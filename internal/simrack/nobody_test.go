package simrack_test

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/bifrost-rack/bifrost/examples/arrays/gen-go/arrays"
	"github.com/bifrost-rack/bifrost/examples/arrays/service"
	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/simrack"
	"github.com/bifrost-rack/bifrost/internal/wire"
	"github.com/bifrost-rack/bifrost/rpc"
)

// ping calls a service exactly once.
func ping(ctx context.Context, n *rpc.Node, service string) error {
	return arrays.NewPingClient(n.Client(service, rpc.WithPolicy(rpc.PolicyRecover))).Ping(ctx)
}

// fails checks that a call has failed at once since nobody takes it, and has never begun.
func fails(t *testing.T, err error, from time.Time, why ...string) {
	t.Helper()
	if rpc.CodeOf(err) != rpc.Unavailable || !rpc.NeverBegan(err) || time.Since(from) > 500*time.Millisecond {
		t.Errorf("after %s: %v", time.Since(from), err)
		return
	}
	for _, w := range why {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("%v: want %q in it", err, w)
		}
	}
}

// TestNobody_Serves: an exactly-once call that no node takes fails as unavailable. As soon as a node exports the
// service the next call is served.
func TestNobody_Serves(t *testing.T) {
	withDirect(t, func(context.Context) error { return nil }, func(d *direct) {
		from := time.Now()
		fails(d.T, ping(d.Context(), d.client, "Later"), from, "no node serves Later.ping", "bifrost deploy")
		_, err := d.client.Client("Later", rpc.WithPolicy(rpc.PolicyRecover)).Call(d.Context(), "ping", &arrays.PingPingArgs{}, nil)
		fails(d.T, err, from, "no node serves Later.ping")
		if err := d.back.Export(d.Context(), "Later", arrays.NewPingProcessor(service.Ping{})); err != nil {
			d.Fatal(err)
		}
		if err := ping(d.Context(), d.client, "Later"); err != nil {
			d.Error(err)
		}
		if err := d.back.Close(d.Context()); err != nil {
			d.Error(err)
		}
		<-time.After(3 * time.Second) // virtual: the client asks again
		from = time.Now()
		fails(d.T, ping(d.Context(), d.client, "Later"), from, "no node serves Later.ping")
	})
}

// TestNobody_WithoutGatekeeper: while the Gatekeeper is away, whoever begins to call finds the nodes that serve a method, though nobody
// took an earlier call. A call that no node takes waits until the Gatekeeper can say who is to come back. A deadline ends that.
func TestNobody_WithoutGatekeeper(t *testing.T) {
	withDirect(t, func(context.Context) error { return nil }, func(d *direct) {
		for _, service := range []string{"Later", "Nobody"} {
			fails(d.T, ping(d.Context(), d.client, service), time.Now())
		}
		if err := d.back.Export(d.Context(), "Later", arrays.NewPingProcessor(service.Ping{})); err != nil {
			d.Fatal(err)
		}
		d.rack.CrashGatekeeper()
		within, cancel := context.WithTimeout(d.Context(), 2*time.Second) // virtual
		defer cancel()
		from := time.Now()
		if err := ping(within, d.client, "Nobody"); rpc.CodeOf(err) != rpc.Deadline || time.Since(from) != 2*time.Second {
			d.Errorf("after %s: %v", time.Since(from), err)
		}
		for _, service := range []string{"Front", "Later"} {
			if err := ping(d.Context(), d.client, service); err != nil {
				d.Errorf("%s, without a Gatekeeper: %v", service, err)
			}
		}
		back := make(chan struct{})
		var all sync.WaitGroup
		all.Go(func() {
			err := ping(d.Context(), d.client, "Nobody")
			select {
			case <-back:
			default:
				d.Error("the call has ended without a Gatekeeper")
			}
			if rpc.CodeOf(err) != rpc.Unavailable {
				d.Errorf("nobody serves it: %v", err)
			}
		})
		<-time.After(time.Minute) // virtual
		close(back)
		if err := d.rack.RestartGatekeeper(d.Context()); err != nil {
			d.Fatal(err)
		}
		all.Wait()
	})
}

// TestNobody_Journalled: nobody takes a call of an execution, which goes on. Its program dies, and a node serves the call then. The
// next run is told the same as the first one.
func TestNobody_Journalled(t *testing.T) {
	runs := 0
	does := func(ctx context.Context, k *chain, name string, n int) error {
		if name != "top" {
			return nil
		}
		runs++
		if err := ping(ctx, k.nodes["top"], "Later"); rpc.CodeOf(err) != rpc.Unavailable || !rpc.NeverBegan(err) || !strings.Contains(err.Error(), "no node serves Later.ping") {
			k.Errorf("run %d: %v", n, err)
		}
		if err := k.call(ctx, k.nodes["top"], "middle"); err != nil || n > 1 {
			return err
		}
		late, err := k.Join(k.Context(), "c1", "late")
		if err == nil {
			err = late.Export(k.Context(), "Later", arrays.NewPingProcessor(pinger(func(context.Context) error {
				k.Error("a call that nobody took is served")
				return nil
			})))
		}
		if err != nil {
			return err
		}
		if err := k.KillSoon("s1", "top/p/1"); err != nil {
			return err
		}
		<-ctx.Done()
		return ctx.Err()
	}
	policies := map[string]rpc.Policy{"top": rpc.PolicyRecover, "middle": rpc.PolicyRecover, "bottom": rpc.PolicyRecover}
	withChain(t, links{policies: policies, does: does}, func(k *chain) {
		client, err := k.Join(k.Context(), "s2", "client")
		if err != nil {
			k.Fatal(err)
		}
		if err := k.call(k.Context(), client, "top"); err != nil || runs != 2 {
			k.Errorf("after %d runs: %v", runs, err)
		}
	})
}

// TestNobody_Awaited: the only node of a service has failed, and its next incarnation is to come. A node that has never called it
// binds its call to that node, and sends it again until it is back.
func TestNobody_Awaited(t *testing.T) {
	withByHand(t, func(ctx context.Context, h *byHand) {
		h.must(h.start(ctx, "s1", "counter", "R"))
		h.must(h.Kill("s1", "counter"))
		<-time.After(time.Second) // virtual
		waits := make(chan struct{})
		go func() {
			defer close(waits)
			h.counts(ctx, "R", 1)
		}()
		<-time.After(10 * time.Second) // virtual
		h.must(h.start(ctx, "s1", "counter", "R"))
		<-waits
		h.counts(ctx, "R", 2)
	})
}

// TestNobody_LeavesForGood: a deployment is taken back. Its node finishes a call for a while; a new one fails at once.
func TestNobody_LeavesForGood(t *testing.T) {
	does := func(ctx context.Context, _ *chain, _ string, _ int) error {
		select {
		case <-time.After(5 * time.Second): // virtual
		case <-ctx.Done():
		}
		return ctx.Err()
	}
	withChain(t, links{policies: map[string]rpc.Policy{"top": rpc.PolicyRecover}, does: does}, func(k *chain) {
		var clients [2]*rpc.Node
		for i := range clients {
			var err error
			if clients[i], err = k.Join(k.Context(), "s2", "client"); err != nil {
				k.Fatal(err)
			}
		}
		done := make(chan error)
		go func() { done <- k.call(k.Context(), clients[0], "top") }()
		<-time.After(time.Second) // virtual: it runs
		if err := k.Gatekeeper().Undeploy(k.Context(), "top"); err != nil {
			k.Fatal(err)
		}
		<-time.After(time.Second) // virtual
		from := time.Now()
		fails(k.T, k.call(k.Context(), clients[1], "top"), from, "no node serves top.ping")
		if err := <-done; err != nil {
			k.Error(err)
		}
	})
}

// TestNobody_WithoutLedger: nodes join when no memory machine is in service, so they have no ledgers. The error of an exactly-once
// call says so. When there is a machine they get ledgers, and serve exactly-once calls; so do services with state
// and durable mains, which wait for that.
func TestNobody_WithoutLedger(t *testing.T) {
	cfg := simrack.Config{
		Blades:   []simrack.Blade{{Name: "c1", Kind: control.Compute}, {Name: "s1", Kind: control.Compute}, {Name: "m1", Kind: control.Memory}},
		Schedule: &wire.Schedule{Seed: 1},
	}
	inVirtualTimeWith(t, cfg, func(t *testing.T, ctx context.Context, r *simrack.Rack) {
		if err := r.CrashBlade("m1"); err != nil {
			t.Fatal(err)
		}
		<-time.After(10 * time.Second) // virtual: it has failed
		nodes := joinAll(t, ctx, r, "c1", "s1")
		caller, server := nodes[0], nodes[1]
		if err := server.Export(ctx, "Ping", arrays.NewPingProcessor(service.Ping{})); err != nil {
			t.Fatal(err)
		}
		if err := arrays.NewPingClient(caller.Client("Ping", rpc.WithPolicy(rpc.PolicyNone))).Ping(ctx); err != nil {
			t.Errorf("with policy none: %v", err)
		}
		fails(t, ping(ctx, caller, "Ping"), time.Now(), "no node serves Ping.ping", "has a ledger", "memory blade", "policy none")
		within, cancel := context.WithTimeout(ctx, time.Second) // virtual
		defer cancel()
		counter := new(register)
		if err := server.Export(within, "R", arrays.NewArraysProcessor(counter), rpc.WithState(counter)); rpc.CodeOf(err) != rpc.Deadline || !strings.Contains(err.Error(), "memory blade") {
			t.Errorf("a service with state: %v", err)
		}
		over := make(chan error, 2)
		go func() { over <- server.Export(ctx, "R", arrays.NewArraysProcessor(counter), rpc.WithState(counter)) }()
		go func() {
			over <- rpc.Main(ctx, server, "main", func(ctx context.Context, _ []byte) error { return rpc.Checkpoint(ctx, []byte("state")) })
		}()
		select {
		case err := <-over:
			t.Errorf("without a ledger: %v", err)
		case <-time.After(10 * time.Second): // virtual
		}
		if err := r.BootBlade("m1"); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			if err := <-over; err != nil {
				t.Error(err)
			}
		}
		if err := ping(ctx, caller, "Ping"); err != nil {
			t.Error(err)
		}
		if v, err := echo(ctx, caller, "R", ""); err != nil || v != 1 {
			t.Errorf("R has counted %d, %v", v, err)
		}
		if s := server.Stats(); s.Accepted != 2 || s.Stateful != 1 || s.MainCheckpoints == 0 {
			t.Errorf("%+v", s)
		}
	})
}
