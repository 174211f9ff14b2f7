package simrack_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/bifrost-rack/bifrost/dsm"
	"github.com/bifrost-rack/bifrost/examples/arrays/gen-go/arrays"
	"github.com/bifrost-rack/bifrost/internal/wire"
	"github.com/bifrost-rack/bifrost/rpc"
)

// begin has the handler run, and returns what the client's call comes to.
func (r *shelf) begin(handle func(ctx context.Context, at *dsm.Pointer) error) <-chan error {
	r.handle = handle
	result := make(chan error, 1)
	go func() {
		_, err := arrays.NewArraysClient(r.client.Client("Shelf", rpc.WithPolicy(rpc.PolicyRecover))).Echo(r.Context(), []byte("x"))
		result <- err
	}()
	return result
}

// undeploy takes the deployment back.
func (r *shelf) undeploy() {
	r.Helper()
	if err := r.Gatekeeper().Undeploy(r.Context(), "app"); err != nil {
		r.Fatal(err)
	}
}

// nothingLeft waits until nothing is left of the deployment.
func (r *shelf) nothingLeft() {
	r.Helper()
	left := ""
	for range 200 {
		if left = r.left(); left == "" {
			return
		}
		<-time.After(100 * time.Millisecond) // virtual
	}
	r.Error(left)
}

// left says what is left beside the client, "" if nothing.
func (r *shelf) left() string {
	r.Helper()
	s, err := r.Gatekeeper().Snapshot(r.Context())
	if err != nil {
		r.Fatal(err)
	}
	if len(s.Nodes) != 1 || len(s.Services)+len(s.Regions)+len(s.Calls) > 0 {
		return fmt.Sprintf("nodes %+v, services %+v, %d regions, %d calls", s.Nodes, s.Services, len(s.Regions), len(s.Calls))
	}
	all, err := r.Gatekeeper().Deployments(r.Context())
	if err != nil || len(all) > 0 {
		return fmt.Sprintf("deployments %+v, %v", all, err)
	}
	for _, m := range []string{"m1", "m2"} {
		server := r.MemoryServer(m)
		if n := server.Ledgers().Count; n > 1 || server.Used() > 0 || server.Metrics().Undo.Executions > 0 {
			return fmt.Sprintf("blade %s has %d ledgers, %d bytes, and undo of %d executions", m, n, server.Used(), server.Metrics().Undo.Executions)
		}
	}
	return ""
}

// TestHeir_Answers: a call has run, its caller did not get the answer, and the deployment is taken back. The node fails before
// the caller has asked again. Its heir has the answer. New calls do not wait for the heir.
func TestHeir_Answers(t *testing.T) {
	withShelf(t, true, func(r *shelf) {
		other := r.join("s2", "other")
		answer := r.begin(func(context.Context, *dsm.Pointer) error {
			r.Host("c1").Impair(wire.Impairment{}, wire.Impairment{Loss: 1})
			return nil
		})
		<-time.After(500 * time.Millisecond) // virtual: done is in the ledger
		r.undeploy()
		if err := r.Kill("s1", "app/p/1"); err != nil {
			t.Fatal(err)
		}
		<-time.After(500 * time.Millisecond) // virtual
		fails(t, ping(r.Context(), other, "Shelf"), time.Now(), "no node serves Shelf.ping")
		r.must(other.Close(r.Context()))
		r.Host("c1").Impair(wire.Impairment{}, wire.Impairment{})
		if err := <-answer; err != nil {
			t.Error(err)
		}
		if n := r.runs.Load(); n != 1 {
			t.Errorf("%d runs", n)
		}
		r.nothingLeft()
	})
}

// TestHeir_Ends: a call runs when its deployment is taken back, and does not end. Its node is stopped after a while. The caller
// hears that the call may have run, and what it did to memory is taken back.
func TestHeir_Ends(t *testing.T) {
	withShelf(t, false, func(r *shelf) {
		var at dsm.Pointer
		answer := r.begin(func(ctx context.Context, _ *dsm.Pointer) error {
			var err error
			if at, err = rpc.Memory(ctx).Alloc(ctx, 64); err == nil {
				_, err = rpc.Memory(ctx).Write(ctx, at, []byte("written"))
			}
			<-ctx.Done() // the node has ended
			return err
		})
		<-time.After(time.Second) // virtual
		if at.IsNil() {
			t.Fatal("the handler has written nothing")
		}
		r.undeploy()
		var err error
		select {
		case err = <-answer:
		case <-time.After(time.Minute): // virtual
			t.Fatal("the call does not end")
		}
		if rpc.CodeOf(err) != rpc.Unavailable || rpc.NeverBegan(err) || !strings.Contains(err.Error(), "the deployment is taken back") {
			t.Errorf("the call has come to %v", err)
		}
		if n := r.MemoryServer("m1").Metrics().Undo.Executions; n != 0 {
			t.Errorf("the call is answered, and memory has undo of %d executions", n)
		}
		fails(t, ping(r.Context(), r.client, "Shelf"), time.Now(), "no node serves Shelf.ping")
		r.nothingLeft()
	})
}

