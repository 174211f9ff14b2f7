package rpc

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"runtime/debug"

	"github.com/apache/thrift/lib/go/thrift"

	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// What a program's own code does while the runtime calls it ends one call, and nothing else. Handlers, processors and their
// middleware, the methods of an error that a handler has returned, and those of a service's state may panic, or end their goroutine
// (runtime.Goexit, which a test's FailNow does):
//
//	process ── returns ──▶ judge: what the error means, in the runtime's words ──▶ answer
//	        ── panics ───▶ recovered ──┐
//	        ── ends its goroutine ─▶ another one goes on ─▶ what the execution did is taken back ─▶ Internal
//
// After judge nothing of the program's is asked any more. An execution that has been cut off in the middle of something may have
// left the service's state, and memory, half changed, so both become what they were before it, and what it was to send or to free stays. Calls
// and effects that it has made have happened. It is not run again: it would come to the same.
//
// A panic in a goroutine that a handler has started by itself, and what ends the process otherwise, cannot be contained.

// verdict is how a handler has ended.
type verdict struct {
	code Code // for metrics and the journal
	// failure is answered in the place of what the processor has written; nil if that is the answer.
	failure *Error
	// why is the text of the error that the handler has returned, for logs, and exception its type if the IDL declares it.
	why, exception string
	// broken says that the handler has not come to an end of its own.
	broken bool
}

// failed is the verdict that an error of the runtime's makes.
func failed(err *Error) verdict { return verdict{code: err.Code, failure: err, why: err.Error()} }

// process runs the processor, and finds out what it has come to.
func (x *export) process(ctx context.Context, e *execution, in, out *codec) (v verdict) {
	defer func() {
		if panicked := recover(); panicked != nil {
			v = x.faulty(e, "the handler "+escape(panicked))
		}
	}()
	return x.judge(ctx, e, out, x.serve(ctx, e, in, out))
}

// judge says what it means that a processor has returned an error, which may be nil.
func (x *export) judge(ctx context.Context, e *execution, out *codec, err error) verdict {
	silent := out.kind == thrift.INVALID_TMESSAGE_TYPE
	switch {
	case err == nil && silent && e.call.Type == rpcpacket.Call:
		return failed(fault.New(BadRequest, "", "method %s is one-way here, and was called for a result: generate caller and service from the same IDL", e.call.Method))
	case err == nil:
		return verdict{}
	case isNil(err):
		return x.faulty(e, fmt.Sprintf("the handler has returned a nil %T as its error: return nil", err))
	}
	v := verdict{code: CodeOf(err), why: err.Error()}
	if v.code == Declared {
		v.exception = declaredType(err)
	}
	coded := codedIn(err)
	switch {
	case coded != nil && (coded.Code == OK || !coded.Code.Known()):
		return x.faulty(e, fmt.Sprintf("the handler has returned an *rpc.Error with code %d, which is none", uint8(coded.Code)))
	case coded != nil:
		v.failure = bare(coded)
	case ctx.Err() != nil && errors.Is(err, ctx.Err()):
		v.failure = fault.New(fault.CodeOf(err), "", "the handler gave up: %s", v.why)
	case silent:
		v.failure = fault.New(Application, "", "%s", v.why)
	}
	return v
}

// bare is a coded error as its caller is told it: nothing of the program's is in it.
func bare(e *Error) *Error { return &Error{Code: e.Code, Msg: messageOf(e)} }

// isNil reports whether an error is a nil pointer of some type.
func isNil(err error) bool {
	v := reflect.ValueOf(err)
	return v.Kind() == reflect.Pointer && v.IsNil()
}

// faulty is the verdict about a handler that does what none may do. The stack is logged: after a panic it begins at the handler.
func (x *export) faulty(e *execution, why string) verdict {
	x.node.log.Error("rpc: handler is faulty", "service", x.name, "method", e.method(), "call", e.call.Call.String(), "why", why, "stack", string(debug.Stack()))
	v := failed(x.internal(e, why))
	v.broken = true
	return v
}

