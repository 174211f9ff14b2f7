package p4info

import (
	"encoding/binary"
	"fmt"
	"math/big"
	"slices"
	"strings"

	configv1 "github.com/p4lang/p4runtime/go/p4/config/v1"
	p4v1 "github.com/p4lang/p4runtime/go/p4/v1"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// form is what a Type looks like in a P4Data message.
type form uint8

const (
	bitstring form = iota + 1 // bit<W>
	sdnString                 // of a type that is translated to strings
	signed                    // int<W>
	boolean
	enumValue // serializable enum
	enumName  // an enum without values of its own, which P4Runtime has names for
	errorName // error
	structure
	tuple
)

// Type is the type of a register's cell or of a digest's sample, as far as
// v1model lets them be: integers, bool, enums, errors, and structs and tuples of
// those.
type Type struct {
	form    form
	width   int // bits, of a leaf; 0 of a string
	strings *Strings
	members []*Type
	names   []string // of an enum or error, by the number that the data plane has for each
}

// nameBits is how wide p4c makes an enum or error in the data plane.
const nameBits = 32

// coreErrors are the errors that P4's core library declares, ahead of a program's
// own. p4c leaves the list out if the program declares none.
var coreErrors = []string{
	"NoError", "PacketTooShort", "NoMatch", "StackOutOfBounds", "HeaderTooShort", "ParserTimeout", "ParserInvalidArgument",
}

// Leaves is how many values a value of this type flattens to.
func (t *Type) Leaves() int {
	if t.form != structure && t.form != tuple {
		return 1
	}
	n := 0
	for _, m := range t.members {
		n += m.Leaves()
	}
	return n
}

// Width is the width in bits of a value that is a single leaf, 0 of others and of strings.
func (t *Type) Width() int { return t.width }

// Strings is the type of a value that is translated to strings, nil of others.
func (t *Type) Strings() *Strings { return t.strings }

// Data builds the P4Data message for the given leaf values, which are in
// declaration order and big-endian.
func (t *Type) Data(leaves [][]byte) (*p4v1.P4Data, error) {
	if want := t.Leaves(); len(leaves) != want {
		return nil, fmt.Errorf("value has %d fields, its type %d", len(leaves), want)
	}
	d, _ := t.build(leaves)
	return d, nil
}

func (t *Type) build(leaves [][]byte) (d *p4v1.P4Data, rest [][]byte) {
	switch t.form {
	case structure, tuple:
		s := &p4v1.P4StructLike{Members: make([]*p4v1.P4Data, len(t.members))}
		numbers := make([]number, len(t.members)) // what nearly all members are
		for i, m := range t.members {
			if m.form == bitstring {
				s.Members[i], leaves = numbers[i].data(leaves[0]), leaves[1:]
				continue
			}
			s.Members[i], leaves = m.build(leaves)
		}
		if t.form == structure {
			return &p4v1.P4Data{Data: &p4v1.P4Data_Struct{Struct: s}}, leaves
		}
		return &p4v1.P4Data{Data: &p4v1.P4Data_Tuple{Tuple: s}}, leaves
	default:
		return t.leaf(leaves[0]), leaves[1:]
	}
}

// number is the messages of an unsigned number.
type number struct {
	msg  p4v1.P4Data
	kind p4v1.P4Data_Bitstring
}

// data makes the message for a value, big-endian.
func (n *number) data(b []byte) *p4v1.P4Data {
	if len(b) == 0 {
		b = []byte{0}
	}
	n.kind.Bitstring = Canonical(b)
	n.msg.Data = &n.kind
	return &n.msg
}

func (t *Type) leaf(b []byte) *p4v1.P4Data {
	if t.form == bitstring {
		return new(number).data(b)
	}
	if len(b) == 0 {
		b = []byte{0}
	}
	switch t.form {
	case sdnString:
		return &p4v1.P4Data{Data: &p4v1.P4Data_Bitstring{Bitstring: t.strings.Text(b)}}
	case boolean:
		return &p4v1.P4Data{Data: &p4v1.P4Data_Bool{Bool: !allZero(b)}}
	case enumValue:
		return &p4v1.P4Data{Data: &p4v1.P4Data_EnumValue{EnumValue: Canonical(b)}}
	case enumName:
		return &p4v1.P4Data{Data: &p4v1.P4Data_Enum{Enum: t.name(b)}}
	case errorName:
		return &p4v1.P4Data{Data: &p4v1.P4Data_Error{Error: t.name(b)}}
	default:
		return &p4v1.P4Data{Data: &p4v1.P4Data_Bitstring{Bitstring: narrowSigned(b, t.width)}}
	}
}

// name is what a value is called. A value that has no name is its number.
func (t *Type) name(b []byte) string {
	n := new(big.Int).SetBytes(b)
	if n.IsUint64() && n.Uint64() < uint64(len(t.names)) {
		return t.names[n.Uint64()]
	}
	return n.String()
}

// named is the value of a name.
func (t *Type) named(name string) ([]byte, error) {
	i := slices.Index(t.names, name)
	if i < 0 {
		return nil, status.Errorf(codes.InvalidArgument, "%q is none of %s", name, strings.Join(t.names, ", "))
	}
	return binary.BigEndian.AppendUint32(nil, uint32(i)), nil
}

// Cell reads a leaf value out of a P4Data message, as wide as the type.
func (t *Type) Cell(d *p4v1.P4Data) ([]byte, error) {
	switch v := d.GetData().(type) {
	case *p4v1.P4Data_Bitstring:
		if t.form == sdnString {
			return t.strings.Bytes(v.Bitstring)
		}
		if t.form == signed {
			return widenSigned(v.Bitstring, t.width), invalid(checkSigned(v.Bitstring, t.width))
		}
		if t.form == bitstring {
			return Widen(v.Bitstring, t.width), invalid(CheckWidth(v.Bitstring, t.width))
		}
	case *p4v1.P4Data_EnumValue:
		if t.form == enumValue {
			return Widen(v.EnumValue, t.width), invalid(CheckWidth(v.EnumValue, t.width))
		}
	case *p4v1.P4Data_Enum:
		if t.form == enumName {
			return t.named(v.Enum)
		}
	case *p4v1.P4Data_Error:
		if t.form == errorName {
			return t.named(v.Error)
		}
	case *p4v1.P4Data_Bool:
		if t.form == boolean {
			if v.Bool {
				return []byte{1}, nil
			}
			return []byte{0}, nil
		}
	}
	return nil, status.Errorf(codes.InvalidArgument, "data has the form %T, which is not the cell's", d.GetData())
}

// invalid turns a byte string error into the INVALID_ARGUMENT that the sections
// about table entries, action parameters and registers ask for.
func invalid(err error) error {
	if err == nil {
		return nil
	}
	return status.Error(codes.InvalidArgument, status.Convert(err).Message())
}

// cellType is sampleType restricted to a single leaf.
func (p *parser) cellType(s *configv1.P4DataTypeSpec) (*Type, error) {
	t, err := p.sampleType(s)
	if err == nil && (t.form == structure || t.form == tuple) {
		err = fmt.Errorf("cells of a compound type are not supported")
	}
	return t, err
}

func (p *parser) sampleType(s *configv1.P4DataTypeSpec) (*Type, error) {
	return p.typeSpec(s, 0)
}

// maxTypeDepth bounds nesting, so that a struct that contains itself is an error.
const maxTypeDepth = 16

func (p *parser) typeSpec(s *configv1.P4DataTypeSpec, depth int) (*Type, error) {
	if depth > maxTypeDepth {
		return nil, fmt.Errorf("type is nested deeper than %d", maxTypeDepth)
	}
	info := p.msg.GetTypeInfo()
	switch v := s.GetTypeSpec().(type) {
	case *configv1.P4DataTypeSpec_Bitstring:
		return bitstringType(v.Bitstring)
	case *configv1.P4DataTypeSpec_Bool:
		return &Type{form: boolean, width: 1}, nil
	case *configv1.P4DataTypeSpec_SerializableEnum:
		w, err := width("enum "+v.SerializableEnum.GetName(), info.GetSerializableEnums()[v.SerializableEnum.GetName()].GetUnderlyingType().GetBitwidth())
		return &Type{form: enumValue, width: w}, err
	case *configv1.P4DataTypeSpec_Enum:
		spec := info.GetEnums()[v.Enum.GetName()]
		if spec == nil {
			return nil, fmt.Errorf("enum %q is unknown", v.Enum.GetName())
		}
		t := &Type{form: enumName, width: nameBits}
		for _, m := range spec.GetMembers() {
			t.names = append(t.names, m.GetName())
		}
		return t, nil
	case *configv1.P4DataTypeSpec_Error:
		t := &Type{form: errorName, width: nameBits, names: info.GetError().GetMembers()}
		if len(t.names) == 0 {
			t.names = coreErrors
		}
		return t, nil
	case *configv1.P4DataTypeSpec_NewType:
		return p.newType(v.NewType.GetName(), depth)
	case *configv1.P4DataTypeSpec_Tuple:
		return p.compound(tuple, v.Tuple.GetMembers(), depth)
	case *configv1.P4DataTypeSpec_Struct:
		spec := info.GetStructs()[v.Struct.GetName()]
		if spec == nil {
			return nil, fmt.Errorf("struct %q is unknown", v.Struct.GetName())
		}
		var members []*configv1.P4DataTypeSpec
		for _, m := range spec.GetMembers() {
			members = append(members, m.GetTypeSpec())
		}
		return p.compound(structure, members, depth)
	}
	return nil, fmt.Errorf("type %T is not supported", s.GetTypeSpec())
}

func (p *parser) compound(f form, members []*configv1.P4DataTypeSpec, depth int) (*Type, error) {
	t := &Type{form: f}
	for _, m := range members {
		mt, err := p.typeSpec(m, depth+1)
		if err != nil {
			return nil, err
		}
		t.members = append(t.members, mt)
	}
	return t, nil
}

func (p *parser) newType(name string, depth int) (*Type, error) {
	switch v := p.msg.GetTypeInfo().GetNewTypes()[name].GetRepresentation().(type) {
	case *configv1.P4NewTypeSpec_OriginalType:
		return p.typeSpec(v.OriginalType, depth+1)
	case *configv1.P4NewTypeSpec_TranslatedType:
		if s, err := p.stringType(name); s != nil || err != nil {
			return &Type{form: sdnString, strings: s}, err
		}
		w, err := width("type "+name, v.TranslatedType.GetSdnBitwidth())
		return &Type{form: bitstring, width: w}, err
	}
	return nil, fmt.Errorf("type %q is unknown", name)
}

func bitstringType(s *configv1.P4BitstringLikeTypeSpec) (*Type, error) {
	switch v := s.GetTypeSpec().(type) {
	case *configv1.P4BitstringLikeTypeSpec_Bit:
		w, err := width("bit<W>", v.Bit.GetBitwidth())
		return &Type{form: bitstring, width: w}, err
	case *configv1.P4BitstringLikeTypeSpec_Int:
		w, err := width("int<W>", v.Int.GetBitwidth())
		return &Type{form: signed, width: w}, err
	}
	return nil, fmt.Errorf("varbit is not supported here")
}
