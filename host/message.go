package host

import (
	"context"
	"errors"
	"fmt"

	"github.com/apache/thrift/lib/go/thrift"
)

// The child speaks Thrift's binary protocol. A caller may speak another one, and messages of the rack need checks of their own. So values
// are read from one protocol and written to the other, one after the other, as their encoding tells what they are.

// maxDepth is how deep containers and structs may be within each other, as in Thrift's own skip.
const maxDepth = thrift.DEFAULT_RECURSION_DEPTH

var errDeep = fmt.Errorf("containers and structs are more than %d deep within each other", maxDepth)

// fieldFunc may copy a field of the outermost struct in a way of its own. It reports whether it has.
type fieldFunc func(ctx context.Context, id int16, kind thrift.TType) (done bool, err error)

// copyStruct copies a struct.
func copyStruct(ctx context.Context, in, out thrift.TProtocol, depth int, field fieldFunc) error {
	if depth == 0 {
		return errDeep
	}
	if _, err := in.ReadStructBegin(ctx); err != nil {
		return err
	}
	if err := out.WriteStructBegin(ctx, ""); err != nil {
		return err
	}
	for {
		_, kind, id, err := in.ReadFieldBegin(ctx)
		if err != nil {
			return err
		}
		if kind == thrift.STOP {
			break
		}
		if err := copyField(ctx, in, out, kind, id, depth, field); err != nil {
			return err
		}
		if err := in.ReadFieldEnd(ctx); err != nil {
			return err
		}
	}
	if err := in.ReadStructEnd(ctx); err != nil {
		return err
	}
	return errors.Join(out.WriteFieldStop(ctx), out.WriteStructEnd(ctx))
}

func copyField(ctx context.Context, in, out thrift.TProtocol, kind thrift.TType, id int16, depth int, field fieldFunc) error {
	if field != nil {
		if done, err := field(ctx, id, kind); done || err != nil {
			return err
		}
	}
	if err := out.WriteFieldBegin(ctx, "", kind, id); err != nil {
		return err
	}
	if err := copyValue(ctx, in, out, kind, depth-1); err != nil {
		return err
	}
	return out.WriteFieldEnd(ctx)
}

// copyOf reads a value and writes it.
func copyOf[T any](ctx context.Context, read func(context.Context) (T, error), write func(context.Context, T) error) error {
	v, err := read(ctx)
	if err != nil {
		return err
	}
	return write(ctx, v)
}

// copyValue copies a value of a type.
func copyValue(ctx context.Context, in, out thrift.TProtocol, kind thrift.TType, depth int) error {
	switch kind {
	case thrift.BOOL:
		return copyOf(ctx, in.ReadBool, out.WriteBool)
	case thrift.BYTE:
		return copyOf(ctx, in.ReadByte, out.WriteByte)
	case thrift.I16:
		return copyOf(ctx, in.ReadI16, out.WriteI16)
	case thrift.I32:
		return copyOf(ctx, in.ReadI32, out.WriteI32)
	case thrift.I64:
		return copyOf(ctx, in.ReadI64, out.WriteI64)
	case thrift.DOUBLE:
		return copyOf(ctx, in.ReadDouble, out.WriteDouble)
	case thrift.STRING: // strings are bytes on the wire, and bytes may be part of a global pointer, which the reader checks
		return copyOf(ctx, in.ReadBinary, out.WriteBinary)
	case thrift.UUID:
		return copyOf(ctx, in.ReadUUID, out.WriteUUID)
	case thrift.STRUCT:
		return copyStruct(ctx, in, out, depth, nil)
	case thrift.LIST:
		elem, n, err := in.ReadListBegin(ctx)
		if err != nil {
			return err
		}
		err = errors.Join(out.WriteListBegin(ctx, elem, n), copyValues(ctx, in, out, n, depth-1, elem))
		return errors.Join(err, in.ReadListEnd(ctx), out.WriteListEnd(ctx))
	case thrift.SET:
		elem, n, err := in.ReadSetBegin(ctx)
		if err != nil {
			return err
		}
		err = errors.Join(out.WriteSetBegin(ctx, elem, n), copyValues(ctx, in, out, n, depth-1, elem))
		return errors.Join(err, in.ReadSetEnd(ctx), out.WriteSetEnd(ctx))
	case thrift.MAP:
		key, value, n, err := in.ReadMapBegin(ctx)
		if err != nil {
			return err
		}
		err = errors.Join(out.WriteMapBegin(ctx, key, value, n), copyValues(ctx, in, out, n, depth-1, key, value))
		return errors.Join(err, in.ReadMapEnd(ctx), out.WriteMapEnd(ctx))
	default:
		return fmt.Errorf("a value of Thrift type %d, which there is not", kind)
	}
}

