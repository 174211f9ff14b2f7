package simrack_test

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/apache/thrift/lib/go/thrift"

	"github.com/bifrost-rack/bifrost/dsm"
	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
	"github.com/bifrost-rack/bifrost/examples/arrays/gen-go/arrays"
	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/internal/join"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
	"github.com/bifrost-rack/bifrost/internal/wire"
	"github.com/bifrost-rack/bifrost/p4switch/shared/frame"
	"github.com/bifrost-rack/bifrost/rpc"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// unheardOf runs a rack in which a node exports Giver and dies for good when its first answer with a region has passed the switch. The answer is lost. The node
// and the client come back to each other's reach after a while, and the client's call fails. f begins the call.
func unheardOf(t *testing.T, f func(r *shelf, get func(rpc.Policy) <-chan error)) {
	t.Helper()
	var callee atomic.Pointer[netip.Addr]
	var once sync.Once
	var answered chan struct{}
	of := &shelf{frame: func(r *shelf, w wire.Frame) {
		u, err := frame.ParseUDP6(w.Data)
		at := callee.Load()
		if err != nil || !w.ToSwitch || at == nil {
			return
		}
		if m, err := rpcpacket.Parse(u.Payload); err == nil && u.Src.Addr() == *at && m.Type == rpcpacket.Reply && len(m.Lists) > 0 {
			once.Do(func() {
				r.Host("c1").Impair(wire.Impairment{}, wire.Impairment{Loss: 1})
				close(answered)
			})
		}
	}}
	withShelves(t, of, mirroredThesis(), func(r *shelf) {
		answered = make(chan struct{})
		n := r.join("s2", "giver")
		if err := n.Export(r.Context(), "Giver", arrays.NewArraysProcessor(giver{handle: fresh})); err != nil {
			t.Fatal(err)
		}
		at := n.Address()
		callee.Store(&at)
		f(r, func(policy rpc.Policy) <-chan error {
			done := make(chan error, 1)
			go func() {
				ctx, cancel := context.WithTimeout(r.Context(), 5*time.Minute) // virtual
				defer cancel()
				_, err := getBy(ctx, r.client, policy)
				done <- err
			}()
			<-answered
			r.Session(at).Crash("for good")
			<-time.After(20 * time.Second) // virtual
			r.Host("c1").Impair(wire.Impairment{}, wire.Impairment{})
			return done
		})
	})
}

// TestUnheardResults: a node dies for good when its answer has passed the switch, and the answer is lost. The result is its caller's, who does not
// know it: it is freed. What the caller knows stays, also what it gets and hands over meanwhile.
func TestUnheardResults(t *testing.T) {
	for _, policy := range []rpc.Policy{rpc.PolicyRecover, rpc.PolicyNone} {
		t.Run(policy.String(), func(t *testing.T) {
			unheardOf(t, func(r *shelf, get func(rpc.Policy) <-chan error) {
				slow := make(chan struct{})
				r.borrows(func(ctx context.Context, p dsm.Pointer) error { // a call that is out all the time
					<-slow
					return nil
				})
				kept, err := filled(r.Context(), r.client.Memory())
				if err != nil {
					t.Fatal(err)
				}
				lent := make(chan error, 1)
				go func() {
					_, err := arrays.NewArraysClient(r.client.Client("Borrower", rpc.WithPolicy(policy))).EchoRef(r.Context(), rpc.GlobalPointer(kept), 8)
					lent <- err
				}()
				if err := <-get(policy); fault.CodeOf(err) != fault.Unavailable {
					r.Errorf("the call: %v", err)
				}
				<-time.After(time.Minute) // virtual
				r.regions(2)              // it may be what the other call brings
				close(slow)
				if err := <-lent; err != nil {
					r.Error(err)
				}
				<-time.After(2 * time.Minute) // virtual
				r.regions(1)
				r.own(r.Context(), r.client.Memory(), kept)
			})
		})
	}
}

// listing is the session of a node that is told that it owns what a test says.
type listing struct {
	join.Session
	owns func() []netip.Addr
}

func (s listing) Holdings(ctx context.Context, now bool) (control.Holdings, error) {
	if !now {
		return s.Session.Holdings(ctx, now)
	}
	return control.Holdings{Regions: s.owns()}, nil
}

// lister joins such nodes.
type lister struct {
	join.Joiner
	owns func() []netip.Addr
}

func (j lister) Join(ctx context.Context, name string) (join.Session, error) {
	s, err := j.Joiner.Join(ctx, name)
	return listing{s, j.owns}, err
}

