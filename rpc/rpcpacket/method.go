package rpcpacket

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Method is a method's name as the switch matches it: 16 bytes, so that no
// parser has to deal with a variable length (thesis section 5.2).
type Method [16]byte

// MethodOf returns the wire form of a method name. A name of up to 16 bytes is
// padded with zeros; a longer one becomes its first 7 bytes, '~' and the first
// 8 bytes of its SHA-256, which is stable across programs. The full name is
// known from registration. A name has 1 to 255 bytes of printable characters without spaces.
func MethodOf(name string) (m Method, err error) {
	if len(name) == 0 || len(name) > 255 {
		return m, fmt.Errorf("method name of %d bytes: must have 1 to 255", len(name))
	}
	if !printable(name) {
		return m, fmt.Errorf("method name %q: must be printable characters without spaces", name)
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

// printable reports whether people can read and type a name.
func printable(name string) bool {
	return utf8.ValidString(name) && !strings.ContainsFunc(name, func(r rune) bool { return !unicode.IsPrint(r) || unicode.IsSpace(r) })
}

// String returns the name if it is whole, or a readable form of the shortened one. What MethodOf
// does not make is quoted, in ASCII.
func (m Method) String() string {
	name := string(bytes.TrimRight(m[:], "\x00"))
	if m[7] == '~' && m[15] != 0 {
		name = fmt.Sprintf("%s~%x", bytes.ToValidUTF8(m[:7], nil), m[8:]) // which may end within a character
	}
	if !printable(name) {
		return strconv.QuoteToASCII(string(m[:]))
	}
	return name
}
