package simrack_test

import (
	"bytes"
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/bifrost-rack/bifrost/dsm"
	"github.com/bifrost-rack/bifrost/examples/arrays/gen-go/arrays"
	"github.com/bifrost-rack/bifrost/examples/arrays/service"
	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/rpc"
	"github.com/bifrost-rack/bifrost/rpc/idl/bifrost"
)

// adder is a service that is lent two regions, lends them on to another node of the service Last, and returns a new one.
type adder struct {
	service.Arrays
	n *rpc.Node
}

func (a *adder) AddRef(ctx context.Context, one *bifrost.GlobalPointer, _ int64, two *bifrost.GlobalPointer, _ int64) (*bifrost.GlobalPointer, error) {
	own, err := fresh(ctx)
	if err != nil {
		return nil, err
	}
	last := arrays.NewArraysClient(a.n.Client("Last"))
	for _, pair := range [][2]*bifrost.GlobalPointer{{one, two}, {two, rpc.GlobalPointer(own)}} {
		sum, err := last.AddRef(ctx, pair[0], 8, pair[1], 8)
		if err != nil {
			return nil, err
		}
		p, err := rpc.PointerOf(sum)
		if err == nil {
			err = rpc.Memory(ctx).Free(ctx, p)
		}
		if err != nil {
			return nil, err
		}
	}
	return rpc.GlobalPointer(own), nil
}

// passOn lends two new regions to Adder, hands one of them over to Borrower, and frees the other one, and what Adder has returned.
func passOn(ctx context.Context, m *dsm.Client, n *rpc.Node, policy rpc.Policy) error {
	one, err := filled(ctx, m)
	if err != nil {
		return err
	}
	two, err := filled(ctx, m)
	if err != nil {
		return err
	}
	sum, err := arrays.NewArraysClient(n.Client("Adder", rpc.WithPolicy(policy))).AddRef(ctx, rpc.GlobalPointer(one), 8, rpc.GlobalPointer(two), 8)
	if err != nil {
		return err
	}
	p, err := rpc.PointerOf(sum)
	if err != nil {
		return err
	}
	if err := m.Free(ctx, p); err != nil {
		return err
	}
	if err := m.Free(ctx, one); err != nil {
		return err
	}
	return hand(ctx, n, "Borrower", two)
}

// TestShadow: if nothing fails, the rights of docs/rights.md let all packets pass: those of calls that lend regions, lend on what they were
// lent, return regions or hand them over, and those of allocations, reads, writes and frees.
func TestShadow(t *testing.T) {
	withShelf(t, false, func(r *shelf) {
		a := &adder{n: r.join("c1", "adder")}
		last := r.join("s2", "last")
		for _, err := range []error{
			a.n.Export(r.Context(), "Adder", arrays.NewArraysProcessor(a)), last.Export(r.Context(), "Last", arrays.NewArraysProcessor(service.Arrays{})),
		} {
			if err != nil {
				t.Fatal(err)
			}
		}
		taken := make(chan struct{}, 3)
		r.borrows(func(ctx context.Context, p dsm.Pointer) error {
			defer func() { taken <- struct{}{} }()
			b := make([]byte, 8)
			if _, err := rpc.Memory(ctx).Read(ctx, p, b); err != nil || !bytes.Equal(b, []byte("contents")) {
				t.Errorf("the receiver reads %q, %v", b, err)
			}
			return rpc.Memory(ctx).Free(ctx, p)
		})
		for _, policy := range []rpc.Policy{rpc.PolicyRecover, rpc.PolicyNone} {
			r.call(func(ctx context.Context, _ *dsm.Pointer) error { return passOn(ctx, rpc.Memory(ctx), r.server, policy) })
		}
		if err := passOn(r.Context(), r.client.Memory(), r.client, rpc.PolicyNone); err != nil {
			t.Error(err)
		}
		for range cap(taken) {
			<-taken
		}
		<-time.After(time.Second) // virtual: until the last one is acknowledged
		all := append(r.shadow.Objections(), r.shadow.Left()...)
		// Who forgets a call frees what it has returned: the switch denies that of what the caller has got.
		all = slices.DeleteFunc(all, func(s string) bool { return strings.HasPrefix(s, "FREE ") })
		if len(all) > 0 {
			t.Errorf("%d objections: %q", len(all), all)
		}
		counts := r.shadow.Counts()
		for _, line := range []string{"alloc", "allocated", "write", "read-own", "read-by-slot", "call-opens", "oneway-opens", "answer-closes"} {
			if counts[line] == 0 {
				t.Errorf("no packet has met line %q: %v", line, counts)
			}
		}
	})
}

// TestShadow_Objects: what the rack denies, the rights deny, too.
func TestShadow_Objects(t *testing.T) {
	withShelf(t, false, func(r *shelf) {
		n := r.borrows(func(ctx context.Context, p dsm.Pointer) error {
			if _, err := rpc.Memory(ctx).Write(ctx, p, make([]byte, 8)); fault.CodeOf(err) != fault.PermissionDenied {
				t.Errorf("the callee writes: %v", err)
			}
			return nil
		})
		r.call(func(ctx context.Context, _ *dsm.Pointer) error {
			return lentOut(ctx, rpc.Memory(ctx), func(p dsm.Pointer) error { return lendTo(ctx, r.server, p) })
		})
		if s := n.Stats(); s.Lending != 1 {
			t.Errorf("%+v: want a call with a pointer", s)
		}
		if n := r.shadow.Counts()["write-denied"]; n != 1 || len(r.shadow.Objections()) != 1 {
			t.Errorf("%d writes are denied; objections %q", n, r.shadow.Objections())
		}
	})
}
