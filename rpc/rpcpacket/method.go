package rpcpacket

import (
	"bytes"
	"crypto/sha256"
	"fmt"
)

// Method is a method's name as the switch matches it: 16 bytes, so that no
// parser has to deal with a variable length (thesis section 5.2).
type Method [16]byte

// MethodOf returns the wire form of a method name. A name of up to 16 bytes is
// padded with zeros; a longer one becomes its first 7 bytes, '~' and the first
// 8 bytes of its SHA-256, which is stable across programs. The full name is
// known from registration. A name has 1 to 255 bytes, none of them zero.
func MethodOf(name string) (m Method, err error) {
	if len(name) == 0 || len(name) > 255 {
		return m, fmt.Errorf("method name of %d bytes: must have 1 to 255", len(name))
	}
	if bytes.IndexByte([]byte(name), 0) >= 0 {
		return m, fmt.Errorf("method name %q contains a zero byte", name)
	}
	if len(name) <= len(m) {
		copy(m[:], name)
		return m, nil
	}
	sum := sha256.Sum256([]byte(name))
	copy(m[:7], name)
	m[7] = '~'
	copy(m[8:], sum[:8])
	return m, nil
}

// String returns the name if it is whole, or a readable form of the shortened one.
func (m Method) String() string {
	if m[7] == '~' && m[15] != 0 {
		return fmt.Sprintf("%s~%x", m[:7], m[8:])
	}
	return string(bytes.TrimRight(m[:], "\x00"))
}