// internal is the error of a call whose handler, or whose service's state, is faulty.
func (x *export) internal(e *execution, why string) *Error {
	return fault.New(Internal, "", "service %s, method %s: %s", x.name, e.method(), why)
}

// method is the name of the method that is called, as far as it is known.
func (e *execution) method() string {
	if e.served != nil {
		return e.served.name
	}
	return e.call.Method.String()
}

// escape says how a function has left that has not returned: a recovered panic, or nil for runtime.Goexit. The value's
// methods may panic, too: fmt says so then.
func escape(panicked any) string {
	if panicked == nil {
		return "has ended its goroutine (runtime.Goexit, or FailNow of a test)"
	}
	return fmt.Sprintf("has panicked: %v", panicked)
}

// guarded calls a function of the program's, and makes an error of its panic. If the function ends the goroutine, so does guarded.
func guarded(what string, f func() error) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("%s %s", what, escape(v))
		}
	}()
	if err = f(); err != nil && isNil(err) {
		return fmt.Errorf("%s has returned a nil %T as its error: return nil", what, err)
	}
	return err
}

// takeBackAll takes back what an execution did that is cut off, and is not run again: what it has made of the service's state, and of
// memory. What it was to send, and to free, stays. It ends the node if the state cannot be restored: only the ledger knows the
// state then.
func (x *export) takeBackAll(e *execution) {
	if e.spoilt {
		return
	}
	if x.manager != nil && !x.undo("a call that has been cut off") {
		return
	}
	e.mu.Lock()
	e.spoilt, e.change, e.oneways, e.owing = true, nil, nil, 0
	e.account.freed, e.account.handed = nil, nil
	machines, called := e.recorded.machines, e.recorded.called
	e.mu.Unlock()
	if len(machines) == 0 {
		return
	}
	e.promote()
	if lent := x.node.questions.unheardOf(called, true); !x.node.questions.await(lent) {
		return
	}
	left, err := x.node.regions.rollBack(x.node.life.base, e.run(), machines)
	if err != nil {
		x.node.cannotCommit(err)
	}
	e.finds(left)
}

// undo brings the service's state back to what it was before a call. It reports false if that cannot be done: then the node ends, since
// only the ledger knows the state.
func (x *export) undo(what string) bool {
	err := x.manager.undo()
	if err != nil {
		x.node.fail(&Error{Code: Internal, Op: "service " + x.name, Msg: fmt.Sprintf("undo what %s did to the state: %v", what, err)})
	}
	return err == nil
}

// perform runs a call to its answer. If the program's code ends the goroutine meanwhile, another one goes on.
func (x *export) perform(e *execution) {
	returned := false
	defer func() {
		if returned {
			return
		}
		if v := recover(); v != nil {
			panic(v) // the fault is the runtime's own
		}
		go x.goOn(e)
	}()
	x.run(e)
	returned = true
}

// goOn answers a call whose goroutine the program's code has ended, and has those run that wait for its slot.
func (x *export) goOn(e *execution) {
	e.promote()
	x.node.calls.running.CompareAndSwap(e, nil)
	answered := false
	defer func() {
		if v := recover(); v != nil {
			panic(v) // likewise
		}
		if !answered {
			x.node.fail(&Error{Code: Internal, Op: "service " + x.name, Msg: "undo what a call that has been cut off did to the state: Restore " + escape(nil)})
		}
		go x.pool.work(x.pool.end(e))
	}()
	e.join()
	_ = e.trunk.finishMemory() // what takes effect after that is taken back, too
	x.brokeOff(e, x.faulty(e, "the handler, or a method of the service's state, "+escape(nil)))
	answered = true
}

// brokeOff answers a call whose handler has not come to an end of its own.
func (x *export) brokeOff(e *execution, v verdict) {
	x.takeBackAll(e)
	if e.call.Type == rpcpacket.Oneway {
		x.meter(e, v.code, 0)
		e.details.text = v.why
		x.complete(e, v.why)
		return
	}
	x.answerException(e, v.failure.Code, v.failure.Msg)
}
