package simrack_test

import (
	"context"
	"log/slog"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/bifrost-rack/bifrost/dsm"
	"github.com/bifrost-rack/bifrost/examples/arrays/gen-go/arrays"
	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/join"
	"github.com/bifrost-rack/bifrost/internal/wire"
	"github.com/bifrost-rack/bifrost/rpc"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// accountant is a joiner whose node tells its test what rights it has, in the place of the Gatekeeper.
type accountant struct {
	join.Joiner
	give  func(rebuild uint64) // by the node's present incarnation
	pages chan control.AccountPage
}

func (k *accountant) Join(ctx context.Context, name string) (join.Session, error) {
	s, err := k.Joiner.Join(ctx, name)
	return telling{s, k}, err
}

// account asks the node.
func (k *accountant) account() (a control.Account) {
	k.pages = make(chan control.AccountPage)
	k.give(1)
	for {
		p := <-k.pages
		if a.Add(&p.Account); p.Last {
			return a
		}
	}
}

// telling is the session of an accountant's node.
type telling struct {
	join.Session
	to *accountant
}

func (s telling) OnAccount(f func(rebuild uint64)) { s.to.give = f }

func (s telling) Account(_ context.Context, p control.AccountPage) error {
	s.to.pages <- p
	return nil
}

// joinTelling joins a program that nobody has deployed, and that tells the test of its rights.
func (r *shelf) joinTelling(blade, name string) (*rpc.Node, *accountant) {
	r.Helper()
	j, err := r.Joiner(blade)
	if err != nil {
		r.Fatal(err)
	}
	k := &accountant{Joiner: j}
	n, err := rpc.Join(join.NewContext(r.Context(), k), rpc.WithName(name), rpc.WithLogger(slog.New(slog.DiscardHandler)))
	if err != nil {
		r.Fatal(err)
	}
	return n, k
}

// gave reports whether an account says that a region was given to a node, and is not known to have arrived.
func gave(a *control.Account, p dsm.Pointer, to netip.Addr) bool {
	return slices.Contains(a.Given, control.GivenRegion{Region: rpcpacket.RegionOf(p), To: to})
}

// TestAccount_Callee: a node tells, for the switch's registers, which calls of others it knows, what its answers have handed over, and which of its
// call slots it has used, whatever the policy.
func TestAccount_Callee(t *testing.T) {
	for _, policy := range []rpc.Policy{rpc.PolicyRecover, rpc.PolicyNone} {
		withShelf(t, false, func(r *shelf) {
			n, told := r.joinTelling("s2", "giver")
			var during control.Account
			r.handle = func(context.Context, *dsm.Pointer) error { return nil }
			handle := func(ctx context.Context) (dsm.Pointer, error) {
				if _, err := arrays.NewArraysClient(n.Client("Shelf", rpc.WithPolicy(policy))).Echo(ctx, nil); err != nil {
					return dsm.Pointer{}, err
				}
				during = told.account()
				return fresh(ctx)
			}
			if err := n.Export(r.Context(), "Giver", arrays.NewArraysProcessor(giver{handle: handle})); err != nil {
				t.Fatal(err)
			}
			before := told.account()
			p, err := getBy(r.Context(), r.client, policy)
			if err != nil {
				t.Fatal(err)
			}
			after, client := told.account(), r.client.Address()
			taken := func(a *control.Account, over bool) bool {
				return slices.ContainsFunc(a.Taken, func(k control.TakenCall) bool { return k.Caller == client && k.Over == over })
			}
			switch {
			case taken(&before, true), taken(&before, false), len(before.Last) > 0, len(before.Given) > 0:
				t.Errorf("policy %s: before the call: %+v", policy, before)
			case !taken(&during, false), taken(&during, true), len(during.Last) != 1, len(during.Given) > 0:
				t.Errorf("policy %s: during the call: %+v", policy, during)
			case !taken(&after, true), taken(&after, false), !slices.Equal(after.Last, during.Last), !gave(&after, p, client):
				t.Errorf("policy %s: after the call: %+v", policy, after)
			}
		})
	}
}

// TestAccount_Oneways: a node tells what the one-ways of its executions hand over, until it knows that they have arrived.
func TestAccount_Oneways(t *testing.T) {
	withShelves(t, &shelf{tells: new(accountant)}, mirroredThesis(), func(r *shelf) {
		n := r.join("s2", "taker")
		taken := make(chan struct{})
		processor := arrays.NewArraysProcessor(borrower{handle: func(context.Context, dsm.Pointer) error { close(taken); return nil }})
		if err := n.Export(r.Context(), "Taker", processor); err != nil {
			t.Fatal(err)
		}
		var p dsm.Pointer
		r.call(func(ctx context.Context, _ *dsm.Pointer) (err error) {
			if p, err = fresh(ctx); err != nil {
				return err
			}
			if err := hand(ctx, r.server, "Taker", p); err != nil { // it leaves when this has returned
				return err
			}
			r.Host("s2").Impair(wire.Impairment{}, wire.Impairment{Loss: 1})
			return nil
		})
		if a := r.tells.account(); !gave(&a, p, n.Address()) || slices.Contains(a.Regions, rpcpacket.RegionOf(p)) {
			t.Errorf("a one-way is under way, and the account is %+v", a)
		}
		r.Host("s2").Impair(wire.Impairment{}, wire.Impairment{})
		<-taken
		<-time.After(time.Minute) // virtual
		if a := r.tells.account(); len(a.Given) > 0 {
			t.Errorf("the one-way has arrived, and the account is %+v", a)
		}
	})
}

// TestAccount_Asked: a node tells which calls of its former incarnations it asks about, until it knows what has become of them.
func TestAccount_Asked(t *testing.T) {
	withShelves(t, &shelf{tells: new(accountant)}, mirroredThesis(), func(r *shelf) {
		var former, asks control.Account
		r.gives(func(ctx context.Context) (dsm.Pointer, error) {
			former = r.tells.account()
			if err := r.KillSoon("s1", "app/p/1"); err != nil {
				r.Error(err)
			}
			<-r.up
			asks = r.tells.account()
			return fresh(ctx)
		})
		r.call(func(ctx context.Context, _ *dsm.Pointer) error {
			_, err := get(ctx, r.server)
			return err
		})
		if len(former.Calls) != 1 || len(former.Asked) > 0 || !slices.Equal(asks.Asked, []control.Attempt{former.Calls[0].Attempt}) || len(asks.Calls) > 0 {
			t.Errorf("the account was %+v, and of the next incarnation %+v", former, asks)
		}
		if a := r.tells.account(); len(a.Asked) > 0 {
			t.Errorf("the answer has come, and the account is %+v", a)
		}
	})
}

// TestAccount_Executions: what an execution gets is its node's, also if it comes by a call of policy none.
func TestAccount_Executions(t *testing.T) {
	withShelves(t, &shelf{tells: new(accountant)}, mirroredThesis(), func(r *shelf) {
		r.gives(fresh)
		for _, policy := range []rpc.Policy{rpc.PolicyRecover, rpc.PolicyNone} {
			r.call(func(ctx context.Context, _ *dsm.Pointer) error {
				p, err := getBy(ctx, r.server, policy)
				if err != nil {
					return err
				}
				if a := r.tells.account(); !slices.Contains(a.Regions, rpcpacket.RegionOf(p)) {
					t.Errorf("policy %s: the execution has got %s, and the account is %+v", policy, p, a)
				}
				return rpc.Memory(ctx).Free(ctx, p)
			})
		}
	})
}
