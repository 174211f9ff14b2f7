package lab_test

import (
	"context"
	"math"
	"strings"
	"testing"

	"github.com/apache/thrift/lib/go/thrift"

	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
	"github.com/bifrost-rack/bifrost/rpc"
	"github.com/bifrost-rack/bifrost/rpc/gen/internal/lab/gen-go/labtest/lab"
	"github.com/bifrost-rack/bifrost/rpc/idl/bifrost"
	"github.com/bifrost-rack/bifrost/rpc/stub"
)

// forged is a call's arguments made by hand, and takes any answer.
type forged struct{ fields []stub.WriteFunc }

func (f forged) Write(ctx context.Context, out thrift.TProtocol) error {
	return stub.WriteStruct(ctx, out, "forged", f.fields...)
}

func (f forged) Read(ctx context.Context, in thrift.TProtocol) error {
	return stub.ReadStruct(ctx, in, func(int16, thrift.TType) stub.ReadFunc { return nil })
}

// call makes a call of count.ref with forged arguments.
func (w *world) call(fields ...stub.WriteFunc) error {
	_, err := w.thrift.Call(w.ctx, stub.Method("count"), forged{fields}, forged{})
	return err
}

func reference(p dsmpacket.Pointer, length int64) stub.WriteFunc {
	return stub.WriteRef("film", 1, &bifrost.Reference{Pointer: rpc.GlobalPointer(p), Length: length})
}

// value is a reference whose value travels with it.
func value(v string, p dsmpacket.Pointer, length int64) stub.WriteFunc {
	return stub.WriteRef("film", 1, &bifrost.Reference{Pointer: rpc.GlobalPointer(p), Length: length, Value: []byte(v)})
}

// TestForgedReferences: what no stub would send is refused with a code, and costs
// neither memory nor the server its life.
func TestForgedReferences(t *testing.T) {
	onRack(t, func(w *world) {
		p, err := w.node.Memory().Alloc(w.ctx, 64)
		w.must(err)
		foreign := dsmpacket.Make(rackaddr.DefaultDSMPrefix, p.Machine(), dsmpacket.IDOf(99, 1))
		for name, c := range map[string]struct {
			err  error
			want rpc.Code
		}{
			"right":                     {w.call(reference(p, 64)), rpc.OK},
			"none":                      {w.call(), rpc.BadRequest},
			"negative length":           {w.call(reference(p, -1)), rpc.BadRequest},
			"no length":                 {w.call(reference(p, 0)), rpc.BadRequest},
			"no pointer":                {w.call(reference(dsmpacket.Pointer{}, 5)), rpc.BadRequest},
			"immense length":            {w.call(reference(p, 1<<62)), rpc.BadRequest},
			"more than there is":        {w.call(reference(p, 65)), rpc.BadRequest},
			"far more":                  {w.call(reference(p, rpc.MaxRef)), rpc.BadRequest},
			"somebody else's":           {w.call(reference(foreign, 5)), rpc.PermissionDenied},
			"a value":                   {w.call(value("film", dsmpacket.Pointer{}, 4)), rpc.OK},
			"a value and a pointer":     {w.call(value("film", p, 4)), rpc.BadRequest},
			"a value of another length": {w.call(value("film", dsmpacket.Pointer{}, 5)), rpc.BadRequest},
			"a value of no length":      {w.call(value("", dsmpacket.Pointer{}, 0)), rpc.BadRequest},
			"by value": {w.call(func(ctx context.Context, out thrift.TProtocol) error {
				if err := out.WriteFieldBegin(ctx, "film", thrift.STRING, 1); err != nil {
					return err
				}
				return out.WriteBinary(ctx, []byte("film"))
			}), rpc.BadRequest},
		} {
			if rpc.CodeOf(c.err) != c.want {
				t.Errorf("%s: %v, want %v", name, c.err, c.want)
			}
		}
		w.must(w.node.Memory().Free(w.ctx, p))
	})
}

// TestForgedTakes: whatever a caller says that it takes, it is answered; nothing harms the server.
func TestForgedTakes(t *testing.T) {
	onRack(t, func(w *world) {
		for _, takes := range []stub.Takes{math.MinInt64, -1, 1, 512, math.MaxInt64} {
			raw := stub.WriteRef("raw", 1, &bifrost.Reference{Pointer: rpc.GlobalPointer(dsmpacket.Pointer{}), Length: 4, Value: []byte("film")})
			if _, err := w.thrift.Call(w.ctx, stub.Method("develop"), forged{[]stub.WriteFunc{raw, takes.Write}}, forged{}); err != nil {
				t.Errorf("takes %d: %v", takes, err)
			}
		}
		if n := w.regions(); n != 2 {
			t.Errorf("%d answers are regions, want those to 1 and 512 bytes", n)
		}
	})
}

// TestReferenceOverTCP: there is nothing that it could refer to.
func TestReferenceOverTCP(t *testing.T) {
	overTCP(t, func(w *world) {
		p := dsmpacket.Make(rackaddr.DefaultDSMPrefix, 1, dsmpacket.IDOf(1, 1))
		if err := w.call(reference(p, 64)); err == nil || !strings.Contains(err.Error(), "over Bifröst only") {
			t.Error(err)
		}
		if n, err := w.client.Count(w.ctx, rpc.RefOf([]byte("abc"))); n != 3 || err != nil {
			t.Error("the connection is out of order:", n, err)
		}
	})
}

// TestPlainServer: a server that knows nothing of references refuses the name.
func TestPlainServer(t *testing.T) {
	onRack(t, func(w *world) {
		server, err := w.rack.Join(w.ctx, "s1", "plain")
		w.must(err)
		w.must(server.Export(w.ctx, "Plain", lab.NewKeeperProcessor(plainKeeper{})))
		_, err = lab.NewKeeperRefClient(w.node.Client("Plain")).Keep(w.ctx, rpc.RefOf([]byte("film")))
		if rpc.CodeOf(err) != rpc.NoSuchMethod {
			t.Error(err)
		}
		w.must(server.Close(w.ctx))
	})
}

type plainKeeper struct{}

func (plainKeeper) Keep(_ context.Context, film []byte) (int64, error) { return int64(len(film)), nil }
func (plainKeeper) Kept(context.Context) (int64, error)                { return 0, nil }
