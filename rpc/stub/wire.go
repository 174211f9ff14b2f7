package stub

import (
	"context"

	"github.com/apache/thrift/lib/go/thrift"

	"github.com/bifrost-rack/bifrost/rpc/idl/bifrost"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// Method is what a method's form by reference is called on the wire: a method
// of its own, in whose arguments and result a bifrost.Reference stands for each
// value that is marked. No IDL can declare such a name for Go. Under its own name
// the method stays what plain Thrift makes of it.
func Method(name string) string { return name + rpcpacket.RefSuffix }

// WriteFunc writes a field of a struct, as the code that Thrift generates does.
type WriteFunc = func(context.Context, thrift.TProtocol) error

// ReadFunc reads one.
type ReadFunc = func(context.Context, thrift.TProtocol) error

// WriteStruct writes a struct of these fields.
func WriteStruct(ctx context.Context, out thrift.TProtocol, name string, fields ...WriteFunc) error {
	if err := out.WriteStructBegin(ctx, name); err != nil {
		return thrift.PrependError(name+" begin: ", err)
	}
	for _, write := range fields {
		if err := write(ctx, out); err != nil {
			return thrift.PrependError(name+": ", err)
		}
	}
	if err := out.WriteFieldStop(ctx); err != nil {
		return thrift.PrependError(name+" stop: ", err)
	}
	return out.WriteStructEnd(ctx)
}

// WriteRef returns what writes a reference as a field; nothing for nil.
func WriteRef(name string, id int16, w *bifrost.Reference) WriteFunc {
	return func(ctx context.Context, out thrift.TProtocol) error {
		if w == nil {
			return nil
		}
		if err := out.WriteFieldBegin(ctx, name, thrift.STRUCT, id); err != nil {
			return err
		}
		if err := w.Write(ctx, out); err != nil {
			return err
		}
		return out.WriteFieldEnd(ctx)
	}
}

// ReadRef returns what reads a reference.
func ReadRef(w **bifrost.Reference) ReadFunc {
	return func(ctx context.Context, in thrift.TProtocol) error {
		*w = bifrost.NewReference()
		return (*w).Read(ctx, in)
	}
}

// ReadStruct reads a struct. field says what reads a field of that number and
// type; nil for an unknown one, which is skipped.
func ReadStruct(ctx context.Context, in thrift.TProtocol, field func(id int16, kind thrift.TType) ReadFunc) error {
	if _, err := in.ReadStructBegin(ctx); err != nil {
		return thrift.PrependError("struct begin: ", err)
	}
	for {
		_, kind, id, err := in.ReadFieldBegin(ctx)
		if err != nil {
			return thrift.PrependError("field begin: ", err)
		}
		if kind == thrift.STOP {
			return in.ReadStructEnd(ctx)
		}
		read := field(id, kind)
		if read == nil {
			err = in.Skip(ctx, kind)
		} else {
			err = read(ctx, in)
		}
		if err == nil {
			err = in.ReadFieldEnd(ctx)
		}
		if err != nil {
			return thrift.PrependError("field: ", err)
		}
	}
}

// Call is one method's form by reference, for Serve.
type Call struct {
	Name   string         // the method's, in the IDL
	Args   thrift.TStruct // to read the call into
	Oneway bool
	// Run calls the handler. It returns what to answer with, and the exception that is in
	// that, if the IDL declares it; nil and the error, if not.
	Run func(ctx context.Context) (thrift.TStruct, error)
}

// Serve is the body of a generated processor function.
func Serve(ctx context.Context, seq int32, in, out thrift.TProtocol, c Call) (bool, thrift.TException) {
	name := Method(c.Name)
	err := c.Args.Read(ctx, in)
	if end := in.ReadMessageEnd(ctx); err == nil {
		err = end
	}
	if err != nil {
		return false, answerFailure(ctx, name, seq, out, c.Oneway, thrift.PROTOCOL_ERROR, err)
	}
	result, failure := c.Run(ctx)
	if failure != nil && result == nil {
		return true, answerFailure(ctx, name, seq, out, c.Oneway, thrift.INTERNAL_ERROR, failure)
	}
	if c.Oneway {
		return true, nil
	}
	if err := writeMessage(ctx, name, thrift.REPLY, seq, out, result.Write); err != nil {
		return true, thrift.WrapTException(err)
	}
	if failure != nil { // Thrift's processors return it, too
		return true, thrift.WrapTException(failure)
	}
	return true, nil
}

// answerFailure answers with an application exception, as Thrift's processors do.
func answerFailure(ctx context.Context, name string, seq int32, out thrift.TProtocol, oneway bool, kind int32, err error) thrift.TException {
	if !oneway {
		x := thrift.NewTApplicationException(kind, "Internal error processing "+name+": "+err.Error())
		if werr := writeMessage(ctx, name, thrift.EXCEPTION, seq, out, x.Write); werr != nil {
			return thrift.WrapTException(werr)
		}
	}
	return thrift.WrapTException(err)
}

func writeMessage(ctx context.Context, name string, kind thrift.TMessageType, seq int32, out thrift.TProtocol, body WriteFunc) error {
	err := out.WriteMessageBegin(ctx, name, kind, seq)
	if err == nil {
		err = body(ctx, out)
	}
	if err == nil {
		err = out.WriteMessageEnd(ctx)
	}
	if err == nil {
		err = out.Flush(ctx)
	}
	return err
}
