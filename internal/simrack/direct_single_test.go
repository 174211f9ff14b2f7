package simrack_test

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/bifrost-rack/bifrost/dsm"
	"github.com/bifrost-rack/bifrost/examples/arrays/gen-go/arrays"
	"github.com/bifrost-rack/bifrost/gatekeeper"
	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/simrack"
	"github.com/bifrost-rack/bifrost/rpc"
)

// A machine with one copy, m3, goes away while a direct execution has changed it, and is back with
// what it had. The node's ledger is on the pair, m1 and m2.

// away is for how long: the Gatekeeper takes the blade out of service.
const away = 5 * time.Second

// single is a rack with a service with state whose node has a region on m3.
type single struct {
	*shelf
	at dsm.Pointer
}

// withSingle runs f. The region holds "old".
func withSingle(t *testing.T, f func(r *single)) {
	t.Helper()
	r := new(single)
	begins := func(s *shelf) error {
		if !r.at.IsNil() {
			return nil
		}
		o, err := s.Gatekeeper().Overview(s.Context())
		i := slices.IndexFunc(o.Machines, func(m gatekeeper.MachineState) bool { return m.Blades[0] == "m3" })
		for err == nil && r.at.IsNil() {
			var p dsm.Pointer
			if p, err = s.server.Memory().Alloc(s.Context(), 64); p.Machine() == o.Machines[i].Machine {
				r.at = p
			}
		}
		if err == nil {
			_, err = s.server.Memory().Write(s.Context(), r.at, []byte("old"))
		}
		return err
	}
	withShelves(t, &shelf{state: true, begins: begins}, simrack.Thesis(), func(s *shelf) {
		r.shelf = s
		r.call(func(_ context.Context, at *dsm.Pointer) error { // which the service's state knows, so that the next incarnation keeps it
			*at = r.at
			return nil
		})
		r.runs.Store(0)
		f(r)
	})
}

func (r *single) write(ctx context.Context, what string) error {
	_, err := rpc.Memory(ctx).Write(ctx, r.at, []byte(what))
	return err
}

// holds checks what a handler finds.
func (r *single) holds(ctx context.Context, want string) error {
	b := make([]byte, len(want))
	_, err := rpc.Memory(ctx).Read(ctx, r.at, b)
	if err == nil && string(b) != want {
		r.Errorf("the region holds %q, want %q", b, want)
	}
	return err
}

// beside calls the node's other service.
func (r *single) beside() {
	r.Helper()
	ctx, cancel := context.WithTimeout(r.Context(), time.Second) // virtual
	defer cancel()
	if _, err := arrays.NewArraysClient(r.client.Client("Beside", rpc.WithPolicy(rpc.PolicyRecover))).Echo(ctx, []byte("x")); err != nil {
		r.Errorf("the node's other service, while the machine is away: %v", err)
	}
}

// TestSingle_Committed: an execution is done while the machine is away, and its node dies. The next
// incarnation serves meanwhile, has the machine commit when that is back, and then answers.
func TestSingle_Committed(t *testing.T) {
	withSingle(t, func(r *single) {
		m3, answered := r.Host("m3"), make(chan struct{})
		go func() {
			defer close(answered)
			r.call(func(ctx context.Context, _ *dsm.Pointer) error {
				if err := r.holds(ctx, "old"); err != nil {
					return err
				}
				err := r.write(ctx, "new")
				m3.SetLink(false)
				return err
			})
		}()
		<-time.After(away)
		r.beside()
		if err := r.Kill("s1", "app/p/1"); err != nil {
			t.Fatal(err)
		}
		<-time.After(away)
		r.beside()
		select {
		case <-answered:
			t.Error("the call is answered, and the machine has not committed")
		default:
		}
		m3.SetLink(true)
		<-answered
		if n := r.runs.Load(); n != 1 {
			t.Errorf("%d runs", n)
		}
		r.call(func(ctx context.Context, _ *dsm.Pointer) error { return r.holds(ctx, "new") })
		if s := r.server.Stats(); s.Committed == 0 {
			t.Errorf("the next incarnation has had nothing committed: %+v", s)
		}
		r.direct()
	})
}

