package simrack_test

import (
	"bytes"
	"context"
	"strings"
	"testing"
	"time"

	"github.com/bifrost-rack/bifrost/dsm"
	"github.com/bifrost-rack/bifrost/examples/arrays/gen-go/arrays"
	"github.com/bifrost-rack/bifrost/internal/wire"
	"github.com/bifrost-rack/bifrost/rpc"
)

// withSmallPackets is withShelf on a rack whose packets have 1,280 bytes: calls with bulky headers
// exceed them.
func withSmallPackets(t *testing.T, f func(r *shelf)) {
	t.Helper()
	withShelves(t, &shelf{mtu: 1280}, mirroredThesis(), f)
}

// ballast is a header's value that fills several small packets.
var ballast = strings.Repeat("bulk", 1500)

// bulky makes calls exceed a small packet.
func bulky(ctx context.Context) context.Context { return rpc.WithHeader(ctx, "ballast", ballast) }

// wholly checks that a handler has got its call whole.
func (r *shelf) wholly(ctx context.Context) {
	r.Helper()
	if got, _ := rpc.Header(ctx, "ballast"); got != ballast {
		r.Errorf("the handler got %d bytes, want %d", len(got), len(ballast))
	}
}

// reads checks what a region has.
func (r *shelf) reads(ctx context.Context, p dsm.Pointer, want string) {
	r.Helper()
	b := make([]byte, len(want))
	if _, err := rpc.Memory(ctx).Read(ctx, p, b); err != nil || !bytes.Equal(b, []byte(want)) {
		r.Errorf("read %q, %v, want %q", b, err, want)
	}
}

// TestDirectLoan_Large: a call that lends memory and exceeds a packet goes direct, from an execution and
// from a plain client. The callee fetches the rest from its caller.
func TestDirectLoan_Large(t *testing.T) {
	withSmallPackets(t, func(r *shelf) {
		n := r.borrows(func(ctx context.Context, p dsm.Pointer) error {
			r.wholly(ctx)
			r.reads(ctx, p, "contents")
			return nil
		})
		by := func(ctx context.Context, m *dsm.Client, n *rpc.Node) error {
			return lentOut(ctx, m, func(p dsm.Pointer) error { return lendTo(bulky(ctx), n, p) })
		}
		r.call(func(ctx context.Context, _ *dsm.Pointer) error { return by(ctx, rpc.Memory(ctx), r.server) })
		r.direct()
		if err := by(r.Context(), r.client.Memory(), r.client); err != nil {
			r.Error(err)
		}
		if s := n.Stats(); s.Lending != 2 || s.LargeMessages != 2 {
			r.Errorf("%+v: want two large direct calls with pointers", s)
		}
		if r.server.Stats().Parts == 0 || r.client.Stats().Parts == 0 {
			r.Errorf("no parts were sent: %+v, %+v", r.server.Stats(), r.client.Stats())
		}
		r.regions(0)
	})
}

// TestDirectLoan_LargeCallerDies: the caller's program dies while its callee fetches the call. The
// callee gives that up, and gets the call whole from the caller's next incarnation.
func TestDirectLoan_LargeCallerDies(t *testing.T) {
	withSmallPackets(t, func(r *shelf) {
		n := r.borrows(func(ctx context.Context, p dsm.Pointer) error {
			r.wholly(ctx)
			r.reads(ctx, p, "run 2")
			return nil
		})
		caller := r.Host("s1")
		r.call(func(ctx context.Context, _ *dsm.Pointer) error {
			p, err := rpc.Memory(ctx).Alloc(ctx, 64)
			if err != nil {
				return err
			}
			if r.runs.Load() == 2 {
				_, err = rpc.Memory(ctx).Write(ctx, p, []byte("run 2"))
				if err != nil {
					return err
				}
				return lendTo(bulky(ctx), r.server, p)
			}
			caller.Impair(wire.Impairment{}, wire.Impairment{Loss: 0.9}) // what it hears: pulls come late
			go func() { _ = lendTo(bulky(ctx), r.server, p) }()
			<-time.After(200 * time.Millisecond) // virtual
			caller.Impair(wire.Impairment{}, wire.Impairment{})
			return r.kill(ctx)
		})
		if s := n.Stats(); s.Lending == 0 || r.runs.Load() != 2 {
			r.Errorf("%d runs, %+v: want two, and direct calls with pointers", r.runs.Load(), s)
		}
		r.direct()
		r.regions(0)
	})
}

