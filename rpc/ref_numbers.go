package rpc

import (
	"encoding/binary"
	"fmt"
	"unsafe"
)

// number is what lists of numbers are made of.
type number interface {
	int8 | int16 | int32 | int64 | float64
}

// little says that numbers stand in this machine's memory as they stand in the rack's:
// then a list of them and its bytes are the same memory, and nothing is copied.
var little = binary.NativeEndian.Uint16([]byte{1, 0}) == 1

func encodePlain[T Plain](v T) ([]byte, error) {
	switch v := any(v).(type) {
	case []byte:
		return v, nil
	case []int8:
		return encodeNumbers(v)
	case []int16:
		return encodeNumbers(v)
	case []int32:
		return encodeNumbers(v)
	case []int64:
		return encodeNumbers(v)
	case []float64:
		return encodeNumbers(v)
	}
	return nil, fmt.Errorf("%T is no plain value", v)
}

func decodePlain[T Plain](b []byte) (v T, err error) {
	switch p := any(&v).(type) {
	case *[]byte:
		*p = b
	case *[]int8:
		*p, err = decodeNumbers[int8](b)
	case *[]int16:
		*p, err = decodeNumbers[int16](b)
	case *[]int32:
		*p, err = decodeNumbers[int32](b)
	case *[]int64:
		*p, err = decodeNumbers[int64](b)
	case *[]float64:
		*p, err = decodeNumbers[float64](b)
	}
	return v, err
}

// encodeNumbers returns the bytes of v, which may be v's own memory.
func encodeNumbers[E number](v []E) ([]byte, error) {
	if !little {
		return binary.Append(nil, binary.LittleEndian, v)
	}
	var e E
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(v))), len(v)*int(unsafe.Sizeof(e))), nil
}

// decodeNumbers returns the numbers in b, which may be b's own memory.
func decodeNumbers[E number](b []byte) ([]E, error) {
	var e E
	size := int(unsafe.Sizeof(e))
	if len(b)%size != 0 {
		return nil, fmt.Errorf("%d bytes are no list of %T", len(b), e)
	}
	at := unsafe.Pointer(unsafe.SliceData(b))
	if little && len(b) > 0 && uintptr(at)%unsafe.Alignof(e) == 0 {
		return unsafe.Slice((*E)(at), len(b)/size), nil
	}
	v := make([]E, len(b)/size)
	_, err := binary.Decode(b, binary.LittleEndian, v)
	return v, err
}
