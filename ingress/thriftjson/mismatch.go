package thriftjson

import (
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/bifrost-rack/bifrost/rpc/gen"
)

// MaxDepth is how many objects and arrays may stand within each other, in either direction.
const MaxDepth = 64

// Mismatch says where JSON does not fit the IDL.
type Mismatch struct {
	// Pointer is the place: a JSON Pointer (RFC 6901), "" for the whole.
	Pointer string
	// Expected and Found say, for people, what should stand there and what does. Of a long value only the beginning is told.
	Expected, Found string
}

// Error implements error.
func (m *Mismatch) Error() string {
	at := m.Pointer
	if at == "" {
		at = "the body"
	}
	return fmt.Sprintf("%s: expected %s, found %s", at, m.Expected, m.Found)
}

// mostFound is how many bytes of a value are told.
const mostFound = 64

// shown is a value as an error tells it.
func shown(value string) string {
	if len(value) > mostFound {
		value = strings.ToValidUTF8(value[:mostFound], "") + "…"
	}
	return value
}

// badSyntax makes a Mismatch of what the JSON library refuses.
func badSyntax(err error) error {
	var s *jsontext.SyntacticError
	if !errors.As(err, &s) {
		return &Mismatch{Expected: "JSON", Found: err.Error()}
	}
	m := &Mismatch{Pointer: string(s.JSONPointer), Expected: "JSON", Found: fmt.Sprintf("at byte %d: %v", s.ByteOffset, s.Err)}
	switch {
	case errors.Is(err, jsontext.ErrDuplicateName):
		m.Expected, m.Found = "each name once", "the name again"
	case errors.Is(err, io.ErrUnexpectedEOF):
		m.Expected, m.Found = "more", fmt.Sprintf("the end of the body, at byte %d", s.ByteOffset)
	}
	return m
}

// describe says what a type looks like in JSON.
func describe(t *gen.Type) string {
	switch t.Kind {
	case gen.Bool:
		return "true or false"
	case gen.I8:
		return "a whole number of -128 to 127"
	case gen.I16:
		return "a whole number of -32768 to 32767"
	case gen.I32:
		return "a whole number of -2147483648 to 2147483647"
	case gen.I64:
		return "a whole number of -9223372036854775808 to 9223372036854775807, as a number or a string"
	case gen.Double:
		return `a number, "NaN", "Infinity" or "-Infinity"`
	case gen.Binary:
		return "a string in base64"
	case gen.UUID:
		return "a string like 00112233-4455-6677-8899-aabbccddeeff"
	case gen.Enum:
		return "a value of enum " + t.Name + ": " + enumNames(t)
	case gen.List:
		return "an array"
	case gen.Set:
		return "an array without an element twice"
	case gen.Map:
		if Named(t.Key) {
			return "an object"
		}
		return "an array of pairs [key, value]"
	case gen.Struct, gen.Exception:
		return "an object: " + t.Kind.String() + " " + t.Name
	case gen.Union:
		return "an object with one member: union " + t.Name
	case gen.String:
	}
	return "a string"
}

// mostNames is how many values of an enum an error names.
const mostNames = 20

func enumNames(t *gen.Type) string {
	var names []string
	for i, v := range t.Values {
		if i == mostNames {
			names = append(names, "…")
			break
		}
		names = append(names, fmt.Sprintf("%s (%d)", v.Name, v.Number))
	}
	return strings.Join(names, ", ")
}

// Named reports whether a map with such keys is an object in JSON.
func Named(key *gen.Type) bool { return key.Kind <= gen.Enum }

// Callable says why a method cannot be called with JSON: nil if it can.
func Callable(m *gen.Method) error {
	if m.Problem != nil {
		return m.Problem
	}
	seen := map[*gen.Type]bool{}
	for _, list := range [][]gen.Field{m.Arguments, m.Throws, {{Name: "the result", Type: m.Result}}} {
		for _, f := range list {
			if hasPointer(f.Type, seen) {
				return fmt.Errorf("%s has a global pointer, which means something inside of the rack only", f.Name)
			}
		}
	}
	return nil
}

func hasPointer(t *gen.Type, seen map[*gen.Type]bool) bool {
	if t == nil || seen[t] {
		return false
	}
	seen[t] = true
	if t.IsPointer() || hasPointer(t.Key, seen) || hasPointer(t.Elem, seen) {
		return true
	}
	for _, f := range t.Fields {
		if hasPointer(f.Type, seen) {
			return true
		}
	}
	return false
}