// copyValues copies n values of each of the types, in turns.
func copyValues(ctx context.Context, in, out thrift.TProtocol, n, depth int, kinds ...thrift.TType) error {
	if depth <= 0 && n > 0 {
		return errDeep
	}
	for range n {
		for _, kind := range kinds {
			if err := copyValue(ctx, in, out, kind, depth); err != nil {
				return err
			}
		}
	}
	return nil
}

// binaryOver is Thrift's binary protocol over a buffer.
func binaryOver(b thrift.TTransport) *thrift.TBinaryProtocol {
	return thrift.NewTBinaryProtocolConf(b, &thrift.TConfiguration{
		MaxMessageSize: mostMessage, MaxFrameSize: mostMessage, TBinaryStrictRead: new(true), TBinaryStrictWrite: new(true),
	})
}

// memory is a buffer of Thrift's that fails once more than a limit has been written to it.
type memory struct {
	*thrift.TMemoryBuffer
	limit int
}

func newMemory(limit int) *memory { return &memory{thrift.NewTMemoryBuffer(), limit} }

func (m *memory) fits(n int) error {
	if m.Len()+n > m.limit {
		return fmt.Errorf("in the binary protocol it has more than %d bytes: give the host a larger --max-message, or pass it by reference", m.limit)
	}
	return nil
}

// Write implements io.Writer.
func (m *memory) Write(p []byte) (int, error) {
	if err := m.fits(len(p)); err != nil {
		return 0, err
	}
	return m.Buffer.Write(p)
}

// WriteByte implements io.ByteWriter.
func (m *memory) WriteByte(c byte) error {
	if err := m.fits(1); err != nil {
		return err
	}
	return m.Buffer.WriteByte(c)
}

// WriteString implements io.StringWriter.
func (m *memory) WriteString(s string) (int, error) {
	if err := m.fits(len(s)); err != nil {
		return 0, err
	}
	return m.Buffer.WriteString(s)
}

// message is a Thrift message of the child, of which the beginning has been read.
type message struct {
	thrift.TProtocol
	name string
	kind thrift.TMessageType
	body []byte // what follows
}

// openMessage reads how a Thrift message of the child begins.
func openMessage(ctx context.Context, b []byte) (m message, err error) {
	buffer := thrift.NewTMemoryBuffer()
	buffer.Write(b)
	p := binaryOver(buffer)
	m.TProtocol = p
	if m.name, m.kind, _, err = p.ReadMessageBegin(ctx); err != nil {
		return m, err
	}
	m.body = b[len(b)-buffer.Len():]
	return m, nil
}

// copyTo copies the rest of the message, and refuses what follows.
func (m *message) copyTo(ctx context.Context, out thrift.TProtocol, field fieldFunc) error {
	if err := copyStruct(ctx, m.TProtocol, out, maxDepth, field); err != nil {
		return err
	}
	if n := m.Transport().RemainingBytes(); n > 0 {
		return fmt.Errorf("%d bytes follow the message", n)
	}
	return nil
}
