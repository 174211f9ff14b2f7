package rpc

import (
	"bytes"
	"context"
	"fmt"
	"reflect"

	"github.com/apache/thrift/lib/go/thrift"
)

// Plain is what stands in memory as it is: binary, and lists of fixed-size
// numbers, which stand one after the other in little-endian order.
type Plain interface {
	[]byte | []int8 | []int16 | []int32 | []int64 | []float64
}

// Struct is a pointer to a struct that the Thrift compiler has generated; it
// stands in memory in Thrift's binary protocol. Global pointers within it are not
// lent: the rack sees only those in messages.
type Struct interface {
	comparable
	thrift.TStruct
}

// Form is how values of a type stand in memory.
type Form[T any] struct {
	encode func(T) ([]byte, error)
	decode func([]byte) (T, error)
}

// PlainForm is the form of bytes and numbers.
func PlainForm[T Plain]() Form[T] { return Form[T]{encode: encodePlain[T], decode: decodePlain[T]} }

// refConfig bounds what bytes in memory can make the library allocate.
var refConfig = &thrift.TConfiguration{MaxMessageSize: MaxRef, MaxFrameSize: MaxRef}

// StructForm is the form of a struct, which construct, unless it is nil, makes with the
// IDL's defaults.
func StructForm[T Struct](construct func() T) Form[T] {
	if construct == nil {
		construct = func() T { return reflect.New(reflect.TypeFor[T]().Elem()).Interface().(T) }
	}
	return Form[T]{encode: encodeStruct[T], decode: func(b []byte) (T, error) {
		v := construct()
		return v, decodeStruct(v, b)
	}}
}

func encodeStruct[T Struct](v T) ([]byte, error) {
	var none T
	if v == none {
		return nil, fmt.Errorf("a nil %T cannot be passed", v)
	}
	buf := thrift.NewTMemoryBuffer()
	if err := v.Write(context.Background(), thrift.NewTBinaryProtocolConf(buf, refConfig)); err != nil {
		return nil, err
	}
	return buf.Bytes(), nil
}

func decodeStruct(v thrift.TStruct, b []byte) error {
	buf := &thrift.TMemoryBuffer{Buffer: bytes.NewBuffer(b)}
	if err := v.Read(context.Background(), thrift.NewTBinaryProtocolConf(buf, refConfig)); err != nil {
		return err
	}
	if n := buf.Len(); n != 0 {
		return fmt.Errorf("%d bytes behind the %T", n, v)
	}
	return nil
}
