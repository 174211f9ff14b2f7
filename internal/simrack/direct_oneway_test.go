package simrack_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"testing"
	"time"

	"github.com/bifrost-rack/bifrost/dsm"
	"github.com/bifrost-rack/bifrost/examples/arrays/gen-go/arrays"
	"github.com/bifrost-rack/bifrost/examples/arrays/service"
	"github.com/bifrost-rack/bifrost/gatekeeper"
	"github.com/bifrost-rack/bifrost/internal/wire"
	"github.com/bifrost-rack/bifrost/rpc"
)

// oneway sends so many bytes to Echo, which does not answer then.
func (r *large) oneway(ctx context.Context, size int) error {
	data := bytes.Repeat([]byte("argument"), size/8)
	binary.BigEndian.PutUint64(data, 16)
	ctx, cancel := context.WithTimeout(ctx, time.Minute) // virtual
	defer cancel()
	_, err := r.client.Client("Large", rpc.WithPolicy(rpc.PolicyRecover)).Call(ctx, "echo", &arrays.ArraysEchoArgs{Data: data}, nil)
	return err
}

// settled waits until so many runs have begun, and nobody has anything to do with them.
func (r *large) settled(runs int64) {
	r.Helper()
	<-time.After(10 * time.Second) // virtual
	if n := r.runs.Load(); n != runs {
		r.Errorf("%d runs, want %d", n, runs)
	}
}

// TestOnewaysGoDirect: one-ways of any size go from node to node, whatever is lost, and without a
// Gatekeeper. Each runs once.
func TestOnewaysGoDirect(t *testing.T) {
	withLarge(t, 1500, 0, func(r *large) {
		if err := r.oneway(r.Context(), 16); err != nil { // who serves it is known
			r.Fatal(err)
		}
		r.CrashGatekeeper()
		r.Host("c1").Impair(wire.Impairment{Loss: 0.3}, wire.Impairment{Loss: 0.3})
		sizes := []int{16, 1 << 10, 2 << 10, 100 << 10}
		for _, size := range sizes {
			if err := r.oneway(r.Context(), size); err != nil {
				r.Errorf("an argument of %d bytes: %v", size, err)
			}
		}
		r.Host("c1").Impair(wire.Impairment{}, wire.Impairment{})
		all := len(sizes) + 1
		r.settled(int64(all))
		if s := r.server.Stats(); s.Oneways != uint64(all) || s.Accepted != s.Oneways {
			r.Errorf("%+v", s)
		}
		if err := r.RestartGatekeeper(r.Context()); err != nil {
			r.Fatal(err)
		}
	})
}

// TestOnewayWaitsForTheLedger: a one-way does not return before the receiver's ledger has it.
func TestOnewayWaitsForTheLedger(t *testing.T) {
	withLarge(t, 1500, 0, func(r *large) {
		if err := r.oneway(r.Context(), 16); err != nil { // the ledger is open
			r.Fatal(err)
		}
		impair := func(received wire.Impairment) {
			for _, m := range []string{"m1", "m2", "m3"} {
				r.Host(m).Impair(wire.Impairment{}, received)
			}
		}
		impair(wire.Impairment{Loss: 1})
		returned := make(chan error, 1)
		go func() { returned <- r.oneway(r.Context(), 16) }()
		<-time.After(100 * time.Millisecond) // virtual
		select {
		case err := <-returned:
			r.Errorf("it returns: %v", err)
			returned <- err
		default:
		}
		impair(wire.Impairment{})
		if err := <-returned; err != nil {
			r.Error(err)
		}
		r.settled(2)
	})
}

