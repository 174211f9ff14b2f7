package rpc

import (
	"cmp"
	"errors"
	"fmt"
	"reflect"

	"github.com/apache/thrift/lib/go/thrift"

	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// Error is what every call fails with unless the callee's handler or Thrift
// itself raised the exception: a coded error that says what was done, what went
// wrong, and whether it arose here or on the other side (Remote).
//
// errors.As also finds a [thrift.TTransportException] in it ([Deadline], [Canceled],
// [Unavailable]) or a [thrift.TApplicationException] (all other codes).
//
// [NeverBegan] tells whether the call certainly did not begin.
//
// Exceptions that the IDL declares arrive as the generated types, and errors
// that it does not declare as thrift.TApplicationException, as in plain Thrift.
type Error = fault.Error

// Code says what went wrong.
type Code = fault.Code

// The codes; package fault says what a caller can do about each.
const (
	OK               = fault.OK
	PermissionDenied = fault.PermissionDenied
	NoSuchMethod     = fault.NoSuchMethod
	Deadline         = fault.Deadline
	Canceled         = fault.Canceled
	Overloaded       = fault.Overloaded
	Unavailable      = fault.Unavailable
	BadRequest       = fault.BadRequest
	NotFound         = fault.NotFound
	NoSpace          = fault.NoSpace
	Nondeterminism   = fault.Nondeterminism
	Deadlock         = fault.Deadlock
	Stale            = fault.Stale
	Internal         = fault.Internal
	Application      = fault.Application
	Unsupported      = fault.Unsupported
	Declared         = fault.Declared
)

// Errorf returns an error for a handler to fail with: it reaches the caller with
// its code, as an *Error that is Remote.
func Errorf(code Code, format string, args ...any) *Error {
	return fault.New(code, "", format, args...)
}

// CodeOf returns the code of a call's error: OK for nil, [Declared] for
// exceptions that the IDL declares, [Application] for those that it does not, [NoSuchMethod]
// and [BadRequest] where Thrift says so, [Internal] for foreign errors and nil pointers that are errors.
func CodeOf(err error) Code {
	var coded *Error
	if err == nil || errors.As(err, &coded) {
		return fault.CodeOf(err)
	}
	var app thrift.TApplicationException
	if errors.As(err, &app) && !isNil(app) {
		switch app.TypeId() {
		case thrift.UNKNOWN_METHOD:
			return NoSuchMethod
		case thrift.PROTOCOL_ERROR, thrift.INVALID_MESSAGE_TYPE_EXCEPTION, thrift.WRONG_METHOD_NAME:
			return BadRequest
		}
		return Application
	}
	if declaredType(err) != "" {
		return Declared
	}
	return fault.CodeOf(err)
}

// declaredType is the name of the type of an exception that the IDL declares; "" if an error is none.
func declaredType(err error) string {
	var declared thrift.TException
	if !errors.As(err, &declared) || isNil(declared) || declared.TExceptionType() != thrift.TExceptionTypeCompiled {
		return ""
	}
	if named, ok := declared.(interface{ DeclaredName() string }); ok { // one whose type is not generated (package host)
		return named.DeclaredName()
	}
	t := reflect.TypeOf(declared)
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	return cmp.Or(t.Name(), t.String())
}

// Policy is what becomes of a call when a node fails.
type Policy = rpcpacket.Policy

// The policies.
const (
	// PolicyNone: at most once. The call is bound to the callee's incarnation.
	PolicyNone = rpcpacket.PolicyNone
	// PolicyRecover: exactly once. What a failure cut off is run again.
	PolicyRecover = rpcpacket.PolicyRecover
	// PolicyFateShare takes the other side's unfinished execution back, too.
	PolicyFateShare = rpcpacket.PolicyFateShare
	// PolicyTainted does so to all unfinished descendants. They are of the caller's deployment, or their methods
	// have a policy that shares fates; see WithMethodPolicy.
	PolicyTainted = rpcpacket.PolicyTainted
)

// failure is how a call's coded error reaches the program: errors.As finds the *Error in
// it, and what users of Thrift look for.
type failure struct{ coded *Error }

var _ interface{ As(any) bool } = failure{}

// Error is the coded error's text, and what became of the call if that is in doubt.
func (f failure) Error() string {
	_, doubtful := f.transport()
	switch {
	case f.coded.NeverBegan:
		return f.coded.Error() + "; the call never began"
	case doubtful:
		return f.coded.Error() + "; the call may have run"
	}
	return f.coded.Error()
}

// Unwrap returns the *Error.
func (f failure) Unwrap() error { return f.coded }

// As implements what errors.As asks: a thrift.TTransportException for what became of
// the connection, as it were (Deadline is TIMED_OUT, Unavailable is NOT_OPEN), and a
// thrift.TApplicationException for all else.
func (f failure) As(target any) bool {
	kind, transport := f.transport()
	switch t := target.(type) {
	case *thrift.TTransportException:
		if transport {
			*t = thrift.NewTTransportException(kind, f.Error())
		}
		return transport
	case *thrift.TApplicationException:
		if !transport {
			*t = thrift.NewTApplicationException(f.application(), f.Error())
		}
		return !transport
	}
	return false
}

// transport is Thrift's number for what a lost connection would have been.
func (f failure) transport() (kind int, ok bool) {
	switch f.coded.Code {
	case Deadline:
		return thrift.TIMED_OUT, true
	case Unavailable:
		return thrift.NOT_OPEN, true
	case Canceled:
		return thrift.UNKNOWN_TRANSPORT_EXCEPTION, true
	}
	return 0, false
}

// application is Thrift's number for what the other side, or the runtime, refuses.
func (f failure) application() int32 {
	switch f.coded.Code {
	case NoSuchMethod:
		return thrift.UNKNOWN_METHOD
	case BadRequest:
		return thrift.PROTOCOL_ERROR
	case Internal, Application:
		return thrift.INTERNAL_ERROR
	}
	return thrift.UNKNOWN_APPLICATION_EXCEPTION
}

// asThrift makes a call's error one in which Thrift's kinds are found.
func asThrift(err error) error {
	if e, ok := err.(*Error); ok { //nolint:errorlint // what is wrapped stays as it is
		return failure{e}
	}
	return err
}

// errManyRegions refuses what the lists of a message have no room for.
var errManyRegions = fmt.Errorf("global pointers into more than %d regions in one message: put the pointers into a region, and pass a pointer to that", rpcpacket.MaxRegions)
