package simrack_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/apache/thrift/lib/go/thrift"

	"github.com/bifrost-rack/bifrost/dsm"
	"github.com/bifrost-rack/bifrost/examples/arrays/gen-go/arrays"
	"github.com/bifrost-rack/bifrost/examples/arrays/service"
	"github.com/bifrost-rack/bifrost/rpc"
	"github.com/bifrost-rack/bifrost/rpc/idl/bifrost"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// manyPointers is a Thrift struct with a list of pointers: the arguments of a method, and its result.
type manyPointers struct {
	all []dsm.Pointer
}

var _ thrift.TStruct = (*manyPointers)(nil)

// Write implements thrift.TStruct.
func (m *manyPointers) Write(ctx context.Context, p thrift.TProtocol) error {
	err := errors.Join(p.WriteStructBegin(ctx, "manyPointers"), p.WriteFieldBegin(ctx, "all", thrift.LIST, 1), p.WriteListBegin(ctx, thrift.STRUCT, len(m.all)))
	for _, a := range m.all {
		err = errors.Join(err, rpc.GlobalPointer(a).Write(ctx, p))
	}
	return errors.Join(err, p.WriteListEnd(ctx), p.WriteFieldEnd(ctx), p.WriteFieldStop(ctx), p.WriteStructEnd(ctx))
}

// Read implements thrift.TStruct.
func (m *manyPointers) Read(ctx context.Context, p thrift.TProtocol) error {
	m.all = nil
	if _, err := p.ReadStructBegin(ctx); err != nil {
		return err
	}
	if _, _, _, err := p.ReadFieldBegin(ctx); err != nil {
		return err
	}
	_, n, err := p.ReadListBegin(ctx)
	for i := 0; i < n && err == nil; i++ {
		g, a := bifrost.NewGlobalPointer(), dsm.Pointer{}
		if err = g.Read(ctx, p); err == nil {
			a, err = rpc.PointerOf(g)
		}
		m.all = append(m.all, a)
	}
	if err != nil {
		return err
	}
	if _, _, _, err := p.ReadFieldBegin(ctx); err != nil { // the end
		return err
	}
	return p.ReadStructEnd(ctx)
}

// manyFunction is a method that is lent pointers and returns others.
type manyFunction struct {
	handle func(ctx context.Context, lent []dsm.Pointer) ([]dsm.Pointer, error)
}

// Process implements thrift.TProcessorFunction.
func (f manyFunction) Process(ctx context.Context, seq int32, in, out thrift.TProtocol) (bool, thrift.TException) {
	var m manyPointers
	if err := m.Read(ctx, in); err != nil {
		return false, thrift.WrapTException(err)
	}
	if err := in.ReadMessageEnd(ctx); err != nil {
		return false, thrift.WrapTException(err)
	}
	var err error
	if m.all, err = f.handle(ctx, m.all); err == nil {
		err = out.WriteMessageBegin(ctx, "many", thrift.REPLY, seq)
	}
	if err == nil {
		err = m.Write(ctx, out)
	}
	if err == nil {
		err = out.WriteMessageEnd(ctx)
	}
	return err == nil, thrift.WrapTException(err)
}

// places are some pointers into each of these regions.
func places(regions []dsm.Pointer) (all []dsm.Pointer) {
	for i := range 100 {
		for _, p := range regions {
			all = append(all, p.Add(int64(i)))
		}
	}
	return all
}

// TestManyPointers: a hundred pointers into each of as many regions as a message names go direct, in calls and in answers, though the
// messages exceed a packet. More regions are refused by the sender, whatever the policy: a result with so many is the handler's fault.
func TestManyPointers(t *testing.T) {
	withSmallPackets(t, func(r *shelf) {
		const most = rpcpacket.MaxRegions
		several := func(n int, one func() (dsm.Pointer, error)) (all []dsm.Pointer, err error) {
			for range n {
				p, failed := one()
				all, err = append(all, p), errors.Join(err, failed)
			}
			return all, err
		}
		n, err := r.Join(r.Context(), "c1", "many")
		if err != nil {
			r.Fatal(err)
		}
		var back int
		processor := arrays.NewArraysProcessor(service.Arrays{})
		processor.AddToProcessorMap("many", manyFunction{func(ctx context.Context, lent []dsm.Pointer) ([]dsm.Pointer, error) {
			for _, p := range lent[:min(len(lent), 1)] {
				r.reads(ctx, p, "contents")
			}
			results, err := several(back, func() (dsm.Pointer, error) { return fresh(ctx) })
			return places(results), err
		}})
		if err := n.Export(r.Context(), "Many", processor); err != nil {
			r.Fatal(err)
		}
		call := func(ctx context.Context, m *dsm.Client, from *rpc.Node, policy rpc.Policy, lent int) (code rpc.Code) {
			regions, err := several(lent, func() (dsm.Pointer, error) { return filled(ctx, m) })
			if err != nil {
				r.Fatal(err)
			}
			var result manyPointers
			_, err = from.Client("Many", rpc.WithPolicy(policy)).Call(ctx, "many", &manyPointers{places(regions)}, &result)
			for _, p := range result.all[:min(back, len(result.all))] {
				r.own(ctx, m, p)
				regions = append(regions, p)
			}
			for _, p := range regions {
				if err := m.Free(ctx, p); err != nil {
					r.Error(err)
				}
			}
			return rpc.CodeOf(err)
		}
		from := func(who string, policy rpc.Policy, do func(ctx context.Context, m *dsm.Client, lent int) rpc.Code) {
			for _, c := range []struct {
				lent, back int
				want       rpc.Code
			}{{most, 0, rpc.OK}, {0, most, rpc.OK}, {most, most, rpc.OK}, {most + 1, 0, rpc.BadRequest}, {0, most + 1, rpc.Application}} {
				back = c.back
				if got := do(r.Context(), r.client.Memory(), c.lent); got != c.want {
					r.Errorf("%s, policy %s, %d regions lent, %d returned: %s, want %s", who, policy, c.lent, c.back, got, c.want)
				}
			}
		}
		client := func(policy rpc.Policy) {
			from("a plain client", policy, func(ctx context.Context, m *dsm.Client, lent int) rpc.Code {
				return call(ctx, m, r.client, policy, lent)
			})
		}
		client(rpc.PolicyRecover)
		from("an execution", rpc.PolicyRecover, func(_ context.Context, _ *dsm.Client, lent int) (code rpc.Code) {
			r.call(func(ctx context.Context, _ *dsm.Pointer) error {
				code = call(ctx, rpc.Memory(ctx), r.server, rpc.PolicyRecover, lent)
				return nil
			})
			return code
		})
		if s := n.Stats(); s.Lending != 4 {
			r.Errorf("%+v: want four direct calls with regions, and no execution handed over", s)
		}
		r.direct()
		<-time.After(2 * time.Second) // virtual: the client keeps what it has freed for a second
		r.regions(0)
		client(rpc.PolicyNone)
	})
}
