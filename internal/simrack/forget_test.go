package simrack_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/bifrost-rack/bifrost/examples/arrays/gen-go/arrays"
	"github.com/bifrost-rack/bifrost/examples/arrays/service"
	"github.com/bifrost-rack/bifrost/gatekeeper/resources"
	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/join"
	"github.com/bifrost-rack/bifrost/internal/wire"
	"github.com/bifrost-rack/bifrost/rpc"
)

// front is a service without state: Echo calls S, some times.
type front struct {
	service.Arrays
	r    *registers
	node *rpc.Node
}

func (f *front) Echo(ctx context.Context, b []byte) ([]byte, error) {
	s := arrays.NewArraysClient(f.node.Client("S", rpc.WithPolicy(rpc.PolicyRecover)))
	answer, err := s.Echo(ctx, b)
	for i := 1; i < f.r.times && err == nil; i++ {
		answer, err = s.Echo(ctx, b)
	}
	if f.r.after != nil {
		f.r.after()
	}
	return answer, err
}

// Increment sends S so many one-ways, one for each byte.
func (f *front) Increment(ctx context.Context, b []byte, _ int8) ([]byte, error) {
	s := f.node.Client("S", rpc.WithPolicy(rpc.PolicyRecover))
	for range b {
		if _, err := s.Call(ctx, "echo", &arrays.ArraysEchoArgs{Data: []byte{}}, nil); err != nil {
			return nil, err
		}
	}
	if f.r.after != nil {
		f.r.after()
	}
	return b, nil
}

func (r *registers) front(ctx context.Context, j join.Joiner, _ control.Start) error {
	node, err := rpc.Join(join.NewContext(ctx, joiner{j, r.joined}), rpc.WithName("F"))
	if err != nil {
		return err
	}
	if err := node.Export(ctx, "F", arrays.NewArraysProcessor(&front{r: r, node: node})); err != nil {
		return err
	}
	<-ctx.Done()
	return nil
}

func (r *registers) deployFront(ctx context.Context, t *testing.T) {
	t.Helper()
	if err := r.Gatekeeper().Deploy(ctx, resources.Spec{Name: "front", Programs: []resources.Program{
		{Name: "F", Args: []string{"F"}, Nodes: 1, Blades: []string{"c1"}, Services: []resources.ServiceSpec{{Name: "F"}}},
	}}); err != nil {
		t.Fatal(err)
	}
}

// impair impairs what the memory blades send, and what they receive.
func (r *registers) impair(sent, received wire.Impairment) {
	for _, m := range []string{"m1", "m2"} {
		r.Host(m).Impair(sent, received)
	}
}

// TestForgetAfterSettled: a node tells its callees to forget their answers when its own
// outcome is settled, and not before. If it dies earlier, its next run asks for the answers.
func TestForgetAfterSettled(t *testing.T) {
	withRegisters(t, "", func(ctx context.Context, r *registers) {
		if err := r.Gatekeeper().Deploy(ctx, resources.Spec{Name: "front", Programs: []resources.Program{
			{Name: "F", Args: []string{"F"}, Nodes: 1, Blades: []string{"c1"}, Services: []resources.ServiceSpec{{Name: "F"}}},
		}}); err != nil {
			t.Fatal(err)
		}
		n := r.client(ctx, t)
		if v, err := echo(ctx, n, "F", ""); v != 1 || err != nil {
			t.Fatal(v, err)
		}
		cut := make(chan struct{})
		r.after = sync.OnceFunc(func() {
			r.impair(wire.Impairment{}, wire.Impairment{Loss: 1}) // F's outcome does not come to its ledger
			close(cut)
		})
		answer := make(chan uint64, 1)
		go func() {
			v, err := echo(ctx, n, "F", "")
			if err != nil {
				t.Error(err)
			}
			answer <- v
		}()
		<-cut
		<-time.After(time.Second / 2) // virtual
		if err := r.Kill("c1", "front/F/1"); err != nil {
			t.Fatal(err)
		}
		r.impair(wire.Impairment{}, wire.Impairment{})
		if v := <-answer; v != 2 {
			t.Errorf("S has counted to %d, want 2", v)
		}
	})
}

// TestForgetWhileItComesBack: a node with executions of many calls comes back, over a slow network.
// Their caller's word to forget them comes in the middle. None of them runs again.
func TestForgetWhileItComesBack(t *testing.T) {
	withRegisters(t, "", func(ctx context.Context, r *registers) {
		r.deployFront(ctx, t)
		n := r.client(ctx, t)
		serves := func() *rpc.Node {
			r.mu.Lock()
			defer r.mu.Unlock()
			return r.nodes["S"]
		}
		former, blade := serves(), r.bladeOf("S")
		slow := func(d time.Duration) {
			for _, b := range []string{"s1", "s2"} {
				r.Host(b).Impair(wire.Impairment{Delay: d}, wire.Impairment{Delay: d})
			}
		}
		const times = 30
		r.times = times
		r.after = sync.OnceFunc(func() {
			if err := r.KillSoon(blade, "app/S/1"); err != nil {
				t.Error(err)
			}
			slow(10 * time.Millisecond)
		})
		if _, err := echo(ctx, n, "F", "memory"); err != nil {
			t.Fatal(err)
		}
		for serves() == former {
			<-time.After(10 * time.Millisecond) // virtual
		}
		<-time.After(10 * time.Second) // virtual: all that is to be forgotten is
		slow(0)
		if v, err := echo(ctx, n, "S", ""); v != times+1 || err != nil {
			t.Errorf("S has counted to %d, want %d: %v", v, times+1, err)
		}
	})
}

// TestLedgerAway: a node whose program fails while no machine is in service that could keep its
// ledger comes back when one is: without a ledger it would not answer the direct calls that
// wait for it.
func TestLedgerAway(t *testing.T) {
	withRegisters(t, "", func(ctx context.Context, r *registers) {
		r.deployFront(ctx, t)
		n := r.client(ctx, t)
		if v, err := echo(ctx, n, "F", ""); err != nil || v != 1 {
			t.Fatalf("%d, %v", v, err)
		}
		r.impair(wire.Impairment{Loss: 1}, wire.Impairment{Loss: 1})
		answer := make(chan uint64, 1)
		go func() {
			v, err := echo(ctx, n, "F", "")
			if err != nil {
				t.Error(err)
			}
			answer <- v
		}()
		<-time.After(5 * time.Second) // virtual: both copies are out of service
		if err := r.Kill("c1", "front/F/1"); err != nil {
			t.Fatal(err)
		}
		<-time.After(5 * time.Second) // virtual: it is started again, more than once
		r.impair(wire.Impairment{}, wire.Impairment{})
		select {
		case v := <-answer:
			if v != 2 {
				t.Errorf("S has counted to %d, want 2", v)
			}
		case <-time.After(time.Minute): // virtual
			t.Error("a direct call waits for ever for a node that has come back")
		}
		if err := n.Close(ctx); err != nil {
			t.Error(err)
		}
	})
}
