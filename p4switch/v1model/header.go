package v1model

import "fmt"

// ValidField is the index of the hidden one-bit field of every header that
// tells whether the header is valid.
const ValidField = -1

// Field is one field of a header type.
type Field struct {
	Name string
	// Width is in bits. A variable-length field has width 0 at rest and at most
	// MaxWidth when extracted.
	Width    int
	MaxWidth int
	// Signed fields hold two's complement numbers.
	Signed bool
	Varbit bool
	// Offset is where the field begins, in bits from the header's start, with
	// the variable-length field counted as empty.
	Offset int
}

// HeaderType is a layout that header instances share.
type HeaderType struct {
	Name   string
	Fields []Field
	// Bits is the width of all fixed fields together, a multiple of 8.
	Bits int
	// Varbit is the index of the variable-length field, or -1.
	Varbit int
	index  map[string]int
}

// Field returns the index of a field by name, or false.
func (t *HeaderType) Field(name string) (int, bool) {
	if name == "$valid$" {
		return ValidField, true
	}
	i, ok := t.index[name]
	return i, ok
}

// Header is one header or metadata instance.
type Header struct {
	Name string
	// Index is the instance's place in Program.Headers.
	Index int
	Type  *HeaderType
	// Metadata is always valid, never on the wire, and zero when a packet comes.
	Metadata bool
	// Union is the union that the header is a member of, or nil.
	Union *Union

	used []bool
}

// FieldRef names one field of one instance; Field may be ValidField.
type FieldRef struct {
	Header *Header
	Field  int
}

// Def is the field's definition; for ValidField, one unsigned bit.
func (r FieldRef) Def() Field {
	return r.Header.Type.field(r.Field)
}

// Width is the field's width in bits.
func (r FieldRef) Width() int { return r.Def().Width }

// Bytes is the field's width rounded up to bytes.
func (r FieldRef) Bytes() int { return (r.Width() + 7) / 8 }

// Valid tells whether the reference refers to anything.
func (r FieldRef) Valid() bool { return r.Header != nil }

func (r FieldRef) String() string {
	if r.Header == nil {
		return "<none>"
	}
	return fmt.Sprintf("%s.%s", r.Header.Name, r.Def().Name)
}

// Stack is a header stack.
type Stack struct {
	Name    string
	Index   int // in Program.Stacks
	Type    *HeaderType
	Headers []*Header
}

// UnionType says which headers a union may hold.
type UnionType struct {
	Name    string
	Members []UnionMember
}

// UnionMember is one alternative of a union type.
type UnionMember struct {
	Name string
	Type *HeaderType
}

func (t *UnionType) member(name string) (int, bool) {
	for i, m := range t.Members {
		if m.Name == name {
			return i, true
		}
	}
	return 0, false
}

// Union is a union instance: at most one of its headers is valid.
type Union struct {
	Name    string
	Index   int // in Program.Unions
	Type    *UnionType
	Headers []*Header
}

// UnionStack is a stack of header unions.
type UnionStack struct {
	Name   string
	Index  int // in Program.UnionStacks
	Type   *UnionType
	Unions []*Union
}

// field is the definition of a field by index, the hidden one included.
func (t *HeaderType) field(i int) Field {
	if i == ValidField {
		return Field{Name: "$valid$", Width: 1}
	}
	return t.Fields[i]
}
