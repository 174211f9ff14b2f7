package stub_test

import (
	"bytes"
	"context"
	"testing"

	"github.com/apache/thrift/lib/go/thrift"

	"github.com/bifrost-rack/bifrost/rpc/idl/bifrost"
	"github.com/bifrost-rack/bifrost/rpc/stub"
)

// binary is Thrift's binary protocol over some bytes.
func binary(b []byte) thrift.TProtocol {
	return thrift.NewTBinaryProtocolConf(&thrift.TMemoryBuffer{Buffer: bytes.NewBuffer(b)}, nil)
}

// arguments reads arguments of which the first is a reference.
func arguments(in thrift.TProtocol) (w *bifrost.Reference, err error) {
	err = stub.ReadStruct(context.Background(), in, func(id int16, kind thrift.TType) stub.ReadFunc {
		if id == 1 && kind == thrift.STRUCT {
			return stub.ReadRef(&w)
		}
		return nil
	})
	return w, err
}

// address is that of a reference's pointer; a missing pointer is written as an empty one.
func address(w *bifrost.Reference) []byte {
	if w.Pointer == nil {
		return nil
	}
	return w.Pointer.Address
}

// FuzzReadStruct reads anything as arguments that hold a reference. What was read is
// written and read again.
func FuzzReadStruct(f *testing.F) {
	written := func(w *bifrost.Reference) []byte { // also in the fuzz target, where f must not be used
		buf := thrift.NewTMemoryBuffer()
		if err := stub.WriteStruct(context.Background(), thrift.NewTBinaryProtocolConf(buf, nil), "x", stub.WriteRef("a", 1, w)); err != nil {
			panic(err)
		}
		return buf.Bytes()
	}
	f.Add(written(&bifrost.Reference{Pointer: &bifrost.GlobalPointer{Address: []byte("sixteen bytes...")}, Length: 7}))
	f.Add(written(nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		w, err := arguments(binary(b))
		if err != nil || w == nil {
			return
		}
		again, err := arguments(binary(written(w)))
		if err != nil || again == nil || again.Length != w.Length || !bytes.Equal(again.Value, w.Value) ||
			!bytes.Equal(address(again), address(w)) {
			t.Errorf("%v came back as %v, %v", w, again, err)
		}
	})
}
