package gen

import (
	"fmt"
	"io/fs"
	"math"
	"path"
	"slices"
	"strings"

	"github.com/bifrost-rack/bifrost/rpc/idl"
)

// Service is what an IDL text says of a service, for those who call it without generated code.
type Service struct {
	Name string
	// Methods are its own, then those of the services that it extends.
	Methods []*Method
}

// Method is one of a service's methods.
type Method struct {
	Name string
	// Doc is the comment in front of it, without the comment's signs; "" if there is none.
	Doc               string
	Oneway            bool
	Arguments, Throws []Field
	// Result is nil for void.
	Result *Type
	// ResultByReference: the result is marked (bifrost.ref).
	ResultByReference bool
	// Policy is the value of bifrost.policy that the method has by itself, or from its service; "" if there is none.
	Policy string
	// Problem says why nobody can know how a call is written: a type that the text does not define. Else it is nil.
	Problem error
}

// Field is an argument, an exception of a method, or a field of a struct.
type Field struct {
	ID   int16
	Name string
	Type *Type
	// Optional: whoever writes it may leave it out, since the IDL says so or has a default value for it.
	Optional bool
	// ByReference: the field is marked (bifrost.ref).
	ByReference bool
}

// Kind is what a [Type] is.
type Kind uint8

// The kinds. Typedefs are seen through.
const (
	Bool Kind = iota
	I8
	I16
	I32
	I64
	Double
	String
	Binary
	UUID
	Enum
	Struct
	Union
	Exception
	List
	Set
	Map
)

var kindNames = [...]string{"bool", "i8", "i16", "i32", "i64", "double", "string", "binary", "uuid", "enum", "struct", "union", "exception", "list", "set", "map"}

// String is the kind's keyword in IDL.
func (k Kind) String() string { return kindNames[k] }

// Type is a type of IDL. The types of recursive structs refer to themselves.
type Type struct {
	Kind Kind
	// Name is that of an enum, a struct, a union or an exception. Doc is the comment in front of the latter three.
	Name, Doc string
	// Unit is the IDL file that defines the name, without its extension; "" for the text itself.
	Unit string
	// Key is that of a map; Elem is that of a map's values, a list or a set.
	Key, Elem *Type
	// Fields are those of a struct, a union or an exception.
	Fields []Field
	// Values are those of an enum, in the order of the text.
	Values []EnumValue

	problem error // of a field
	size    int   // types within it, named ones each as one
}

// EnumValue is one of the values of an enum.
type EnumValue struct {
	Name   string
	Number int32
}

// IsPointer reports whether values of the type are global pointers, which mean something inside the rack only.
func (t *Type) IsPointer() bool { return t.Kind == Struct && t.Name == pointerStruct }

// maxTypeSize bounds how many types a type has within it, where typedefs might multiply them.
const maxTypeSize = 256

// Describe returns the services that the text of an IDL file defines, in its order. The text stands alone: of included files only
// bifrost.thrift is known, so a method that needs a type from another one has a Problem. The result is for reading only, and may be shared.
func Describe(text string) ([]*Service, error) {
	l := loader{read: readAlone(text), units: map[string]*unit{}}
	u, err := l.load(alone)
	if err != nil {
		return nil, err
	}
	d := describer{root: u, known: map[*unit]map[string]*Type{}}
	var all []*Service
	for _, s := range u.doc.Services {
		described := &Service{Name: s.Name}
		at, seen := u, []*service{}
		for s != nil && !slices.Contains(seen, s) {
			for _, f := range s.Functions {
				described.Methods = append(described.Methods, d.method(at, s, f))
			}
			seen = append(seen, s)
			at, s = extends(at, s)
		}
		all = append(all, described)
	}
	return all, nil
}

// alone is what a text is called that comes without a file.
const alone = "idl.thrift"

// readAlone reads what a published text can include: Bifröst's own file. Another one has nothing in it.
func readAlone(text string) ReadFunc {
	return func(name string) ([]byte, error) {
		switch {
		case name == alone:
			return []byte(text), nil
		case path.Base(name) == idl.File:
			return []byte(idl.Text), nil
		case strings.HasSuffix(name, ".thrift"):
			return nil, nil
		}
		return nil, fs.ErrNotExist
	}
}

// describer resolves types, each named one once.
type describer struct {
	root  *unit
	known map[*unit]map[string]*Type // nil while a typedef is being resolved
}

func (d *describer) method(u *unit, s *service, f *function) *Method {
	m := &Method{
		Name: f.Name, Doc: strings.Join(comment(f.Doc), "\n"), Oneway: f.Oneway,
		ResultByReference: f.Type != nil && len(f.Annotations.Get(markRef)) > 0,
	}
	for _, list := range []annotations{f.Annotations, s.Annotations} {
		if values := list.Get(markPolicy); len(values) > 0 && m.Policy == "" {
			m.Policy = values[0]
		}
	}
	args := &structLike{Category: "struct", Fields: f.Arguments}
	throws := &structLike{Category: "struct", Fields: f.Throws}
	if f.Type != nil {
		throws.Fields = append([]*field{{Name: "success", Type: f.Type}}, f.Throws...)
	}
	a, r := &Type{Kind: Struct}, &Type{Kind: Struct}
	d.fields(u, args, a)
	d.fields(u, throws, r)
	seen := map[*Type]bool{}
	if m.Problem = a.broken(seen); m.Problem == nil {
		m.Problem = r.broken(seen)
	}
	m.Arguments, m.Throws = a.Fields, r.Fields
	if f.Type != nil && m.Problem == nil {
		m.Result, m.Throws = r.Fields[0].Type, r.Fields[1:]
	}
	return m
}

