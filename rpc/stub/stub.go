// Package stub is what the code that `bifrost gen` writes calls. Nobody else needs it:
// programs use package rpc and the generated code.
package stub

import (
	"context"
	"math"

	"github.com/apache/thrift/lib/go/thrift"

	"github.com/bifrost-rack/bifrost/rpc"
	"github.com/bifrost-rack/bifrost/rpc/form"
	"github.com/bifrost-rack/bifrost/rpc/idl/bifrost"
	"github.com/bifrost-rack/bifrost/rpc/internal/bridge"
)

// SupportsGen5 is what code of the fifth generation of `bifrost gen` refers to: a
// runtime that does not support it does not have the name, so that the two do not
// compile together.
const SupportsGen5 = true

// Caller makes the calls of a generated client.
type Caller struct{ bridge bridge.Caller }

// NewCaller returns what calls by reference through c need. A client that is not
// rpc.Node.Client's own, such as one that a middleware is wrapped around, counts as plain
// Thrift.
func NewCaller(c thrift.TClient) Caller { return Caller{bridge.CallerOf(c)} }

// ByReference reports whether the other side can be reached by reference: not over plain
// Thrift.
func (c Caller) ByReference() bool { return c.bridge.Memory != nil }

// WithDeclaredPolicy passes on what the IDL says of these methods, or of all others if none
// is named.
func WithDeclaredPolicy(p rpc.Policy, methods ...string) rpc.ClientOption {
	return bridge.DeclaredPolicy(p, methods).(rpc.ClientOption)
}

// Form makes the references to values of a type that have come in a message.
type Form[T any] struct{ empty func() *rpc.Ref[T] }

// Plain is the form of bytes and numbers.
func Plain[T rpc.Plain]() Form[T] {
	return Form[T]{func() *rpc.Ref[T] { return rpc.RefOf[T](nil) }}
}

// Typed is the form of all other values.
func Typed[T any](t form.Type[T]) Form[T] {
	return Form[T]{func() *rpc.Ref[T] {
		var none T
		return rpc.NewRef(t, none)
	}}
}

// How values travel that the IDL marks (bifrost.ref).
const (
	Cheapest  = bridge.Cheapest  // (bifrost.ref): as the runtime likes
	InRegion  = bridge.InRegion  // (bifrost.ref = "region")
	InMessage = bridge.InMessage // (bifrost.ref = "value")
)

// Call makes a call of a method with what lend puts into args; result is nil for a one-way. If the callee takes no message of that
// length, the call has not begun: then it is made once more, with its values in memory.
func (c Caller) Call(ctx context.Context, client thrift.TClient, method string, lend func(*Lender) error, args, result thrift.TStruct) error {
	l := Lender{bridge: c.bridge, call: bridge.Argument{Method: method, Oneway: result == nil}}
	if err := lend(&l); err != nil {
		return err
	}
	_, err := client.Call(ctx, method, args, result)
	if !l.inside || !bridge.TakesLess(err) {
		return err
	}
	l.stored = true
	if err := lend(&l); err != nil {
		return err
	}
	_, err = client.Call(ctx, method, args, result)
	return err
}

// Lender lends a call its arguments.
type Lender struct {
	bridge bridge.Caller
	call   bridge.Argument
	inside bool // a value travels inside the call
	stored bool // none may
}

// Lend is what a call carries for an argument: it puts the value into memory
// unless it stands there or travels inside the call.
func Lend[T any](ctx context.Context, l *Lender, w bridge.Way, name string, r *rpc.Ref[T]) (*bifrost.Reference, error) {
	a := l.call
	if a.Name, a.Way = name, w; l.stored {
		a.Way = InRegion
	}
	ref, err := bridge.Lend(ctx, l.bridge, a, r)
	l.inside = l.inside || err == nil && ref.Value != nil
	return ref, err
}

// Takes is how many bytes an answer may have that carries a result by reference. A caller says so if its node takes less than callees send.
type Takes int64

// TakesField is the number of the field of a call's arguments that has it. Who does not know it skips it.
const TakesField = math.MaxInt16

// Takes is what a call of a method says.
func (c Caller) Takes(ctx context.Context, method string) Takes {
	return Takes(c.bridge.Takes(ctx, method))
}

