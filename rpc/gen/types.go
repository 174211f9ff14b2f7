package gen

import (
	"fmt"
	"slices"
	"strings"
)

// typ is what an IDL type comes to.
type typ struct {
	kind   string      // base type, "enum", "struct", "map", "set" or "list"; typedefs are seen through
	key    *typ        // of a map
	elem   *typ        // of a list, set or map
	def    *structLike // of a struct, union or exception
	unit   *unit       // that defines it
	alias  bool        // it is named by a typedef
	goType string      // as Thrift's Go has it in a signature
}

// wire is the type's constant in Thrift's Go library.
func (t *typ) wire() string {
	switch t.kind {
	case "i8":
		return "BYTE"
	case "binary":
		return "STRING"
	case "enum":
		return "I32"
	}
	return strings.ToUpper(t.kind)
}

// scalar reports whether Go has no nil for the type.
func (t *typ) scalar() bool {
	switch t.kind {
	case "binary", "struct", "map", "set", "list":
		return false
	}
	return true
}

// plain reports whether values stand in memory as they are: rpc.Plain.
func (t *typ) plain() bool {
	return t.kind == "binary" || t.kind == "list" && plainNumbers[t.elem.kind] && !t.elem.alias
}

// plainNumbers are the kinds of elements of lists that stand in memory as they are.
var plainNumbers = wordSet("i8 i16 i32 i64 double")

// underlying is the Go type without the name that a typedef gives to it. A string keeps the
// name, without which values are of another type.
func (t *typ) underlying() string {
	switch t.kind {
	case "binary":
		return "[]byte"
	case "list", "set":
		return "[]" + t.elem.goType
	case "map":
		return "map[" + t.key.goType + "]" + t.elem.goType
	}
	return t.goType
}

// forms are the functions of package form that make the types of scalars.
var forms = map[string]string{
	"bool": "Bool", "i8": "I8", "i16": "I16", "i32": "I32", "enum": "I32", "i64": "I64", "double": "Double", "uuid": "UUID", "string": "String", "binary": "Binary",
}

// form is the expression for how values of a type stand in memory; goType is the type's
// name in Go.
func (s *scope) form(t *typ, goType string) string {
	s.forms = true
	switch t.kind {
	case "struct":
		if t.unit == s.self && !slices.Contains(s.inPlace, t.def) {
			s.inPlace = append(s.inPlace, t.def)
		}
		return "form.Struct(" + s.qualify(t.unit) + "New" + s.publicName(t.def.Name) + ")"
	case "list":
		return "form.List[" + goType + "](" + s.form(t.elem, t.elem.goType) + ")"
	case "set":
		return "form.Set[" + goType + "](" + s.form(t.elem, t.elem.goType) + ")"
	case "map":
		return "form.Map[" + goType + "](" + s.form(t.key, t.key.goType) + ", " + s.form(t.elem, t.elem.goType) + ")"
	case "binary":
		if goType == "string" { // as the key of a map
			return "form.String[string]()"
		}
	}
	return "form." + forms[t.kind] + "[" + goType + "]()"
}

// scope resolves the types of one program, and notes what its Go code imports.
type scope struct {
	naming
	prefix  string // of import paths
	self    *unit
	imports map[string]string // path → name
	types   map[string]bool   // names in Go
	forms   bool              // package form is used
	inPlace []*structLike     // of this file, that stand in values by reference
}

func newScope(u *unit, n naming, prefix string) scope {
	s := scope{naming: n, prefix: prefix, self: u, imports: map[string]string{}, types: map[string]bool{}}
	s.define(u, map[*unit]bool{})
	return s
}

// maxTypedefs is how many typedefs may stand one behind the other.
const maxTypedefs = 64

// resolve finds out what a type that stands in u comes to.
func (s *scope) resolve(u *unit, t *idlType) (*typ, error) { return s.resolveDeep(u, t, 0) }

func (s *scope) resolveDeep(u *unit, t *idlType, depth int) (*typ, error) {
	if depth > maxTypedefs {
		return nil, fmt.Errorf("type %s is defined by itself", t.Name)
	}
	switch t.Name {
	case "list", "set", "map":
		return s.container(u, t, depth+1)
	case "byte":
		return &typ{kind: "i8", goType: "int8"}, nil
	}
	if g := baseTypes[t.Name]; g != "" && (t.Name != "uuid" || !defines(u, t.Name)) {
		return &typ{kind: t.Name, goType: g}, nil
	}
	def, name := u, t.Name
	if i := strings.LastIndexByte(name, '.'); i >= 0 {
		def, name = u.includes[name[:i]], name[i+1:]
		if def == nil {
			return nil, fmt.Errorf("type %s: nothing that is included is called %q", t.Name, t.Name[:i])
		}
	}
	return s.named(def, name, depth)
}