// TestOnewayRunsToItsEnd: a one-way returns while its handler still runs, though its acknowledgement
// is lost at first. Its sender leaves, so
// that nobody asks for it any more, and its node dies. It is run to its end, and forgotten.
func TestOnewayRunsToItsEnd(t *testing.T) {
	withLarge(t, 1500, 0, func(r *large) {
		data := make([]byte, 16)
		binary.BigEndian.PutUint64(data, 16)
		r.waits = 2
		if _, err := arrays.NewArraysClient(r.client.Client("Large", rpc.WithPolicy(rpc.PolicyRecover))).Increment(r.Context(), data, 1); err != nil {
			r.Fatal(err) // now it is known who serves it
		}
		ctx, cancel := context.WithTimeout(r.Context(), time.Minute) // virtual
		defer cancel()
		returned := make(chan error, 1)
		r.Host("c1").Impair(wire.Impairment{}, wire.Impairment{Loss: 1}) // its acknowledgement
		go func() {
			_, err := r.client.Client("Large", rpc.WithPolicy(rpc.PolicyRecover)).Call(ctx, "increment", &arrays.ArraysIncrementArgs{Data: data}, nil)
			returned <- err
		}()
		<-r.up
		<-time.After(100 * time.Millisecond) // virtual: it is sent when the ledger has the one-way
		r.Host("c1").Impair(wire.Impairment{}, wire.Impairment{})
		if err := <-returned; err != nil {
			r.Fatal(err)
		}
		if err := r.client.Close(r.Context()); err != nil {
			r.Error(err)
		}
		<-time.After(10 * time.Second) // virtual: the server has asked whether it is there
		if s := r.server.Stats(); s.Oneways != 1 {
			r.Errorf("%+v", s)
		}
		if err := r.KillSoon("s1", "app/p/1"); err != nil {
			r.Fatal(err)
		}
		<-r.up
		r.settled(3)
		calls, _, err := r.Gatekeeper().Calls(r.Context(), gatekeeper.CallQuery{Limit: 10})
		if err != nil || len(calls) > 0 {
			r.Errorf("under way are %+v, %v", calls, err)
		}
		if err := r.Gatekeeper().Undeploy(r.Context(), "app"); err != nil {
			r.Error(err)
		}
		<-time.After(10 * time.Second) // virtual
		if s, err := r.Gatekeeper().Snapshot(r.Context()); err != nil || len(s.Nodes)+len(s.Calls)+len(s.Regions) > 0 {
			r.Errorf("left are %+v, %+v, %+v: %v", s.Nodes, s.Calls, s.Regions, err)
		}
	})
}

// TestOnewaysOfExecutions: the one-ways of a direct execution leave when it is done, though their
// receiver is away then, and their sender dies before they are acknowledged.
func TestOnewaysOfExecutions(t *testing.T) {
	withRegisters(t, "", func(ctx context.Context, r *registers) {
		r.deployFront(ctx, t)
		n := r.client(ctx, t)
		post := func(times int) {
			t.Helper()
			if _, err := arrays.NewArraysClient(n.Client("F", rpc.WithPolicy(rpc.PolicyRecover))).Increment(ctx, make([]byte, times), 0); err != nil {
				t.Fatal(err)
			}
		}
		post(3)
		<-time.After(time.Second) // virtual
		post(3)
		<-time.After(time.Second) // virtual
		cut := wire.Impairment{Loss: 1}
		blade := r.bladeOf("S")
		r.after = func() { r.Host(blade).Impair(cut, cut) } // not for so long that anybody notices
		post(10)
		r.after = nil
		if err := r.Kill("c1", "front/F/1"); err != nil {
			t.Fatal(err)
		}
		r.Host(blade).Impair(wire.Impairment{}, wire.Impairment{})
		<-time.After(10 * time.Second) // virtual
		if v, err := echo(ctx, n, "S", ""); v != 17 || err != nil {
			t.Errorf("S has counted to %d, want 17: %v", v, err)
		}
	})
}

// TestOnewaysAfterWhatRuns: one-ways into a service with state are accepted while a call is under way
// there, and its node dies. The call goes on before they run, whoever decides about it: what it has
// done follows from the state that it found.
func TestOnewaysAfterWhatRuns(t *testing.T) {
	for name, handed := range map[string]bool{"direct": false, "handed over": true} {
		t.Run(name, func(t *testing.T) {
			withShelf(t, true, func(r *shelf) {
				var senders [4]*rpc.Node
				for i := range senders { // their ids come before the call's
					senders[i], r.client = r.client, r.join("c1", "client")
				}
				echo := r.join("c1", "echo")
				if err := echo.Export(r.Context(), "Arrays", arrays.NewArraysProcessor(service.Arrays{})); err != nil {
					t.Fatal(err)
				}
				r.call(func(ctx context.Context, at *dsm.Pointer) error {
					counted := &at[len(at)-1]
					to := arrays.NewArraysClient(r.server.Client("Arrays", rpc.WithPolicy(rpc.PolicyRecover)))
					_, err := to.Echo(ctx, []byte{*counted})
					if err == nil && handed {
						var p dsm.Pointer
						if p, err = rpc.Memory(ctx).Alloc(ctx, 64); err == nil {
							_, err = to.EchoRef(ctx, rpc.GlobalPointer(p), 64)
						}
					}
					if *counted++; err != nil || r.runs.Load() > 1 {
						return err
					}
					for _, n := range senders {
						if _, err := n.Client("Shelf", rpc.WithPolicy(rpc.PolicyRecover)).Call(r.Context(), "increment", &arrays.ArraysIncrementArgs{Data: []byte{1}}, nil); err != nil {
							t.Error(err)
						}
					}
					return r.kill(ctx)
				})
				r.call(func(_ context.Context, at *dsm.Pointer) error {
					if got, want := int(at[len(at)-1]), len(senders)+1; got != want {
						t.Errorf("the state counts %d, want %d", got, want)
					}
					return nil
				})
			})
		})
	}
}