// TestHeir_Refuses: a call is under way to a node that has failed, and the deployment is taken back. The call has not come, and
// its caller hears that it has never begun.
func TestHeir_Refuses(t *testing.T) {
	withShelf(t, true, func(r *shelf) {
		r.call(func(context.Context, *dsm.Pointer) error { return nil })
		r.must(r.CrashBlade("s1"))
		answer := r.begin(func(context.Context, *dsm.Pointer) error { return nil })
		r.must(r.Gatekeeper().MarkFailed(r.Context(), "s1", "test"))
		<-time.After(time.Second) // virtual
		r.undeploy()
		if err := <-answer; rpc.CodeOf(err) != rpc.Unavailable || !rpc.NeverBegan(err) {
			t.Errorf("the call has come to %v", err)
		}
		if n := r.runs.Load(); n != 1 {
			t.Errorf("%d runs", n)
		}
		r.nothingLeft()
	})
}

// TestHeir_Awaited: a node has failed in the middle of a call, and no blade is there for its next incarnation. The deployment is
// taken back, and another blade comes. The heir runs there, though the program may not.
func TestHeir_Awaited(t *testing.T) {
	for _, crash := range []bool{false, true} {
		withShelf(t, true, func(r *shelf) {
			gk := r.Gatekeeper()
			for _, blade := range []string{"c1", "s2"} {
				r.must(gk.Drain(r.Context(), blade, "test"))
			}
			answer := r.begin(func(ctx context.Context, at *dsm.Pointer) error {
				_, err := rpc.Memory(ctx).Alloc(ctx, 64)
				if err == nil {
					err = r.kill(ctx)
				}
				return err
			})
			<-time.After(10 * time.Millisecond) // virtual
			r.must(gk.MarkFailed(r.Context(), "s1", "test"))
			<-time.After(time.Second) // virtual
			r.undeploy()
			if crash {
				r.CrashGatekeeper()
				<-time.After(time.Second) // virtual
				r.must(r.RestartGatekeeper(r.Context()))
				gk = r.Gatekeeper()
			}
			select {
			case err := <-answer:
				t.Fatalf("without a blade: %v", err)
			case <-time.After(time.Minute): // virtual
			}
			r.must(gk.ReturnToService(r.Context(), "s2"))
			if err := <-answer; rpc.CodeOf(err) != rpc.Unavailable || rpc.NeverBegan(err) {
				t.Errorf("the call has come to %v", err)
			}
			r.must(gk.ReturnToService(r.Context(), "c1"))
			r.nothingLeft()
		})
	}
}

func (r *shelf) must(err error) {
	r.Helper()
	if err != nil {
		r.Fatal(err)
	}
}

// TestHeir_Dies: the heir dies, or its blade, or the Gatekeeper, at some moment. Another heir goes on: a caller that did not get
// its answer gets it, and one whose call had begun hears that.
func TestHeir_Dies(t *testing.T) {
	for _, after := range []time.Duration{time.Millisecond, 5 * time.Millisecond, 20 * time.Millisecond, 100 * time.Millisecond} {
		for _, what := range []string{"heir", "blade", "Gatekeeper"} {
			t.Run(what+" "+after.String(), func(t *testing.T) { testHeirDies(t, what, after) })
		}
	}
}

func testHeirDies(t *testing.T, what string, after time.Duration) {
	withShelf(t, false, func(r *shelf) {
		answer := r.begin(func(context.Context, *dsm.Pointer) error {
			r.Host("c1").Impair(wire.Impairment{}, wire.Impairment{Loss: 1})
			return nil
		})
		<-time.After(500 * time.Millisecond) // virtual
		r.Host("c1").Impair(wire.Impairment{}, wire.Impairment{Delay: 20 * time.Millisecond})
		other := r.begin(func(ctx context.Context, _ *dsm.Pointer) error {
			_, err := rpc.Memory(ctx).Alloc(ctx, 64)
			if err == nil {
				r.undeploy()
				err = r.kill(ctx)
			}
			return err
		})
		<-time.After(50*time.Millisecond + after) // virtual
		switch what {
		case "heir":
			for _, blade := range []string{"c1", "s1", "s2"} {
				_ = r.KillSoon(blade, "app/p/1")
			}
		case "blade":
			r.must(r.CrashBlade("s1"))
			r.must(r.BootBlade("s1"))
		case "Gatekeeper":
			r.CrashGatekeeper()
			<-time.After(100 * time.Millisecond) // virtual
			r.must(r.RestartGatekeeper(r.Context()))
		}
		r.Host("c1").Impair(wire.Impairment{}, wire.Impairment{})
		if err := <-answer; err != nil {
			t.Error(err)
		}
		if err := <-other; rpc.CodeOf(err) != rpc.Unavailable || rpc.NeverBegan(err) {
			t.Errorf("the other call has come to %v", err)
		}
		if n := r.runs.Load(); n != 2 {
			t.Errorf("%d runs", n)
		}
		r.nothingLeft()
	})
}

