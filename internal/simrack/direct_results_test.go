package simrack_test

import (
	"bytes"
	"context"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/bifrost-rack/bifrost/dsm"
	"github.com/bifrost-rack/bifrost/dsm/dsmclient"
	"github.com/bifrost-rack/bifrost/examples/arrays/gen-go/arrays"
	"github.com/bifrost-rack/bifrost/examples/arrays/service"
	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
	"github.com/bifrost-rack/bifrost/internal/simrack"
	"github.com/bifrost-rack/bifrost/internal/wire"
	"github.com/bifrost-rack/bifrost/p4switch/shared/frame"
	"github.com/bifrost-rack/bifrost/rpc"
	"github.com/bifrost-rack/bifrost/rpc/idl/bifrost"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// giver is a service that returns memory, and is lent none.
type giver struct {
	service.Arrays
	handle func(ctx context.Context) (dsm.Pointer, error)
}

func (g giver) EchoRef(ctx context.Context, _ *bifrost.GlobalPointer, _ int64) (*bifrost.GlobalPointer, error) {
	p, err := g.handle(ctx)
	return rpc.GlobalPointer(p), err
}

// gives has a node of its own export a giver as Giver.
func (r *shelf) gives(handle func(ctx context.Context) (dsm.Pointer, error)) *rpc.Node {
	r.Helper()
	n, err := r.Join(r.Context(), "c1", "giver")
	if err == nil {
		err = n.Export(r.Context(), "Giver", arrays.NewArraysProcessor(giver{handle: handle}))
	}
	if err != nil {
		r.Fatal(err)
	}
	return n
}

// fresh is a new region of an execution's, with contents.
func fresh(ctx context.Context) (dsm.Pointer, error) { return filled(ctx, rpc.Memory(ctx)) }

// filled allocates a region with contents.
func filled(ctx context.Context, m *dsm.Client) (dsm.Pointer, error) {
	return stored(ctx, m, []byte("contents"))
}

// stored allocates a region that begins with b.
func stored(ctx context.Context, m *dsm.Client, b []byte) (dsm.Pointer, error) {
	p, err := m.Alloc(ctx, max(64, uint64(len(b))))
	if err == nil {
		_, err = m.Write(ctx, p, b)
	}
	return p, err
}

// get calls Giver.
func get(ctx context.Context, n *rpc.Node) (dsm.Pointer, error) {
	return getBy(ctx, n, rpc.PolicyRecover)
}

// getBy calls Giver by a policy.
func getBy(ctx context.Context, n *rpc.Node, policy rpc.Policy) (dsm.Pointer, error) {
	p, err := arrays.NewArraysClient(n.Client("Giver", rpc.WithPolicy(policy))).EchoRef(ctx, rpc.GlobalPointer(dsm.Pointer{}), 8)
	if err != nil {
		return dsm.Pointer{}, err
	}
	return rpc.PointerOf(p)
}

// claims has a node's account say that the node owns a region, which is somebody else's.
func claims(n *rpc.Node, p dsm.Pointer) { (*dsmclient.Client)(n.Memory()).Received(p) }

// own checks that whoever has a region can read and write it.
func (r *shelf) own(ctx context.Context, m *dsm.Client, p dsm.Pointer) {
	r.Helper()
	b := make([]byte, 8)
	if _, err := m.Read(ctx, p, b); err != nil || !bytes.Equal(b, []byte("contents")) {
		r.Errorf("the caller reads %q, %v", b, err)
	}
	if _, err := m.Write(ctx, p, b); err != nil {
		r.Errorf("the caller writes: %v", err)
	}
}

// TestDirectResults: an answer with a pointer goes direct, to an execution and to a plain client. The
// region is the caller's. One that an execution has not freed goes at its end.
func TestDirectResults(t *testing.T) {
	withShelf(t, false, func(r *shelf) {
		n := r.gives(fresh)
		r.call(func(ctx context.Context, _ *dsm.Pointer) error {
			p, err := get(ctx, r.server)
			r.own(ctx, rpc.Memory(ctx), p)
			return err
		})
		r.call(func(ctx context.Context, _ *dsm.Pointer) error {
			p, err := get(ctx, r.server)
			if err != nil {
				return err
			}
			r.own(ctx, rpc.Memory(ctx), p)
			return rpc.Memory(ctx).Free(ctx, p)
		})
		r.direct()
		r.regions(0)
		p, err := get(r.Context(), r.client)
		if err != nil {
			r.Fatal(err)
		}
		r.own(r.Context(), r.client.Memory(), p)
		if err := r.client.Memory().Free(r.Context(), p); err != nil {
			r.Error(err)
		}
		r.regions(0)
		if s := n.Stats(); s.Accepted != 3 {
			r.Errorf("%+v: want three direct calls", s)
		}
	})
}

// TestDirectResults_CallerDies: the caller's program dies when it has got a region, and written there. It
// runs again, and gets the same one, as the callee has left it.
func TestDirectResults_CallerDies(t *testing.T) {
	withShelf(t, false, func(r *shelf) {
		n := r.gives(fresh)
		var got [2]dsm.Pointer
		r.call(func(ctx context.Context, _ *dsm.Pointer) error {
			run := r.runs.Load() - 1
			p, err := get(ctx, r.server)
			if err != nil {
				return err
			}
			got[run] = p
			r.own(ctx, rpc.Memory(ctx), p)
			if _, err := rpc.Memory(ctx).Write(ctx, p, []byte("changed!")); err != nil {
				return err
			}
			if run == 0 {
				return r.kill(ctx)
			}
			return nil
		})
		if got[0] != got[1] || got[0].IsNil() {
			r.Errorf("the runs got %v", got)
		}
		if s := n.Stats(); s.Accepted != 1 || s.AnsweredFromLedger == 0 {
			r.Errorf("%+v: want one direct call, and its answer again", s)
		}
		r.direct()
		r.regions(0)
	})
}

// TestDirectResults_CallerDiesBefore: the caller's program dies before there is an answer. Its next run
// gets the answer, which is of a call of the former one.
func TestDirectResults_CallerDiesBefore(t *testing.T) {
	withShelf(t, false, func(r *shelf) {
		n := r.gives(func(ctx context.Context) (dsm.Pointer, error) {
			if err := r.KillSoon("s1", "app/p/1"); err != nil {
				r.Error(err)
			}
			<-r.up
			<-time.After(time.Second) // virtual
			return fresh(ctx)
		})
		r.call(func(ctx context.Context, _ *dsm.Pointer) error {
			p, err := get(ctx, r.server)
			if err != nil {
				return err
			}
			r.own(ctx, rpc.Memory(ctx), p)
			return nil
		})
		if s := n.Stats(); s.Accepted != 1 || r.runs.Load() != 2 {
			r.Errorf("%d runs, %+v: want two, and one direct call", r.runs.Load(), s)
		}
		r.direct()
		r.regions(0)
	})
}

// TestDirectResults_GivenUp: a caller gives a call up, whose answer has a region. The region goes.
func TestDirectResults_GivenUp(t *testing.T) {
	withShelf(t, false, func(r *shelf) {
		late := make(chan struct{})
		n := r.gives(func(ctx context.Context) (dsm.Pointer, error) {
			p, err := fresh(ctx)
			<-late
			return p, err
		})
		r.call(func(ctx context.Context, _ *dsm.Pointer) error {
			soon, cancel := context.WithTimeout(ctx, time.Second) // virtual
			defer cancel()
			if _, err := get(soon, r.server); err == nil {
				t.Error("the call was not given up")
			}
			close(late)
			<-time.After(time.Second) // virtual: the answer has come, and moved the region
			return nil
		})
		r.direct()
		r.regions(0)
		if s := n.Stats(); s.Accepted != 1 {
			r.Errorf("%+v: want one direct call", s)
		}
	})
}

// TestDirectResults_NotOurs: a service returns a region that it does not control, and the caller is told
// so.
func TestDirectResults_NotOurs(t *testing.T) {
	withShelf(t, false, func(r *shelf) {
		p, err := r.client.Memory().Alloc(r.Context(), 64)
		if err != nil {
			t.Fatal(err)
		}
		r.gives(func(context.Context) (dsm.Pointer, error) { return p, nil })
		r.call(func(ctx context.Context, _ *dsm.Pointer) error {
			if _, err := get(ctx, r.server); fault.CodeOf(err) != fault.PermissionDenied {
				t.Errorf("a region of somebody else: %v", err)
			}
			return nil
		})
		r.direct()
		r.regions(1)
	})
}

// TestDirectResults_OnesOwn: a service answers with a region that is its caller's. The caller does not take it for a result, which it would free, also if
// the service has refused the call before.
func TestDirectResults_OnesOwn(t *testing.T) {
	for _, refuses := range []bool{false, true} {
		withShelf(t, false, func(r *shelf) {
			var p dsm.Pointer
			var giver *rpc.Node
			giver = r.gives(func(context.Context) (dsm.Pointer, error) {
				m := *r.seen.Load()
				if refuses {
					m.Type, m.Code, m.Timeout, m.CalleeIncarnation = rpcpacket.Exception, rpc.Unavailable, 0, incarnationOf(t, r.Rack, giver.Address())
					m.Flags = rpcpacket.FlagUnbegun.WithPolicy(rpc.PolicyRecover)
					m.Lists, m.Trailer, m.Payload = nil, nil, []byte("not here")
					r.Host("c1").SendRaw(netip.AddrPortFrom(giver.Address(), rackaddr.PortRPC), netip.AddrPortFrom(r.server.Address(), rackaddr.PortRPC), m.Append(nil))
					<-time.After(100 * time.Millisecond) // virtual: the caller has made the call again
				}
				claims(giver, p)
				return p, nil
			})
			r.call(func(ctx context.Context, _ *dsm.Pointer) (err error) {
				if p, err = fresh(ctx); err != nil {
					return err
				}
				before := r.server.Stats()
				if _, err := get(ctx, r.server); rpc.CodeOf(err) != rpc.PermissionDenied {
					t.Errorf("refused before %v: the call ends with %v", refuses, err)
				}
				if calls := r.server.Stats().Calls - before.Calls; calls == 2 != refuses {
					t.Errorf("refused %v: the call was made %d times", refuses, calls)
				}
				r.own(ctx, rpc.Memory(ctx), p)
				return nil
			})
		})
	}
}

// TestDirectResults_NotOursYet: a service returns a region that is another node's, and nothing reaches the service for a while. Meanwhile the
// other node hands the region over to the service's node. The caller is told all the same that the region was not the service's to return, and the
// region stays with whom it was handed to: a copy of an answer must not hand over what has come since.
func TestDirectResults_NotOursYet(t *testing.T) {
	var callee atomic.Pointer[netip.Addr]
	var answered, handed chan struct{} // of the bubble
	var answer, hands sync.Once
	of := &shelf{frame: func(r *shelf, f wire.Frame) {
		u, err := frame.ParseUDP6(f.Data)
		at := callee.Load()
		if err != nil || !f.ToSwitch || at == nil {
			return
		}
		switch m, err := rpcpacket.Parse(u.Payload); {
		case err != nil:
		case u.Src.Addr() == *at && (m.Type == rpcpacket.Reply || m.Type == rpcpacket.Exception):
			answer.Do(func() {
				r.Host("s2").Impair(wire.Impairment{}, wire.Impairment{Loss: 1})
				close(answered)
			})
		case u.Dst.Addr() == *at && m.Type == rpcpacket.Oneway:
			hands.Do(func() { close(handed) })
		}
	}}
	withShelves(t, of, mirroredThesis(), func(r *shelf) {
		var ptrs [2]dsm.Pointer
		for i := range ptrs {
			var err error
			if ptrs[i], err = filled(r.Context(), r.client.Memory()); err != nil {
				t.Fatal(err)
			}
		}
		first, p := ptrs[0], ptrs[1]
		n := r.join("s2", "both")
		taken := make(chan struct{}, len(ptrs))
		answered, handed = make(chan struct{}), make(chan struct{})
		for name, service := range map[string]arrays.Arrays{
			"Giver": giver{handle: func(context.Context) (dsm.Pointer, error) { return p, nil }},
			"Taker": borrower{handle: func(ctx context.Context, p dsm.Pointer) error {
				defer func() { taken <- struct{}{} }()
				r.own(ctx, rpc.Memory(ctx), p)
				return nil
			}},
		} {
			if err := n.Export(r.Context(), name, arrays.NewArraysProcessor(service)); err != nil {
				t.Fatal(err)
			}
		}
		if err := hand(r.Context(), r.client, "Taker", first); err != nil { // from then on the client knows who serves it
			t.Fatal(err)
		}
		<-taken
		at := n.Address()
		callee.Store(&at)
		called := make(chan struct{})
		go func() {
			defer close(called)
			r.call(func(ctx context.Context, _ *dsm.Pointer) error {
				if _, err := get(ctx, r.server); fault.CodeOf(err) != fault.PermissionDenied {
					t.Errorf("a region that was somebody else's: %v", err)
				}
				return nil
			})
		}()
		<-answered
		sent := make(chan error, 1)
		go func() { sent <- hand(r.Context(), r.client, "Taker", p) }()
		<-handed
		<-time.After(time.Millisecond) // virtual: it has passed the switch
		r.Host("s2").Impair(wire.Impairment{}, wire.Impairment{})
		if err := <-sent; err != nil {
			t.Error(err)
		}
		<-called
		<-taken
		r.regions(0)
	})
}

// TestDirectResults_NotOursAndAway: an answer names a region of somebody else, of which its node's account says that it is the node's, beside one of its
// own. So the switch refuses it: it hands nothing over. The own one goes when nobody asks for the answer any more, though memory cannot be reached just then.
func TestDirectResults_NotOursAndAway(t *testing.T) {
	var away atomic.Bool
	of := &shelf{frame: func(r *shelf, f wire.Frame) {
		u, err := frame.ParseUDP6(f.Data)
		if err != nil || f.ToSwitch || u.Dst.Port() != rackaddr.PortDirect {
			return
		}
		if m, err := rpcpacket.Parse(u.Payload); err == nil && m.Type == rpcpacket.Forget && !away.Swap(true) {
			go r.Host("m1").Impair(wire.Impairment{Loss: 1}, wire.Impairment{Loss: 1})
		}
	}}
	blades := slices.DeleteFunc(mirroredThesis(), func(b simrack.Blade) bool { return b.Name == "m2" })
	withShelves(t, of, blades, func(r *shelf) {
		other, err := r.client.Memory().Alloc(r.Context(), 64)
		if err != nil {
			t.Fatal(err)
		}
		n := r.join("s2", "many")
		processor := arrays.NewArraysProcessor(service.Arrays{})
		processor.AddToProcessorMap("many", manyFunction{func(ctx context.Context, _ []dsm.Pointer) ([]dsm.Pointer, error) {
			own, err := fresh(ctx)
			claims(n, other)
			return []dsm.Pointer{own, other}, err
		}})
		if err := n.Export(r.Context(), "Many", processor); err != nil {
			t.Fatal(err)
		}
		r.call(func(ctx context.Context, _ *dsm.Pointer) error {
			_, err := r.server.Client("Many", rpc.WithPolicy(rpc.PolicyRecover)).Call(ctx, "many", new(manyPointers), new(manyPointers))
			if fault.CodeOf(err) != fault.PermissionDenied {
				t.Errorf("a region of somebody else: %v", err)
			}
			return nil
		})
		<-time.After(10 * time.Second) // virtual: the callee has tried to free it
		if !away.Load() {
			t.Error("nobody has said that nobody asks for the answer")
		}
		r.Host("m1").Impair(wire.Impairment{}, wire.Impairment{})
		<-time.After(10 * time.Second) // virtual
		r.regions(1)
	})
}
