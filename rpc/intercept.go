package rpc

import (
	"context"
	"errors"

	"github.com/apache/thrift/lib/go/thrift"

	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// Interceptor stands around calls: those that a client makes if it is an option of [Node.Client], those that a service serves if it is
// one of [Node.Export]; of several the first is the outermost. It calls next, at most once, with the context that it was given or one
// derived from it, such as one of [WithHeader]. The error of next is that of the call; [CodeOf] of it is [Declared] for an exception that
// the IDL declares. What the interceptor returns instead is what the caller gets, but it cannot make a call that has failed one that has
// not. An interceptor that returns an error without next refuses the call.
//
// Around a handler an interceptor is part of it: [CallerOf], [Effect] and calls of its own work as there, it has to repeat when the execution
// is run again what it did before, and its error counts as one that the handler has returned. What the handler has done by then stays.
// Around a client it runs where the call is made. Arguments by reference are in memory by then, and are their owner's if it refuses
// the call.
//
// Interceptors may run concurrently.
type Interceptor func(ctx context.Context, c *Call, next func(ctx context.Context) error) error

// Call is a call as an [Interceptor] sees it. It can be used until the interceptor returns.
type Call struct {
	// Service and Method are what is called. A method has the same name by value and by reference.
	Service, Method string
	// Outgoing says that this side makes the call; else it serves it.
	Outgoing bool
	// Oneway says that the call has no answer.
	Oneway bool

	arguments func(ctx context.Context, into thrift.TStruct) error
}

// Arguments reads the arguments into a struct that the Thrift compiler has generated for the method, such as ArraysAddArgs for the method add
// of the service Arrays. What travels by reference is left out. The arguments are written, or read, once more for that. It fails as
// [BadRequest] if they are not what the struct has.
func (c *Call) Arguments(ctx context.Context, into thrift.TStruct) error {
	if err := c.arguments(ctx, into); err != nil {
		return &Error{Code: BadRequest, Op: "arguments of " + c.Service + "." + c.Method, Err: err}
	}
	return nil
}

func (i Interceptor) applyClient(c *clientConfig) { c.interceptors = append(c.interceptors, i) }
func (i Interceptor) applyExport(c *exportConfig) { c.interceptors = append(c.interceptors, i) }

// interceptors are those around a call, the outermost first.
type interceptors []Interceptor

// through makes a call through interceptors. It reports whether the error is theirs, not that of do.
func (i interceptors) through(ctx context.Context, c *Call, do func(ctx context.Context) error) (err error, theirs bool) {
	var done error
	called := false
	next := func(ctx context.Context) error {
		if called {
			return fault.New(Internal, "", "an interceptor of %s.%s has called next twice", c.Service, c.Method)
		}
		called = true
		done = do(ctx)
		return done
	}
	for n := len(i) - 1; n >= 0; n-- {
		inner := next
		next = func(ctx context.Context) error { return i[n](ctx, c, inner) }
	}
	switch err = next(ctx); {
	case !called && err == nil:
		return fault.New(Internal, "", "an interceptor of %s.%s has neither called next nor returned an error", c.Service, c.Method), true
	case called && (err == nil || errors.Is(err, done)):
		return done, false
	}
	return err, true
}

// intercepted makes a call through the client's interceptors.
func (c *client) intercepted(ctx context.Context, name string, args, result thrift.TStruct) (meta thrift.ResponseMeta, err error) {
	call := &Call{Service: c.service, Method: rpcpacket.PlainMethod(name), Outgoing: true, Oneway: result == nil}
	call.arguments = func(ctx context.Context, into thrift.TStruct) error {
		out := newCodec(c.node.large.limit())
		defer out.free()
		if err := args.Write(ctx, out); err != nil {
			return err
		}
		if out.buf.over > 0 {
			return errors.New(c.node.large.tooLongIn("a message", out))
		}
		return readStruct(ctx, Binary, out.payload(), into)
	}
	declared := &Error{Code: Declared, Op: "call " + c.service + "." + call.Method, Msg: "an exception that the IDL declares", Remote: true}
	err, _ = c.config.interceptors.through(ctx, call, func(ctx context.Context) error {
		var outcome Code
		if meta, outcome, err = c.make(ctx, name, args, result); err == nil && outcome == Declared {
			return declared
		}
		return err
	})
	if err == error(declared) { //nolint:errorlint // through has unwrapped it; the result has the exception
		return meta, nil
	}
	return meta, asThrift(err)
}

// serve has the processor serve a call, through the service's interceptors.
func (x *export) serve(ctx context.Context, e *execution, in, out *codec) error {
	if len(x.config.interceptors) == 0 { // most services, whose calls need no closure
		return x.handle(ctx, in, out)
	}
	call := &Call{Service: x.name, Method: rpcpacket.PlainMethod(e.method()), Oneway: e.call.Type == rpcpacket.Oneway}
	message, protocol := in.buf.in, in.protocol
	call.arguments = func(ctx context.Context, into thrift.TStruct) error { return readStruct(ctx, protocol, message, into) }
	err, theirs := x.config.interceptors.through(ctx, call, func(ctx context.Context) error { return x.handle(ctx, in, out) })
	if theirs {
		out.reset() // the handler's answer
	}
	return err
}

// handle has the processor serve a call.
func (x *export) handle(ctx context.Context, in, out *codec) error {
	if _, exception := x.offer.Load().processor.Process(ctx, in, out); exception != nil {
		return exception
	}
	return nil
}

// readStruct reads a struct. It leaves what follows.
func readStruct(ctx context.Context, p Protocol, message []byte, into thrift.TStruct) error {
	in := newCodec(0)
	defer in.free()
	in.speak(p)
	in.read(message)
	return into.Read(ctx, in)
}