// baseTypes are the types that IDL has by itself, and Go's.
var baseTypes = map[string]string{
	"bool": "bool", "i8": "int8", "i16": "int16", "i32": "int32", "i64": "int64",
	"double": "float64", "string": "string", "binary": "[]byte", "uuid": "thrift.Tuuid",
}

// defines reports whether u defines a type of this name, as IDL from before Thrift 0.18
// may do with uuid.
func defines(u *unit, name string) bool {
	return structOf(u, name) != nil ||
		slices.ContainsFunc(u.doc.Typedefs, func(d *typedef) bool { return d.Alias == name }) ||
		slices.ContainsFunc(u.doc.Enums, func(d *enum) bool { return d.Name == name })
}

// container resolves a list, set or map.
func (s *scope) container(u *unit, t *idlType, depth int) (*typ, error) {
	elem, err := s.resolveDeep(u, t.Value, depth)
	if err != nil {
		return nil, err
	}
	r := &typ{kind: t.Name, elem: elem, goType: "[]" + elem.goType}
	if t.Name != "map" {
		return r, nil
	}
	key, err := s.resolveDeep(u, t.Key, depth)
	if err != nil {
		return nil, err
	}
	if key.kind == "binary" {
		key.goType = "string" // Go has no maps by slices
	}
	r.key, r.goType = key, "map["+key.goType+"]"+elem.goType
	return r, nil
}

// named resolves a type that u defines.
func (s *scope) named(u *unit, name string, depth int) (*typ, error) {
	goName := s.qualify(u) + s.publicName(name)
	for _, d := range u.doc.Typedefs {
		if d.Alias == name {
			t, err := s.resolveDeep(u, d.Type, depth+1)
			if err != nil {
				return nil, err
			}
			r := *t
			r.alias, r.goType = true, goName
			return &r, nil
		}
	}
	for _, d := range u.doc.Enums {
		if d.Name == name {
			return &typ{kind: "enum", goType: goName}, nil
		}
	}
	if d := structOf(u, name); d != nil {
		return &typ{kind: "struct", def: d, unit: u, goType: "*" + goName}, nil
	}
	return nil, fmt.Errorf("type %s is not defined in %s", name, u.path)
}

// structOf returns u's struct, union or exception of a name, or nil.
func structOf(u *unit, name string) *structLike {
	for _, d := range u.doc.Structs {
		if d.Name == name {
			return d
		}
	}
	return nil
}

// namespace is where u's Go code lies, as Thrift has it: "a.b" is package b in a/b.
func (u *unit) namespace() string { return u.namespaceOf("go", strings.ToLower(u.name)) }

// namespaceOf is where u's code in a language lies; without is that of a file that does not say.
func (u *unit) namespaceOf(lang, without string) string {
	for _, l := range []string{lang, "*"} {
		for _, n := range u.doc.Namespaces {
			if n.Language == l {
				return n.Name
			}
		}
	}
	return without
}

func (u *unit) packageName() string {
	n := u.namespace()
	return n[strings.LastIndexByte(n, '.')+1:]
}

// qualify returns what a name of u's carries in front in Go, and notes the import.
func (s *scope) qualify(u *unit) string {
	if u == s.self || u.namespace() == s.self.namespace() {
		return ""
	}
	path := s.prefix + strings.ReplaceAll(u.namespace(), ".", "/")
	if name := s.imports[path]; name != "" {
		return name + "."
	}
	name := u.packageName()
	for n := 1; s.taken(name); n++ {
		name = fmt.Sprint(u.packageName(), n)
	}
	s.imports[path] = name
	return name + "."
}

// taken reports whether a package cannot be imported under a name.
func (s *scope) taken(name string) bool {
	if taken[name] || locals[name] || keywords[name] {
		return true
	}
	for _, n := range s.imports {
		if n == name {
			return true
		}
	}
	return false
}

// known reports whether a name is that of an imported package, or of a type of this one.
func (s *scope) known(name string) bool {
	for _, n := range s.imports {
		if n == name {
			return true
		}
	}
	return s.types[name]
}

// define notes the types of a unit and of those that it includes, if they are of this
// package.
func (s *scope) define(u *unit, seen map[*unit]bool) {
	if seen[u] {
		return
	}
	seen[u] = true
	if u.namespace() == s.self.namespace() {
		for name := range u.definitions(s.naming) {
			s.types[name] = true
		}
	}
	for _, sub := range u.includes {
		s.define(sub, seen)
	}
}

// definitions are the types of a unit: their names in IDL by their names in Go.
func (u *unit) definitions(n naming) map[string]string {
	m := map[string]string{}
	for _, d := range u.doc.Structs {
		m[n.publicName(d.Name)] = d.Name
	}
	for _, d := range u.doc.Typedefs {
		m[n.publicName(d.Alias)] = d.Alias
	}
	for _, d := range u.doc.Enums {
		m[n.publicName(d.Name)] = d.Name
	}
	return m
}