// TestSingle_TakenBack: a run dies with the machine away. What it has written is seen by nobody when
// the machine is back, neither at the node nor at whom it lends the region, and the next run finds
// what there was before.
func TestSingle_TakenBack(t *testing.T) {
	withSingle(t, func(r *single) {
		m3, answered := r.Host("m3"), make(chan struct{})
		var read, lent atomic.Int64
		sees := func(ctx context.Context, m *dsm.Client, who string, n *atomic.Int64) error {
			b := make([]byte, 3)
			_, err := m.Read(ctx, r.at, b)
			if err == nil && string(b) != "old" {
				t.Errorf("%s reads %q", who, b)
			} else if err == nil {
				n.Add(1)
			}
			return err
		}
		r.borrows(func(ctx context.Context, _ dsm.Pointer) error { return sees(ctx, rpc.Memory(ctx), "a borrower", &lent) })
		go func() {
			defer close(answered)
			r.call(func(ctx context.Context, _ *dsm.Pointer) error {
				if err := r.holds(ctx, "old"); err != nil || r.runs.Load() > 1 {
					return err
				}
				if err := r.write(ctx, "bad"); err != nil {
					return err
				}
				m3.SetLink(false)
				return r.kill(ctx)
			})
		}()
		<-time.After(away)
		r.beside()
		m3.SetLink(true)
		var readers sync.WaitGroup
		for i := range 1000 {
			<-time.After(time.Millisecond)
			readers.Go(func() { _ = sees(r.Context(), r.server.Memory(), "the node", &read) })
			if i%10 == 0 {
				readers.Go(func() {
					borrower := arrays.NewArraysClient(r.server.Client("Borrower", rpc.WithPolicy(rpc.PolicyNone)))
					_, _ = borrower.EchoRef(r.Context(), rpc.GlobalPointer(r.at), 8) // it may fail while the machine is away
				})
			}
		}
		readers.Wait()
		<-answered
		if read.Load() < 100 || lent.Load() < 50 {
			t.Errorf("only %d reads, and %d by borrowers, while the machine came back", read.Load(), lent.Load())
		}
		if n := r.runs.Load(); n != 2 {
			t.Errorf("%d runs", n)
		}
		if s := r.server.Stats(); s.RolledBack == 0 {
			t.Errorf("the next incarnation has had nothing taken back: %+v", s)
		}
		r.direct()
	})
}

// TestSingle_Refused: a machine refuses to commit what an execution has done, as if its node were
// fenced. The node cannot go on: it gives its identity back, and the next incarnation commits, and
// answers.
func TestSingle_Refused(t *testing.T) {
	withSingle(t, func(r *single) {
		r.call(func(ctx context.Context, _ *dsm.Pointer) error {
			err := r.write(ctx, "new")
			if _, err := r.MemoryServer("m3").Fence(control.Fence{Node: r.server.Address(), Incarnation: 1}); err != nil {
				t.Error(err)
			}
			return err
		})
		if n := r.runs.Load(); n != 1 {
			t.Errorf("%d runs", n)
		}
		r.call(func(ctx context.Context, _ *dsm.Pointer) error { return r.holds(ctx, "new") })
		r.direct()
	})
}

// TestSingle_LedgerLost: no machine has two copies. The one with the node's ledger begins anew while an
// execution has changed the other one. Nobody knows of that any more: it is taken back, and the call
// runs again.
func TestSingle_LedgerLost(t *testing.T) {
	blades := slices.DeleteFunc(simrack.Thesis(), func(b simrack.Blade) bool { return b.Name == "m2" })
	withShelves(t, &shelf{}, blades, func(r *shelf) {
		r.call(func(ctx context.Context, _ *dsm.Pointer) error {
			if r.runs.Load() > 1 {
				return nil
			}
			machines := map[uint8]bool{}
			for len(machines) < 2 {
				p, err := rpc.Memory(ctx).Alloc(ctx, 64)
				if err == nil {
					_, err = rpc.Memory(ctx).Write(ctx, p, []byte("bad"))
				}
				if err != nil {
					return err
				}
				machines[p.Machine()] = true
			}
			lost := "m1"
			if _, _, ok := r.MemoryServer(lost).ReadLedger(control.LedgerOf(r.server.Address())); !ok {
				lost = "m3"
			}
			if err := r.CrashBlade(lost); err != nil {
				t.Error(err)
			}
			if err := r.BootBlade(lost); err != nil {
				t.Error(err)
			}
			return r.kill(ctx)
		})
		if n := r.runs.Load(); n != 2 {
			t.Errorf("%d runs", n)
		}
		r.direct()
		r.regions(0)
		<-time.After(time.Second) // virtual; machines are told after that
		for _, name := range []string{"m1", "m3"} {
			if u := r.MemoryServer(name).Metrics().Undo; u.Executions != 0 {
				t.Errorf("undo is left on %s: %+v", name, u)
			}
			l, err := r.MemoryServer(name).Regions(control.Regions{Max: 10})
			if err != nil || len(l.Regions) > 0 {
				t.Errorf("%s has %+v, %v", name, l.Regions, err)
			}
		}
	})
}