// TestUnheardResults_Known: a node that looks for results of which it has not heard frees nothing that it knows: what it owns, what its answers and one-ways
// hand over, and what calls bring that were out when it was told what it owns.
func TestUnheardResults_Known(t *testing.T) {
	var mu sync.Mutex
	var node netip.Addr
	freed := map[dsm.Pointer]bool{}
	of := &shelf{frame: func(_ *shelf, w wire.Frame) {
		u, err := frame.ParseUDP6(w.Data)
		if err != nil || !w.ToSwitch {
			return
		}
		mu.Lock()
		defer mu.Unlock()
		if to := dsmpacket.FromAddr(u.Dst.Addr()); u.Dst.Port() == rackaddr.PortDSM && to.Op() == dsmpacket.OpFree && u.Src.Addr() == node {
			freed[to.Base()] = true
		}
	}}
	withShelves(t, of, mirroredThesis(), func(r *shelf) {
		var listed []dsm.Pointer
		asked := make(chan struct{}, 1)
		owns := func() (all []netip.Addr) {
			for _, p := range listed {
				all = append(all, p.Addr())
			}
			asked <- struct{}{}
			return all
		}
		j, err := r.Joiner("s2")
		if err != nil {
			t.Fatal(err)
		}
		n, err := rpc.Join(join.NewContext(r.Context(), lister{j, owns}), rpc.WithName("looks"))
		if err != nil {
			t.Fatal(err)
		}
		region := func(of *rpc.Node) dsm.Pointer {
			p, err := filled(r.Context(), of.Memory())
			if err != nil {
				t.Fatal(err)
			}
			return p
		}
		gives := func(n *rpc.Node, name string, handle func(context.Context) (dsm.Pointer, error)) {
			if err := n.Export(r.Context(), name, arrays.NewArraysProcessor(giver{handle: handle})); err != nil {
				t.Fatal(err)
			}
		}
		other := r.join("s1", "other")
		own, handed, brought, unknown := region(n), region(n), region(other), region(r.client)
		listed = append(listed, own, handed, brought, unknown)
		gives(n, "Giver", func(ctx context.Context) (dsm.Pointer, error) { return filled(ctx, n.Memory()) })
		given, err := getBy(r.Context(), r.client, rpc.PolicyNone)
		if err != nil {
			t.Fatal(err)
		}
		listed = append(listed, given) // the answer is kept
		begun, ends := make(chan struct{}), make(chan struct{})
		gives(other, "Slow", func(context.Context) (dsm.Pointer, error) {
			close(begun)
			<-ends
			return brought, nil
		})
		gives(r.join("s1", "fails"), "Fails", func(context.Context) (dsm.Pointer, error) {
			return dsm.Pointer{}, fault.New(fault.Unavailable, "test", "not now")
		})
		r.borrows(func(context.Context, dsm.Pointer) error { return nil })
		none := func(service string, args, result thrift.TStruct) error {
			_, err := n.Client(service, rpc.WithPolicy(rpc.PolicyNone)).Call(r.Context(), "echoRef", args, result)
			return err
		}
		slow := make(chan error, 1)
		go func() { slow <- none("Slow", &arrays.ArraysEchoRefArgs{}, &arrays.ArraysEchoRefResult{}) }()
		<-begun
		if err := none("Borrower", &arrays.ArraysEchoRefArgs{}, &arrays.ArraysEchoRefResult{}); err != nil { // now it is known who serves it
			t.Error(err)
		}
		r.Host("c1").Impair(wire.Impairment{}, wire.Impairment{Loss: 1})
		if err := none("Borrower", &arrays.ArraysEchoRefArgs{Data: rpc.GlobalPointer(handed)}, nil); err != nil {
			t.Error(err)
		}
		mu.Lock()
		node = n.Address()
		mu.Unlock()
		if err := none("Fails", &arrays.ArraysEchoRefArgs{}, &arrays.ArraysEchoRefResult{}); fault.CodeOf(err) != fault.Unavailable {
			t.Errorf("a call that makes it look: %v", err)
		}
		<-asked
		<-time.After(5 * time.Second) // virtual
		frees := func(want ...dsm.Pointer) {
			t.Helper()
			mu.Lock()
			defer mu.Unlock()
			all := slices.DeleteFunc(slices.Clone(listed), func(p dsm.Pointer) bool { return !freed[p] })
			if !slices.Equal(all, want) {
				t.Errorf("the node frees %v, want %v of %v", all, want, listed)
			}
		}
		frees()
		r.Host("c1").Impair(wire.Impairment{}, wire.Impairment{})
		close(ends)
		if err := <-slow; err != nil {
			t.Error(err)
		}
		<-time.After(5 * time.Second) // virtual
		frees(unknown)
		r.own(r.Context(), n.Memory(), brought)
		r.own(r.Context(), n.Memory(), own)
	})
}

