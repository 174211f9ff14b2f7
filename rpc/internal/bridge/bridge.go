// Package bridge lets package stub, which generated code calls, and package heir at what package rpc keeps
// to itself. Package rpc sets every variable when it is initialized; nobody changes one
// after that. A reference is passed as any, since functions in variables have no type
// parameters: it is a *rpc.Ref[T].
package bridge

import (
	"context"

	"github.com/apache/thrift/lib/go/thrift"

	"github.com/bifrost-rack/bifrost/dsm/dsmclient"
	"github.com/bifrost-rack/bifrost/rpc/idl/bifrost"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// Way is how the IDL has a value travel that is marked (bifrost.ref).
type Way uint8

// The ways.
const (
	Cheapest  Way = iota // as the runtime likes
	InRegion             // (bifrost.ref = "region")
	InMessage            // (bifrost.ref = "value")
)

// Argument is one of a call.
type Argument struct {
	Method, Name string
	Way          Way
}

// Caller is how a client's calls pass references.
type Caller struct {
	Memory *dsmclient.Client // of the client's node; nil over plain Thrift
	// Inside decides whether a value of so many bytes travels inside a call; again says that it has been
	// in a message before.
	Inside func(ctx context.Context, a Argument, length int, again bool) bool
	// Learn notes whether the callee of a call has passed its arguments on.
	Learn func(a Argument, passedOn bool)
}

var (
	// CallerOf returns how a client passes references.
	CallerOf func(c thrift.TClient) Caller
	// Lend puts an argument's value into memory, unless it stands there or travels inside the
	// call, and returns what the call carries.
	Lend func(ctx context.Context, c Caller, a Argument, ref any) (*bifrost.Reference, error)
	// PassedOn reports whether a handler has lent its argument on, or handed it over.
	PassedOn func(ref any) bool
	// Gave ends a reference that a one-way call has carried away.
	Gave func(ref any)
	// Result fills an empty reference with what a call has returned.
	Result func(ctx context.Context, c Caller, ref any, w *bifrost.Reference) error
	// Done ends a reference that a client has made for a plain value, and frees it. It sets
	// err if that fails and nothing else has.
	Done func(ctx context.Context, ref any, err *error)
	// Lent fills an empty reference with what a handler's argument carries. An owned one is
	// the handler's.
	Lent func(ctx context.Context, ref any, name string, w *bifrost.Reference, owned bool) error
	// Return ends a handler's result, and returns what the answer carries.
	Return func(ctx context.Context, w Way, ref any) (*bifrost.Reference, error)
	// End ends a handler's argument, and frees it if the handler owns it.
	End func(ctx context.Context, ref any)
	// Heir is the program of an heir, for package heir. It is told the names of the node's services, as far as
	// they are known.
	Heir func(ctx context.Context, services []string) error
	// DeclaredPolicy is what an IDL says of methods: a rpc.ClientOption.
	DeclaredPolicy func(p rpcpacket.Policy, methods []string) any
)
