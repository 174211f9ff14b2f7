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

// SupportsGen4 is what code of the fourth generation of `bifrost gen` refers to: a
// runtime that does not support it does not have the name, so that the two do not
// compile together.
const SupportsGen4 = true

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

// Lend is what a call of a method carries for an argument: it puts the value into memory
// unless it stands there or travels inside the call.
func Lend[T any](ctx context.Context, c Caller, w bridge.Way, method, name string, r *rpc.Ref[T]) (*bifrost.Reference, error) {
	return bridge.Lend(ctx, c.bridge, bridge.Argument{Method: method, Name: name, Way: w}, r)
}

// Learn notes what an answer says of the call's arguments by reference, in the order of the IDL.
func (c Caller) Learn(method string, u Uses, names ...string) {
	if c.bridge.Learn == nil {
		return
	}
	for i, name := range names {
		c.bridge.Learn(bridge.Argument{Method: method, Name: name}, u.passedOn(i))
	}
}

// Uses is what a callee says in an answer of the arguments by reference: the n-th bit, in the order
// of the IDL, is 1 if the handler passed the n-th one on. Of arguments beyond the 63rd it says nothing.
type Uses int64

// UsesField is the number of the field of an answer that has them. Who does not know it skips it.
const UsesField = math.MaxInt16

// mostUses is of how many arguments Uses tell.
const mostUses = 63

// UsesOf returns what a handler has done with its arguments.
func UsesOf(refs ...any) (u Uses) {
	for i, r := range refs[:min(len(refs), mostUses)] {
		if bridge.PassedOn(r) {
			u |= 1 << i
		}
	}
	return u
}

func (u Uses) passedOn(i int) bool { return i < mostUses && u>>i&1 != 0 }

// Write writes the field, unless nothing was passed on.
func (u Uses) Write(ctx context.Context, out thrift.TProtocol) error {
	if u == 0 {
		return nil
	}
	if err := out.WriteFieldBegin(ctx, "uses", thrift.I64, UsesField); err != nil {
		return err
	}
	if err := out.WriteI64(ctx, int64(u)); err != nil {
		return err
	}
	return out.WriteFieldEnd(ctx)
}

// Read reads it.
func (u *Uses) Read(ctx context.Context, in thrift.TProtocol) error {
	v, err := in.ReadI64(ctx)
	*u = Uses(v)
	return err
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
// the handler's to hand over. The reference ends.
func Return[T any](ctx context.Context, w bridge.Way, r *rpc.Ref[T]) (*bifrost.Reference, error) {
	return bridge.Return(ctx, w, r)
}

// End ends a handler's argument; one that it owns and has not passed on is freed.
func End[T any](ctx context.Context, r *rpc.Ref[T]) { bridge.End(ctx, r) }