// unreadable is a processor whose answers have a region, and break off behind it.
type unreadable struct {
	thrift.TProcessor
	handle func(ctx context.Context) (dsm.Pointer, error)
}

func (u unreadable) Process(ctx context.Context, in, out thrift.TProtocol) (bool, thrift.TException) {
	name, _, _, err := in.ReadMessageBegin(ctx)
	if err == nil {
		err = in.Skip(ctx, thrift.STRUCT)
	}
	p, wrong := u.handle(ctx)
	err = errors.Join(err, wrong, in.ReadMessageEnd(ctx), out.WriteMessageBegin(ctx, name, thrift.REPLY, 0), out.WriteStructBegin(ctx, ""),
		out.WriteFieldBegin(ctx, "success", thrift.STRUCT, 0), rpc.GlobalPointer(p).Write(ctx, out), out.WriteFieldEnd(ctx), out.WriteMessageEnd(ctx))
	return err == nil, thrift.WrapTException(err)
}

// TestUnreadableResults: an answer with a region cannot be read, or is too long to be taken. The region is its caller's, whose program does not get it: it is freed.
func TestUnreadableResults(t *testing.T) {
	withSmallPackets(t, func(r *shelf) {
		r.gives(func(ctx context.Context) (dsm.Pointer, error) {
			r.bulkyAnswer(ctx)
			return fresh(ctx)
		})
		n := r.join("s2", "unreadable")
		if err := n.Export(r.Context(), "Unreadable", unreadable{arrays.NewArraysProcessor(nil), fresh}); err != nil {
			t.Fatal(err)
		}
		j, err := r.Joiner("c1")
		if err != nil {
			t.Fatal(err)
		}
		narrow, err := rpc.Join(join.NewContext(r.Context(), j), rpc.WithName("narrow"), rpc.WithMaxMessage(3000))
		if err != nil {
			t.Fatal(err)
		}
		for _, policy := range []rpc.Policy{rpc.PolicyRecover, rpc.PolicyNone} {
			if _, err := getBy(r.Context(), narrow, policy); fault.CodeOf(err) != fault.BadRequest {
				t.Errorf("%s: an answer that is too long: %v", policy, err)
			}
			<-time.After(10 * time.Second) // virtual
			r.regions(0)
			if _, err := arrays.NewArraysClient(r.client.Client("Unreadable", rpc.WithPolicy(policy))).EchoRef(r.Context(), rpc.GlobalPointer(dsm.Pointer{}), 8); fault.CodeOf(err) != fault.BadRequest {
				t.Errorf("%s: an answer that cannot be read: %v", policy, err)
			}
			<-time.After(10 * time.Second) // virtual
			r.regions(0)
		}
	})
}

// TestUnkeptResults: a callee has no room to keep an answer with a region which has not passed the switch. The region is freed when the call is asked about again.
func TestUnkeptResults(t *testing.T) {
	withShelf(t, false, func(r *shelf) {
		j, err := r.Joiner("s2")
		if err != nil {
			t.Fatal(err)
		}
		n, err := rpc.Join(join.NewContext(r.Context(), j), rpc.WithName("giver"), rpc.WithLimits(rpc.Limits{ReplyBytes: 1}))
		if err != nil {
			t.Fatal(err)
		}
		var runs atomic.Int64
		begun, ends := make(chan struct{}), make(chan struct{})
		if err := n.Export(r.Context(), "Giver", arrays.NewArraysProcessor(giver{handle: func(ctx context.Context) (dsm.Pointer, error) {
			if runs.Add(1) == 1 { // whose answer takes the place of the other one's
				close(begun)
				<-ends
				return dsm.Pointer{}, nil
			}
			p, err := fresh(ctx)
			r.Host("s2").Impair(wire.Impairment{Loss: 1}, wire.Impairment{})
			return p, err
		}})); err != nil {
			t.Fatal(err)
		}
		first := make(chan error, 1)
		go func() {
			_, err := getBy(r.Context(), r.client, rpc.PolicyNone)
			first <- err
		}()
		<-begun
		second := make(chan error, 1)
		go func() {
			_, err := getBy(r.Context(), r.client, rpc.PolicyNone)
			second <- err
		}()
		<-time.After(100 * time.Millisecond) // virtual
		close(ends)
		<-time.After(100 * time.Millisecond) // virtual
		r.Host("s2").Impair(wire.Impairment{}, wire.Impairment{})
		if err := <-first; err != nil {
			r.Error(err)
		}
		if err := <-second; fault.CodeOf(err) != fault.Unavailable {
			r.Errorf("the answer is kept: %v", err)
		}
		<-time.After(10 * time.Second) // virtual
		r.regions(0)
	})
}