// TestHeir_OfJob: a job is taken back before its durable main is over, and dies. One-ways of its checkpoints have not come to their
// receiver. The heir delivers them, and does not run the main.
func TestHeir_OfJob(t *testing.T) {
	if testing.Short() {
		t.Skip("TestHeir_Dies has heirs under the race detector")
	}
	withClerk(t, 1000, func(ctx context.Context, k *clerk) {
		k.aside = k.post
		k.deployTo(ctx, "c1")
		k.until(ctx, 10)
		at := k.bladeOf("S")
		k.Host(at).Impair(wire.Impairment{}, wire.Impairment{Loss: 1})
		k.until(ctx, 15)
		if err := k.Gatekeeper().Undeploy(ctx, "office"); err != nil {
			t.Fatal(err)
		}
		if err := k.Kill("c1", "office/clerk/1"); err != nil {
			t.Fatal(err)
		}
		<-time.After(time.Second) // virtual
		k.Host(at).Impair(wire.Impairment{}, wire.Impairment{})
		k.mu.Lock()
		rounds, begun := k.round, len(k.begun)
		k.mu.Unlock()
		<-time.After(10 * time.Second) // virtual
		n := k.client(ctx, t)
		v, err := echo(ctx, n, "S", "")
		if count := int(v) - 1; err != nil || count != 2*rounds && count != 2*(rounds+1) || begun != 1 { //nolint:gosec // small
			t.Errorf("S has counted to %d after %d rounds, %v; the main has begun %d times", count, rounds, err, begun)
		}
		if err := n.Close(ctx); err != nil {
			t.Error(err)
		}
		all, err := k.Gatekeeper().Deployments(ctx)
		if err != nil || len(all) != 1 {
			t.Errorf("deployments %+v, %v", all, err)
		}
		k.regions(ctx, 0)
	})
}

// TestHeir_Forgotten: an operator gives an heir up, before it has a blade and when it runs.
func TestHeir_Forgotten(t *testing.T) {
	for _, runs := range []bool{false, true} {
		withShelf(t, true, func(r *shelf) {
			gk, node := r.Gatekeeper(), r.server.Address()
			if err := gk.ForgetNode(r.Context(), node); rpc.CodeOf(err) != rpc.BadRequest {
				t.Errorf("a node that is deployed: %v", err)
			}
			answer := r.begin(func(context.Context, *dsm.Pointer) error {
				r.Host("c1").Impair(wire.Impairment{}, wire.Impairment{Loss: 1})
				return nil
			})
			<-time.After(500 * time.Millisecond) // virtual
			if !runs {
				r.must(gk.Drain(r.Context(), "s2", "test"))
				r.must(gk.Drain(r.Context(), "c1", "test"))
			}
			r.undeploy()
			if err := gk.ForgetNode(r.Context(), node); rpc.CodeOf(err) != rpc.BadRequest {
				t.Errorf("a node that finishes its calls: %v", err)
			}
			if runs {
				r.must(r.Kill("s1", "app/p/1"))
			} else {
				r.must(gk.MarkFailed(r.Context(), "s1", "test"))
			}
			<-time.After(time.Second) // virtual
			r.must(gk.ForgetNode(r.Context(), node))
			r.Host("c1").Impair(wire.Impairment{}, wire.Impairment{})
			if err := <-answer; rpc.CodeOf(err) != rpc.Unavailable || rpc.NeverBegan(err) {
				t.Errorf("the call has come to %v", err)
			}
			r.nothingLeft()
		})
	}
}

// TestHeir_Smaller: a deployment is made smaller, and its node does not end its call in time. It is killed. Its next incarnation runs
// the call.
func TestHeir_Smaller(t *testing.T) {
	withShelf(t, false, func(r *shelf) {
		answer := r.begin(func(ctx context.Context, _ *dsm.Pointer) error {
			if _, err := rpc.Memory(ctx).Alloc(ctx, 64); err != nil || r.runs.Load() > 1 {
				return err
			}
			<-ctx.Done() // the node has ended
			return ctx.Err()
		})
		<-time.After(time.Second) // virtual
		r.must(r.Gatekeeper().Deploy(r.Context(), shelfSpec(0, false)))
		if err := <-answer; err != nil {
			t.Error(err)
		}
	})
}