// Write writes the field, unless there is nothing to say.
func (t Takes) Write(ctx context.Context, out thrift.TProtocol) error {
	return writeNumber(ctx, out, "takes", TakesField, int64(t))
}

// Read reads it.
func (t *Takes) Read(ctx context.Context, in thrift.TProtocol) (err error) {
	return readNumber(ctx, in, (*int64)(t))
}

// writeNumber writes a field, unless it is 0.
func writeNumber(ctx context.Context, out thrift.TProtocol, name string, id int16, v int64) error {
	if v == 0 {
		return nil
	}
	if err := out.WriteFieldBegin(ctx, name, thrift.I64, id); err != nil {
		return err
	}
	if err := out.WriteI64(ctx, v); err != nil {
		return err
	}
	return out.WriteFieldEnd(ctx)
}

func readNumber(ctx context.Context, in thrift.TProtocol, v *int64) (err error) {
	*v, err = in.ReadI64(ctx)
	return err
}

// Learn notes what an answer says of the call's arguments by reference, in the order of the IDL.
func (c Caller) Learn(method string, u Uses, names ...string) {
	if c.bridge.Learn == nil {
		return
	}
	for i, name := range names {
		c.bridge.Learn(bridge.Argument{Method: method, Name: name}, u.of(i))
	}
}

// Uses is what a callee says in an answer of the arguments by reference, in the order of the IDL, with 4 bits for each: one more than what a region of the value
// would spare, by what the handler has done with it ([bridge.Spares]). So 0 says that it has read all of it. Of arguments beyond the 16th it says nothing.
type Uses int64

// UsesField is the number of the field of an answer that has them. Who does not know it skips it.
const UsesField = math.MaxInt16

// usesBits are those of an argument in Uses, mostUses is of how many arguments they tell.
const usesBits, mostUses = 4, 16

// UsesOf returns what a handler has done with its arguments.
func UsesOf(refs ...any) (u Uses) {
	for i, r := range refs[:min(len(refs), mostUses)] {
		u |= Uses(bridge.Spares(r)+1) << (usesBits * i)
	}
	return u
}

// of is what a region of the i-th argument would spare.
func (u Uses) of(i int) int {
	if i >= mostUses {
		return -1
	}
	return int(u>>(usesBits*i)&(1<<usesBits-1)) - 1
}

// Write writes the field, unless all was read.
func (u Uses) Write(ctx context.Context, out thrift.TProtocol) error {
	return writeNumber(ctx, out, "uses", UsesField, int64(u))
}

// Read reads it.
func (u *Uses) Read(ctx context.Context, in thrift.TProtocol) error {
	return readNumber(ctx, in, (*int64)(u))
}

// Gave ends a reference that a one-way call has carried away.
func Gave[T any](r *rpc.Ref[T]) { bridge.Gave(r) }

// Result makes the reference that a call has returned.
func Result[T any](ctx context.Context, c Caller, f Form[T], w *bifrost.Reference) (*rpc.Ref[T], error) {
	r := f.empty()
	if err := bridge.Result(ctx, c.bridge, r, w); err != nil {
		return nil, err
	}
	return r, nil
}

// Done ends a reference that a client stub has made for a plain value, and sets err if
// nothing else has failed.
func Done[T any](ctx context.Context, r *rpc.Ref[T], err *error) { bridge.Done(ctx, r, err) }

// Lent makes the reference that a handler gets for an argument; owned says that it is a
// one-way's, whose caller has let go of it.
func Lent[T any](ctx context.Context, f Form[T], name string, w *bifrost.Reference, owned bool) (*rpc.Ref[T], error) {
	r := f.empty()
	if err := bridge.Lent(ctx, r, name, w, owned); err != nil {
		return nil, err
	}
	return r, nil
}

// Return is what an answer carries for a handler's result: it puts the value into memory
// unless it stands there or travels inside the answer. What the handler was lent is copied, for it is not
// the handler's to hand over. takes is what the caller has said. The reference ends.
func Return[T any](ctx context.Context, w bridge.Way, takes Takes, r *rpc.Ref[T]) (*bifrost.Reference, error) {
	return bridge.Return(ctx, w, int64(takes), r)
}

// End ends a handler's argument; one that it owns and has not passed on is freed.
func End[T any](ctx context.Context, r *rpc.Ref[T]) { bridge.End(ctx, r) }