// TestDirectLoan_LargeGatekeeperDies: the Gatekeeper dies while the callee fetches the call. The next one
// knows the call, and has the answer end its rights.
func TestDirectLoan_LargeGatekeeperDies(t *testing.T) {
	withSmallPackets(t, func(r *shelf) {
		n := r.borrows(func(ctx context.Context, p dsm.Pointer) error {
			r.wholly(ctx)
			r.reads(ctx, p, "contents")
			return nil
		})
		p, err := filled(r.Context(), r.client.Memory())
		if err != nil {
			r.Fatal(err)
		}
		callee := r.Host("c1")
		callee.Impair(wire.Impairment{}, wire.Impairment{Loss: 0.5})
		done := make(chan error, 1)
		go func() { done <- lendTo(bulky(r.Context()), r.client, p) }()
		for i := 0; n.Stats().LargeMessages == 0 && i < 1000; i++ {
			<-time.After(time.Millisecond) // virtual
		}
		r.CrashGatekeeper()
		if err := r.RestartGatekeeper(r.Context()); err != nil {
			r.Fatal(err)
		}
		callee.Impair(wire.Impairment{}, wire.Impairment{})
		if err := <-done; err != nil {
			r.Error(err)
		}
		if err := r.client.Memory().Free(r.Context(), p); err != nil {
			r.Error(err)
		}
		if s := n.Stats(); s.Lending != 1 {
			r.Errorf("%+v: want one direct call with a pointer", s)
		}
		r.regions(0)
	})
}

// bulkyAnswer makes the answer of a handler exceed a small packet.
func (r *shelf) bulkyAnswer(ctx context.Context) {
	r.Helper()
	if err := rpc.SetAnswerHeader(ctx, "ballast", ballast); err != nil {
		r.Error(err)
	}
}

// getWhole calls a service that returns memory, and checks that its bulky answer has come whole.
func (r *shelf) getWhole(ctx context.Context, n *rpc.Node, service string, lent dsm.Pointer) (dsm.Pointer, error) {
	r.Helper()
	c := arrays.NewArraysClient(n.Client(service, rpc.WithPolicy(rpc.PolicyRecover)))
	p, err := c.EchoRef(ctx, rpc.GlobalPointer(lent), 8)
	if err != nil {
		return dsm.Pointer{}, err
	}
	meta := c.LastResponseMeta_()
	if got := meta.Headers["ballast"]; got != ballast {
		r.Errorf("an answer with %d bytes has come, want %d", len(got), len(ballast))
	}
	return rpc.PointerOf(p)
}

// TestDirectResults_Large: an answer that exceeds a packet goes direct, if it has pointers and if its call has
// some. The caller fetches the rest from the callee.
func TestDirectResults_Large(t *testing.T) {
	withSmallPackets(t, func(r *shelf) {
		giver := r.gives(func(ctx context.Context) (dsm.Pointer, error) {
			r.bulkyAnswer(ctx)
			return fresh(ctx)
		})
		borrower := r.borrows(func(ctx context.Context, p dsm.Pointer) error {
			r.bulkyAnswer(ctx)
			r.reads(ctx, p, "contents")
			return nil
		})
		by := func(ctx context.Context, m *dsm.Client, n *rpc.Node) error {
			p, err := r.getWhole(ctx, n, "Giver", dsm.Pointer{})
			if err != nil {
				return err
			}
			r.own(ctx, m, p)
			if _, err := r.getWhole(ctx, n, "Borrower", p); err != nil {
				return err
			}
			r.own(ctx, m, p)
			return m.Free(ctx, p)
		}
		r.call(func(ctx context.Context, _ *dsm.Pointer) error { return by(ctx, rpc.Memory(ctx), r.server) })
		r.direct()
		if err := by(r.Context(), r.client.Memory(), r.client); err != nil {
			r.Error(err)
		}
		for _, n := range []*rpc.Node{giver, borrower} {
			if s := n.Stats(); s.Accepted != 2 || s.LargeMessages != 2 || s.Parts == 0 {
				r.Errorf("%+v: want two direct calls with large answers", s)
			}
		}
		r.regions(0)
	})
}