// broken returns what is wrong with a type, or with a type within it.
func (t *Type) broken(seen map[*Type]bool) error {
	if t == nil || seen[t] {
		return nil
	}
	seen[t] = true
	if t.problem != nil {
		return t.problem
	}
	for _, part := range []*Type{t.Key, t.Elem} {
		if err := part.broken(seen); err != nil {
			return err
		}
	}
	for _, f := range t.Fields {
		if err := f.Type.broken(seen); err != nil {
			return err
		}
	}
	return nil
}

// fields resolves the fields of a struct.
func (d *describer) fields(u *unit, s *structLike, t *Type) {
	ids, names := map[int32]bool{}, map[string]bool{}
	for _, f := range s.Fields {
		ft, err := d.resolve(u, f.Type, 0)
		switch {
		case err != nil:
		case f.ID < math.MinInt16 || f.ID > math.MaxInt16:
			err = fmt.Errorf("it has the number %d", f.ID)
		case ids[f.ID] || names[f.Name]:
			err = fmt.Errorf("another one has its number %d, or its name", f.ID)
		}
		if err != nil {
			t.problem = fmt.Errorf("field %s: %w", f.Name, err)
			return
		}
		ids[f.ID], names[f.Name] = true, true
		t.Fields = append(t.Fields, Field{
			ID: int16(f.ID), Name: f.Name, Type: ft, Optional: f.Requirement == "optional" || f.HasDefault && f.Requirement != "required",
			ByReference: len(f.Annotations.Get(markRef)) > 0,
		})
	}
}

// baseKinds are the types that IDL has by itself.
var baseKinds = map[string]Kind{
	"bool": Bool, "byte": I8, "i8": I8, "i16": I16, "i32": I32, "i64": I64, "double": Double, "string": String, "binary": Binary, "uuid": UUID,
}

// resolve finds out what a type that stands in u comes to.
func (d *describer) resolve(u *unit, t *idlType, depth int) (*Type, error) {
	if depth > maxTypedefs {
		return nil, fmt.Errorf("more than %d types within each other", maxTypedefs)
	}
	if t.Value != nil {
		return d.container(u, t, depth+1)
	}
	if k, ok := baseKinds[t.Name]; ok && (k != UUID || !defines(u, t.Name)) {
		return &Type{Kind: k, size: 1}, nil
	}
	def, name := u, t.Name
	if i := strings.LastIndexByte(name, '.'); i >= 0 {
		def, name = u.includes[name[:i]], name[i+1:]
		if def == nil {
			return nil, fmt.Errorf("type %s: nothing that is included is called %q", t.Name, t.Name[:i])
		}
	}
	return d.named(def, name, depth)
}

func (d *describer) container(u *unit, t *idlType, depth int) (r *Type, err error) {
	r = &Type{Kind: map[string]Kind{"list": List, "set": Set, "map": Map}[t.Name]}
	if r.Elem, err = d.resolve(u, t.Value, depth); err != nil {
		return nil, err
	}
	r.size = 1 + r.Elem.size
	if t.Key != nil {
		if r.Key, err = d.resolve(u, t.Key, depth); err != nil {
			return nil, err
		}
		r.size += r.Key.size
	}
	if r.size > maxTypeSize {
		return nil, fmt.Errorf("a type with more than %d types within it", maxTypeSize)
	}
	return r, nil
}

// named resolves a type that u defines.
func (d *describer) named(u *unit, name string, depth int) (*Type, error) {
	types := d.known[u]
	if types == nil {
		types = map[string]*Type{}
		d.known[u] = types
	}
	if t, ok := types[name]; t != nil {
		return t, nil
	} else if ok {
		return nil, fmt.Errorf("type %s is defined by itself", name)
	}
	unit := ""
	if u != d.root {
		unit = u.name
	}
	for _, def := range u.doc.Typedefs {
		if def.Alias == name {
			types[name] = nil
			t, err := d.resolve(u, def.Type, depth+1)
			if err != nil {
				delete(types, name)
				return nil, err
			}
			types[name] = t
			return t, nil
		}
	}
	for _, def := range u.doc.Enums {
		if def.Name == name {
			types[name] = &Type{Kind: Enum, Name: name, Unit: unit, Values: def.Values, size: 1}
			return types[name], nil
		}
	}
	if def := structOf(u, name); def != nil {
		kind := map[string]Kind{"struct": Struct, "union": Union, "exception": Exception}[def.Category]
		t := &Type{Kind: kind, Name: name, Unit: unit, Doc: strings.Join(comment(def.Doc), "\n"), size: 1}
		types[name] = t
		d.fields(u, def, t)
		return t, nil
	}
	return nil, fmt.Errorf("type %s is not defined in %s, or that is not part of the published text", name, u.path)
}
