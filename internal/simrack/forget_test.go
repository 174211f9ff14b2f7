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

// front is a service without state: Echo calls S.
type front struct {
	service.Arrays
	r    *registers
	node *rpc.Node
}

func (f *front) Echo(ctx context.Context, b []byte) ([]byte, error) {
	answer, err := arrays.NewArraysClient(f.node.Client("S", rpc.WithPolicy(rpc.PolicyRecover))).Echo(ctx, b)
	if f.r.after != nil {
		f.r.after()
	}
	return answer, err
}

func (r *registers) front(ctx context.Context, j join.Joiner, _ control.Start) error {
	node, err := rpc.Join(join.NewContext(ctx, j), rpc.WithName("F"))
	if err != nil {
		return err
	}
	if err := node.Export(ctx, "F", arrays.NewArraysProcessor(&front{r: r, node: node})); err != nil {
		return err
	}
	<-ctx.Done()
	return nil
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
		impair := func(i wire.Impairment) {
			for _, m := range []string{"m1", "m2"} {
				r.Host(m).Impair(wire.Impairment{}, i)
			}
		}
		cut := make(chan struct{})
		r.after = sync.OnceFunc(func() {
			impair(wire.Impairment{Loss: 1}) // F's outcome does not come to its ledger
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
		impair(wire.Impairment{})
		if v := <-answer; v != 2 {
			t.Errorf("S has counted to %d, want 2", v)
		}
	})
}