// TestDirectResults_LargeCalleeDies: the callee's program, the Gatekeeper, or both die while the caller fetches an
// answer that hands a region over. The caller gets the rest, and the callee does not run again.
func TestDirectResults_LargeCalleeDies(t *testing.T) {
	for _, dies := range []struct{ callee, gatekeeper bool }{{true, false}, {false, true}, {true, true}} {
		withSmallPackets(t, func(r *shelf) {
			r.handle = func(ctx context.Context, _ *dsm.Pointer) error {
				r.bulkyAnswer(ctx)
				return nil
			}
			caller := r.Host("c1")
			caller.Impair(wire.Impairment{}, wire.Impairment{Loss: 0.6})
			type got struct {
				dsm.Pointer
				error
			}
			done := make(chan got, 1)
			go func() {
				p, err := r.getWhole(r.Context(), r.client, "Shelf", dsm.Pointer{})
				done <- got{p, err}
			}()
			for i := 0; r.server.Stats().Parts == 0 && i < 10000; i++ {
				<-time.After(time.Millisecond) // virtual
			}
			if dies.callee {
				if err := r.KillSoon("s1", "app/p/1"); err != nil {
					r.Fatal(err)
				}
				<-r.up
			}
			if dies.gatekeeper {
				r.CrashGatekeeper()
				if err := r.RestartGatekeeper(r.Context()); err != nil {
					r.Fatal(err)
				}
			}
			caller.Impair(wire.Impairment{}, wire.Impairment{})
			g := <-done
			if g.error != nil || r.runs.Load() != 1 {
				r.Errorf("%+v: %v after %d runs", dies, g.error, r.runs.Load())
			}
			r.own(r.Context(), r.client.Memory(), g.Pointer)
			if s := r.server.Stats(); s.Parts == 0 {
				r.Errorf("%+v: %+v: want a large direct answer", dies, s)
			}
			r.regions(1)
		})
	}
}

// TestDirectLoan_LargeRunsAgain: the callee's program dies when a large call that lends memory has begun. The next
// incarnation has the call in its ledger, runs it again, and knows the caller's copies for the same call.
func TestDirectLoan_LargeRunsAgain(t *testing.T) {
	withSmallPackets(t, func(r *shelf) {
		caller := r.Host("c1")
		r.handle = func(ctx context.Context, _ *dsm.Pointer) error {
			r.wholly(ctx)
			if r.runs.Load() == 1 {
				return r.kill(ctx)
			}
			caller.Impair(wire.Impairment{}, wire.Impairment{Loss: 1}) // the answer is lost
			return nil
		}
		p, err := r.client.Memory().Alloc(r.Context(), 64)
		if err != nil {
			r.Fatal(err)
		}
		done := make(chan error, 1)
		go func() {
			_, err := arrays.NewArraysClient(r.client.Client("Shelf", rpc.WithPolicy(rpc.PolicyRecover))).EchoRef(bulky(r.Context()), rpc.GlobalPointer(p), 8)
			done <- err
		}()
		<-r.up
		<-time.After(time.Second) // virtual
		caller.Impair(wire.Impairment{}, wire.Impairment{})
		if err := <-done; err != nil || r.runs.Load() != 2 {
			r.Errorf("%v after %d runs", err, r.runs.Load())
		}
		if s := r.server.Stats(); s.AnsweredFromLedger == 0 {
			r.Errorf("%+v: want an answer that was asked for again", s)
		}
	})
}
