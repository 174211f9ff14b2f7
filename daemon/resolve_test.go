package daemon

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/internal/join"
	"github.com/bifrost-rack/bifrost/internal/wire"
)

// TestServing: a node asks who takes the calls of a method, and the blade of a node that exports it answers, on a bad network too. The
// Gatekeeper hears of that with the heartbeats. It is not asked.
func TestServing(t *testing.T) {
	for name, impair := range map[string]wire.Impairment{"good network": {}, "bad network": bad} {
		t.Run(name, func(t *testing.T) {
			inRack(t, impair, func(r *rack) {
				c, _, stop := r.compute(ComputeConfig{})
				server, err := c.Join(r.ctx, "server")
				if err != nil {
					t.Fatal(err)
				}
				client, err := c.Join(r.ctx, "client")
				if err != nil {
					t.Fatal(err)
				}
				if _, err := server.Export(r.ctx, control.Export{Service: "Arrays", Methods: []control.Method{{Name: "add"}}}); err != nil {
					t.Fatal(err)
				}
				ask := func(q control.Serving) (control.ServingList, error) {
					ctx, cancel := context.WithTimeout(r.ctx, time.Minute) // virtual
					defer cancel()
					return client.Serving(ctx, q)
				}
				told := func(named, bound bool) {
					t.Helper()
					pass(5 * time.Second)
					r.gk.set(func() {
						i := slices.Index(r.gk.last.Nodes, server.Node().Address)
						if i < 0 || len(r.gk.last.Named) != 2 || r.gk.last.Named[i] > 0 != named || r.gk.last.Bound[i] > 0 != bound {
							t.Errorf("the Gatekeeper is told %+v; want named: %v, bound: %v", r.gk.last, named, bound)
						}
					})
				}
				told(false, false)
				if list, err := ask(control.Serving{Service: "Arrays", Method: "add"}); err != nil || list.Why != control.NoLedger {
					t.Errorf("exactly once, by a node without a ledger: %+v, %v", list, err)
				}
				told(true, false)
				list, err := ask(control.Serving{Service: "Arrays", Method: "add", AtMostOnce: true})
				if err != nil || len(list.Nodes) != 1 || list.Nodes[0] != server.Node().Address || list.Incarnations[0] != 1 {
					t.Errorf("the node that serves it is %+v, %v", list, err)
				}
				told(true, true)
				if list, err := ask(control.Serving{Service: "Arrays", Method: "multiply"}); err == nil {
					t.Errorf("a method that it does not export: %+v, %v", list, err)
				}
				if err := server.Close(r.ctx); err != nil {
					t.Error(err)
				}
				if list, err := ask(control.Serving{Service: "Arrays", Method: "add", AtMostOnce: true}); err == nil {
					t.Errorf("the node has left, and it is %+v", list)
				}
				if err := stop(); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// TestUsers_Lookups: one user's lookups leave room for those of others.
func TestUsers_Lookups(t *testing.T) {
	inRack(t, wire.Impairment{}, func(r *rack) {
		c, _, stop := r.compute(ComputeConfig{})
		c.lookupsOf.Force(60001, c.lookupsOf.Total()-8)
		look := func(uid uint32) error {
			n, err := c.Host(r.ctx, join.Program{Name: "n", UID: uid})
			if err != nil {
				t.Fatal(err)
			}
			defer n.Crash("test")
			ctx, cancel := context.WithTimeout(r.ctx, time.Second) // virtual
			defer cancel()
			_, err = n.Serving(ctx, control.Serving{Service: "S", Method: "m"})
			return err
		}
		if err := look(60001); fault.CodeOf(err) != fault.Overloaded {
			t.Errorf("a user takes them all: %v", err)
		}
		if err := look(60002); fault.CodeOf(err) == fault.Overloaded {
			t.Errorf("another user: %v", err)
		}
		if got := refusals(c); got["60001 lookups"] != 1 {
			t.Errorf("refused: %v", got)
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}
