package simrack_test

import (
	"context"
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
	must := func(err error) {
		if err != nil {
			panic(err) // it is written to memory
		}
	}
	must(p.WriteStructBegin(ctx, "manyPointers"))
	must(p.WriteFieldBegin(ctx, "all", thrift.LIST, 1))
	must(p.WriteListBegin(ctx, thrift.STRUCT, len(m.all)))
	for _, a := range m.all {
		must(rpc.GlobalPointer(a).Write(ctx, p))
	}
	must(p.WriteListEnd(ctx))
	must(p.WriteFieldEnd(ctx))
	must(p.WriteFieldStop(ctx))
	return p.WriteStructEnd(ctx)
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

// places are pointers into a region.
func places(p dsm.Pointer, n int) (all []dsm.Pointer) {
	for i := range n {
		all = append(all, p.Add(int64(i)))
	}
	return all
}

// TestManyPointers: half a packet of pointers go direct, in calls and in answers, though the messages exceed a packet. More
// are refused by the sender, whatever the policy.
func TestManyPointers(t *testing.T) {
	withSmallPackets(t, func(r *shelf) {
		const budget = 1280 - 48
		most := rpcpacket.MostPointers(budget)
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
			if back == 0 {
				return nil, nil
			}
			p, err := fresh(ctx)
			return places(p, back), err
		}})
		if err := n.Export(r.Context(), "Many", processor); err != nil {
			r.Fatal(err)
		}
		call := func(ctx context.Context, m *dsm.Client, from *rpc.Node, policy rpc.Policy, lent int) (code rpc.Code) {
			p, err := filled(ctx, m)
			if err != nil {
				r.Fatal(err)
			}
			var result manyPointers
			_, err = from.Client("Many", rpc.WithPolicy(policy)).Call(ctx, "many", &manyPointers{places(p, lent)}, &result)
			if len(result.all) > 0 {
				r.own(ctx, m, result.all[0])
				if err := m.Free(ctx, result.all[0]); err != nil {
					r.Error(err)
				}
			}
			if err := m.Free(ctx, p); err != nil {
				r.Error(err)
			}
			return rpc.CodeOf(err)
		}
		from := func(who string, policy rpc.Policy, do func(ctx context.Context, m *dsm.Client, lent int) rpc.Code) {
			for _, c := range []struct {
				lent, back int
				want       rpc.Code
			}{{most, 0, rpc.OK}, {0, most, rpc.OK}, {most, most, rpc.OK}, {most + 1, 0, rpc.BadRequest}, {0, most + 1, rpc.BadRequest}} {
				back = c.back
				if got := do(r.Context(), r.client.Memory(), c.lent); got != c.want {
					r.Errorf("%s, policy %s, %d pointers lent, %d returned: %s, want %s", who, policy, c.lent, c.back, got, c.want)
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
			r.Errorf("%+v: want four direct calls with pointers, and no execution handed over", s)
		}
		r.direct()
		<-time.After(2 * time.Second) // virtual: the client keeps what it has freed for a second
		r.regions(0)
		client(rpc.PolicyNone)
	})
}
