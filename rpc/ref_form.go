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

// form is how values of a type stand in memory.
type form[T any] struct {
	encode func(T) ([]byte, error)
	decode func([]byte) (T, error)
}

// plainForm is the form of bytes and numbers.
func plainForm[T Plain]() form[T] { return form[T]{encode: encodePlain[T], decode: decodePlain[T]} }

// refConfig bounds what bytes in memory can make the library allocate.
var refConfig = &thrift.TConfiguration{MaxMessageSize: MaxRef, MaxFrameSize: MaxRef}

// structForm is the form of a struct, which construct makes with the IDL's defaults. T is
// a Struct.
func structForm[T any](construct func() T) form[T] {
	return form[T]{encode: encodeStruct[T], decode: func(b []byte) (T, error) {
		v := construct()
		return v, decodeStruct(any(v).(thrift.TStruct), b)
	}}
}

// zeroStruct makes a struct without the IDL's defaults.
func zeroStruct[T Struct]() T { return reflect.New(reflect.TypeFor[T]().Elem()).Interface().(T) }

func encodeStruct[T any](v T) ([]byte, error) {
	var none T
	if any(v) == any(none) {
		return nil, fmt.Errorf("a nil %T cannot be passed", v)
	}
	buf := thrift.NewTMemoryBuffer()
	if err := any(v).(thrift.TStruct).Write(context.Background(), thrift.NewTBinaryProtocolConf(buf, refConfig)); err != nil {
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
