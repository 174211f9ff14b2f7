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
	Oneway       bool
}

// Caller is how a client's calls pass references.
type Caller struct {
	Memory *dsmclient.Client // of the client's node; nil over plain Thrift
	// Inside decides whether a value of so many bytes travels inside a call; again says that it has been
	// in a message before.
	Inside func(ctx context.Context, a Argument, length int, again bool) bool
	// Learn notes what a region of an argument's value would have spared, as its callee says; Spares is what it has said last.
	Learn  func(a Argument, spares int)
	Spares func(ctx context.Context, a Argument) int
	// Takes is how many bytes the answer to a call of a method may have, 0 for as many as a callee sends.
	Takes func(ctx context.Context, method string) int64
}

var (
	// CallerOf returns how a client passes references.
	CallerOf func(c thrift.TClient) Caller
	// Lend puts an argument's value into memory, unless it stands there or travels inside the
	// call, and returns what the call carries.
	Lend func(ctx context.Context, c Caller, a Argument, ref any) (*bifrost.Reference, error)
	// Spares is what a region of a handler's argument would spare, or would have, by what the handler has done with it, from -1 to 14.
	Spares func(ref any) int
	// TakesLess reports whether a call has failed since its callee takes no message of that length, or is no call.
	TakesLess func(err error) bool
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
	// Return ends a handler's result, and returns what the answer carries. It takes so many bytes, if that is not 0.
	Return func(ctx context.Context, w Way, takes int64, ref any) (*bifrost.Reference, error)
	// End ends a handler's argument, and frees it if the handler owns it.
	End func(ctx context.Context, ref any)
	// Heir is the program of an heir, for package heir. It is told the names of the node's services, as far as
	// they are known.
	Heir func(ctx context.Context, services []string) error
	// DeclaredPolicy is what an IDL says of methods: a rpc.ClientOption.
	DeclaredPolicy func(p rpcpacket.Policy, methods []string) any
)
