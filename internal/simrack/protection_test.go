package simrack_test

import (
	"context"
	"errors"
	"net/netip"
	"testing"
	"time"

	"github.com/apache/thrift/lib/go/thrift"

	"github.com/bifrost-rack/bifrost/dsm"
	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
	"github.com/bifrost-rack/bifrost/examples/arrays/gen-go/arrays"
	"github.com/bifrost-rack/bifrost/examples/arrays/service"
	"github.com/bifrost-rack/bifrost/internal/netio"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
	"github.com/bifrost-rack/bifrost/internal/simrack"
	"github.com/bifrost-rack/bifrost/internal/wire"
	"github.com/bifrost-rack/bifrost/rpc"
	"github.com/bifrost-rack/bifrost/rpc/idl/bifrost"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// trio is a rack with a caller on c1, a stranger on s1 and a callee on s2, whose
// handler a test can replace.
type trio struct {
	*simrack.Rack
	t                        *testing.T
	ctx                      context.Context
	caller, stranger, callee *rpc.Node
	handler                  handler
}

// handler is the Arrays service with another addRef and incrementRef.
type handler struct {
	service.Arrays
	addRef       func(ctx context.Context, a, b dsm.Pointer) (dsm.Pointer, error)
	incrementRef func(ctx context.Context, p dsm.Pointer) (dsm.Pointer, error)
}

func (h *handler) AddRef(ctx context.Context, a *bifrost.GlobalPointer, _ int64, b *bifrost.GlobalPointer, _ int64) (*bifrost.GlobalPointer, error) {
	pa, _ := rpc.PointerOf(a)
	pb, _ := rpc.PointerOf(b)
	p, err := h.addRef(ctx, pa, pb)
	return rpc.GlobalPointer(p), err
}

func (h *handler) IncrementRef(ctx context.Context, p *bifrost.GlobalPointer, _ int64, _ int8) (*bifrost.GlobalPointer, error) {
	ptr, _ := rpc.PointerOf(p)
	r, err := h.incrementRef(ctx, ptr)
	return rpc.GlobalPointer(r), err
}

func withTrio(t *testing.T, f func(r *trio)) {
	t.Helper()
	inVirtualTime(t, 1, wire.Impairment{}, func(t *testing.T, ctx context.Context, rack *simrack.Rack) {
		r := &trio{Rack: rack, t: t, ctx: ctx}
		r.caller, r.stranger, r.callee = r.join("c1"), r.join("s1"), r.join("s2")
		r.must(r.callee.Export(ctx, "Arrays", arrays.NewArraysProcessor(&r.handler)))
		f(r)
	})
}

func (r *trio) join(blade string) *rpc.Node {
	r.t.Helper()
	n, err := r.Join(r.ctx, blade, blade)
	r.must(err)
	return n
}

func (r *trio) must(err error) {
	r.t.Helper()
	if err != nil {
		r.t.Fatal(err)
	}
}

// expect fails the test unless err has the code.
func (r *trio) expect(what string, code rpc.Code, err error) {
	r.t.Helper()
	if rpc.CodeOf(err) != code {
		r.t.Errorf("%s: %v, want %v", what, err, code)
	}
}

func (r *trio) alloc(n *rpc.Node, size uint64) dsm.Pointer {
	r.t.Helper()
	p, err := n.Memory().Alloc(r.ctx, size)
	r.must(err)
	return p
}

func (r *trio) read(n *rpc.Node, p dsm.Pointer) error {
	_, err := n.Memory().Read(r.ctx, p, make([]byte, 8))
	return err
}

func (r *trio) write(n *rpc.Node, p dsm.Pointer) error {
	_, err := n.Memory().Write(r.ctx, p, []byte("eight by"))
	return err
}

// add calls addRef from the caller.
func (r *trio) add(a, b dsm.Pointer) (dsm.Pointer, error) {
	g, err := arrays.NewArraysClient(r.caller.Client("Arrays")).AddRef(r.ctx, rpc.GlobalPointer(a), 8, rpc.GlobalPointer(b), 8)
	if err != nil {
		return dsm.Pointer{}, err
	}
	return rpc.PointerOf(g)
}

// TestControl: only the allocator may do anything with a region, and nothing
// outside of it; after the free nobody may. What its owner does wrong, the memory server refuses: the
// switch knows the region until its slot has another one.
func TestControl(t *testing.T) {
	withTrio(t, func(r *trio) {
		p := r.alloc(r.caller, 4096)
		r.expect("controller's write", rpc.OK, r.write(r.caller, p))
		r.expect("controller's read", rpc.OK, r.read(r.caller, p.Add(4088)))
		r.expect("read behind the region", rpc.BadRequest, r.read(r.caller, p.Add(4096)))
		r.expect("read across the end", rpc.BadRequest, r.read(r.caller, p.Add(4092)))
		r.expect("write across the end", rpc.BadRequest, r.write(r.caller, p.Add(4092)))
		r.expect("stranger's read", rpc.PermissionDenied, r.read(r.stranger, p))
		r.expect("stranger's write", rpc.PermissionDenied, r.write(r.stranger, p))
		r.expect("stranger's free", rpc.PermissionDenied, r.stranger.Memory().Free(r.ctx, p))
		r.expect("free of a byte within", rpc.BadRequest, r.caller.Memory().Free(r.ctx, p.Add(8)))
		r.expect("the free", rpc.OK, r.caller.Memory().Free(r.ctx, p))
		r.expect("a second free", rpc.NotFound, r.caller.Memory().Free(r.ctx, p))
		r.expect("read after the free", rpc.NotFound, r.read(r.caller, p))
		r.expect("a machine that is not there", rpc.Unavailable, r.read(r.caller, dsmpacket.Make(rackaddr.DefaultDSMPrefix, 99, dsmpacket.IDOf(1, 1))))
	})
}

// TestLease: the rows of the design's table for CALL and REPLY, from within.
func TestLease(t *testing.T) {
	withTrio(t, func(r *trio) {
		a, b := r.alloc(r.caller, 64), r.alloc(r.caller, 64)
		own := r.alloc(r.callee, 64)
		var result dsm.Pointer
		r.handler.addRef = func(ctx context.Context, a, b dsm.Pointer) (dsm.Pointer, error) {
			for _, p := range []dsm.Pointer{a, b} {
				_, err := rpc.Memory(ctx).Read(ctx, p, make([]byte, 8))
				r.expect("lessee's read", rpc.OK, err)
			}
			r.expect("lessee's write", rpc.PermissionDenied, r.write(r.callee, a))
			r.expect("lessee's free", rpc.PermissionDenied, r.callee.Memory().Free(ctx, a))
			r.expect("controller's read during the lease", rpc.OK, r.read(r.caller, a))
			r.expect("controller's write during the lease", rpc.PermissionDenied, r.write(r.caller, a))
			r.expect("controller's free during the lease", rpc.PermissionDenied, r.caller.Memory().Free(ctx, b))
			r.expect("stranger's read during the lease", rpc.PermissionDenied, r.read(r.stranger, a))
			r.expect("caller's read of what was not passed", rpc.PermissionDenied, r.read(r.caller, own))
			result = own
			return own, nil
		}
		got, err := r.add(a, b)
		r.must(err)
		if got != result {
			t.Errorf("the result is %s, want %s", got, result)
		}
		r.expect("lessee's read after the reply", rpc.PermissionDenied, r.read(r.callee, a))
		r.expect("controller's write after the reply", rpc.OK, r.write(r.caller, a))
		r.expect("caller's read of the result", rpc.OK, r.read(r.caller, got))
		r.expect("callee's read of the result", rpc.PermissionDenied, r.read(r.callee, got))
		for _, p := range []dsm.Pointer{a, b, got} {
			r.expect("the caller's free", rpc.OK, r.caller.Memory().Free(r.ctx, p))
		}
	})
}

// TestRefusals: what the Gatekeeper refuses reaches the caller as an exception,
// and changes no permission.
func TestRefusals(t *testing.T) {
	withTrio(t, func(r *trio) {
		p, foreign := r.alloc(r.caller, 64), r.alloc(r.stranger, 64)
		r.handler.addRef = func(context.Context, dsm.Pointer, dsm.Pointer) (dsm.Pointer, error) { return p, nil }
		_, err := r.add(p, foreign)
		r.expect("passing on what one does not hold", rpc.PermissionDenied, err)
		r.expect("write after the refusal", rpc.OK, r.write(r.caller, p))
		_, err = r.add(p, p)
		r.expect("a result that the callee does not control", rpc.PermissionDenied, err)
		r.expect("write after the exception", rpc.OK, r.write(r.caller, p))
		r.handler.addRef = func(context.Context, dsm.Pointer, dsm.Pointer) (dsm.Pointer, error) {
			return dsm.Pointer{}, &arrays.LengthMismatch{A: 1, B: 2}
		}
		_, err = r.add(p, p)
		var mismatch *arrays.LengthMismatch
		if !errors.As(err, &mismatch) {
			t.Errorf("a declared exception arrived as %v", err)
		}
		r.expect("write after a declared exception", rpc.OK, r.write(r.caller, p))
		r.expect("callee's read after an exception", rpc.PermissionDenied, r.read(r.callee, p))
		r.must(r.caller.Memory().Free(r.ctx, p))
	})
}

// TestNodeGone: when the callee leaves in the middle of a call, the call fails,
// and the caller has its rights back.
func TestNodeGone(t *testing.T) {
	withTrio(t, func(r *trio) {
		p := r.alloc(r.caller, 64)
		entered := make(chan struct{})
		r.handler.incrementRef = func(ctx context.Context, _ dsm.Pointer) (dsm.Pointer, error) {
			close(entered)
			<-ctx.Done()
			return dsm.Pointer{}, ctx.Err()
		}
		done := make(chan error, 1)
		go func() {
			_, err := arrays.NewArraysClient(r.caller.Client("Arrays")).IncrementRef(r.ctx, rpc.GlobalPointer(p), 8, 1)
			done <- err
		}()
		<-entered
		r.expect("write during the lease", rpc.PermissionDenied, r.write(r.caller, p))
		short, cancel := context.WithTimeout(r.ctx, time.Second)
		defer cancel()
		r.callee.Close(short) // its handler is cut off, which is what is wanted
		if err := <-done; err == nil {
			t.Error("a call whose callee has left succeeded")
		}
		for r.write(r.caller, p) != nil {
			select {
			case <-time.After(time.Millisecond):
			case <-r.ctx.Done():
				t.Fatal("the caller never got its rights back")
			}
		}
		_, err := r.add(p, p)
		if code := rpc.CodeOf(err); code != rpc.NoSuchMethod && code != rpc.Unavailable {
			t.Errorf("a call of a service that is gone: %v", err)
		}
	})
}

// TestUnknownMethod: nobody exports it, or the service has no such method.
func TestUnknownMethod(t *testing.T) {
	withTrio(t, func(r *trio) {
		_, err := arrays.NewArraysClient(r.caller.Client("Nobody")).Echo(r.ctx, nil)
		r.expect("unknown service", rpc.Unavailable, err)
		err = arrays.NewPingClient(r.caller.Client("Arrays")).Ping(r.ctx)
		r.expect("unknown method", rpc.NoSuchMethod, err)
	})
}

// TestForgedSource: a program that sends in another node's name is not heard,
// and one that sends rubbish harms nobody.
func TestForgedSource(t *testing.T) {
	withTrio(t, func(r *trio) {
		p := r.alloc(r.caller, 64)
		host := r.Host("s1")
		r.must(host.AddAddress(r.caller.Address()))
		defer host.RemoveAddress(r.caller.Address())
		c, err := host.ListenUDP(netip.AddrPortFrom(r.caller.Address(), rackaddr.PortDSM))
		r.must(err)
		defer c.Close()
		h := dsmpacket.Header{Kind: dsmpacket.Request, Request: 1, Floor: 1, Length: 8, Incarnation: 1}
		send := func(to netip.AddrPort, b []byte) {
			_, err := c.WriteBatch([]netio.Message{{Buf: b, Remote: to}})
			r.must(err)
		}
		to := func(op dsmpacket.Op) netip.AddrPort {
			return netip.AddrPortFrom(p.With(op).Addr(), rackaddr.PortDSM)
		}
		send(to(dsmpacket.OpRead), h.Append(nil))
		send(to(dsmpacket.OpFree), h.Append(nil))
		r.must(c.SetReadDeadline(time.Now().Add(time.Minute)))
		if n, err := c.ReadBatch([]netio.Message{{Buf: make([]byte, 2048)}}); err == nil {
			t.Errorf("a forged request was answered with %d packets", n)
		}
		r.expect("the true controller's read", rpc.OK, r.read(r.caller, p))
	})
}

// TestRubbish sends malformed packets of every kind from an honest source: whoever
// stops them counts them (the switch's own counts are package p4's TestVerdicts), and
// all else goes on.
func TestRubbish(t *testing.T) {
	withTrio(t, func(r *trio) {
		host := r.Host("s1")
		good := rpcpacket.Message{Header: rpcpacket.Header{Type: rpcpacket.Call}, Payload: []byte("not Thrift")}
		good.Method, _ = rpcpacket.MethodOf("add")
		good.CallerIncarnation = 1
		b := good.Append(nil)
		edit := func(at int, v byte) []byte { e := append([]byte(nil), b...); e[at] = v; return e }
		for _, packet := range [][]byte{nil, b[:20], edit(0, 1), edit(2, 9), edit(3, 9), edit(94, 3), edit(96, 0xff), edit(100, 1), b} {
			for _, to := range []netip.AddrPort{
				netip.AddrPortFrom(rackaddr.Service("Arrays"), rackaddr.PortRPC),
				netip.AddrPortFrom(r.callee.Address(), rackaddr.PortRPC),
				netip.AddrPortFrom(dsmpacket.Make(rackaddr.DefaultDSMPrefix, 1, dsmpacket.IDOf(1, 1)).With(dsmpacket.OpAlloc).Addr(), rackaddr.PortDSM),
				netip.AddrPortFrom(rackaddr.Gatekeeper, rackaddr.PortControl),
			} {
				host.SendRaw(netip.AddrPortFrom(r.stranger.Address(), to.Port()), to, packet)
			}
		}
		got, err := arrays.NewArraysClient(r.caller.Client("Arrays")).Echo(r.ctx, []byte("still here"))
		if err != nil || string(got) != "still here" {
			t.Errorf("after rubbish: %q, %v", got, err)
		}
		// Of the nine, the switch stops all on the way to a call's callee and to memory, and none on the way to the Gatekeeper, who looks at
		// what is held.
		seen, err := r.Gatekeeper().Snapshot(r.ctx)
		r.must(err)
		if seen.Counters.Foreign != 9 || seen.Counters.Malformed != 0 {
			t.Errorf("the Gatekeeper has counted %+v", seen.Counters)
		}
		if served := r.callee.Stats().Served; served != 1 {
			t.Errorf("the callee has served %d calls", served)
		}
		for reason, n := range r.MemoryServer("m1").Metrics().Dropped {
			if n != 0 {
				t.Errorf("%d datagrams came to the memory blade: %s", n, reason)
			}
		}
	})
}

// TestThriftGarbage: arguments that are no Thrift reach the caller as a protocol
// error, and the callee goes on.
func TestThriftGarbage(t *testing.T) {
	withTrio(t, func(r *trio) {
		_, err := r.caller.Client("Arrays").Call(r.ctx, "echo", garbage{}, &arrays.ArraysEchoResult{})
		if code := rpc.CodeOf(err); code != rpc.BadRequest {
			t.Errorf("garbage arguments: %v (%v)", err, code)
		}
		_, err = arrays.NewArraysClient(r.caller.Client("Arrays")).Echo(r.ctx, []byte("x"))
		r.expect("the next call", rpc.OK, err)
	})
}

// garbage writes an argument that claims to be longer than its message.
type garbage struct{}

func (garbage) Read(context.Context, thrift.TProtocol) error { return nil }
func (garbage) Write(ctx context.Context, p thrift.TProtocol) error {
	if err := p.WriteFieldBegin(ctx, "data", thrift.STRING, 1); err != nil {
		return err
	}
	return p.WriteI32(ctx, 0x7fffffff)
}
