package p4rtclient

import (
	"encoding/binary"
	"fmt"
	"math/bits"
	"net/netip"
	"strings"
)

// Value is an unsigned integer of any width: its big-endian bytes in P4Runtime's
// canonical form, the shortest one, which is one zero byte for 0. Values are
// equal if and only if they are ==. The zero Value is not a value.
type Value string

// Uint returns a number as a Value.
func Uint(n uint64) Value {
	var b [8]byte
	binary.BigEndian.PutUint64(b[:], n)
	return Bytes(b[:])
}

// Bytes returns big-endian bytes as a Value.
func Bytes(b []byte) Value {
	i := 0
	for i < len(b)-1 && b[i] == 0 {
		i++
	}
	if len(b) == 0 {
		return "\x00"
	}
	return Value(b[i:])
}

// Addr returns an IPv6 address as a Value of 128 bits.
func Addr(a netip.Addr) Value {
	b := a.As16()
	return Bytes(b[:])
}

// Uint64 returns the value if it fits.
func (v Value) Uint64() (n uint64, ok bool) {
	if len(v) > 8 {
		return 0, false
	}
	for i := range len(v) {
		n = n<<8 | uint64(v[i])
	}
	return n, true
}

// Addr returns a value of 128 bits as an IPv6 address.
func (v Value) Addr() (a netip.Addr, ok bool) {
	var b [16]byte
	if len(v) > len(b) {
		return a, false
	}
	copy(b[len(b)-len(v):], v)
	return netip.AddrFrom16(b), true
}

// String prints the value in hexadecimal.
func (v Value) String() string { return fmt.Sprintf("%#x", string(v)) }

// width is how many bits the value needs.
func (v Value) width() int {
	if v == "" {
		return 0
	}
	return 8*(len(v)-1) + bits.Len8(v[0])
}

// fit returns the canonical form if the value has at most width bits.
func (v Value) fit(width int) (Value, error) {
	if v == "" {
		return "", fmt.Errorf("no value")
	}
	c := v
	for len(c) > 1 && c[0] == 0 {
		c = c[1:]
	}
	if c.width() > width {
		return "", fmt.Errorf("%s needs %d bits, there are %d", v, c.width(), width)
	}
	return c, nil
}

// trailingZeros reports whether the lowest n bits are zero.
func (v Value) trailingZeros(n int) bool {
	whole := min(n/8, len(v))
	if strings.Trim(string(v[len(v)-whole:]), "\x00") != "" {
		return false
	}
	if whole < n/8 || n%8 == 0 || whole == len(v) {
		return true
	}
	return v[len(v)-whole-1]&(1<<(n%8)-1) == 0
}
