package gen

import (
	"fmt"
	gotoken "go/token"
	"path"
	"regexp"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/bifrost-rack/bifrost/internal/control"
)

// method is a method of a service, its own or inherited.
type method struct {
	unit    *unit
	service *service
	fn      *function
	marks   marks
}

// fileView is what the template makes a file of.
type fileView struct {
	Source   string // the IDL file's name
	Package  string
	Imports  []importView
	Bifrost  bool // something goes by reference
	Forms    bool // package form is used
	Services []serviceView
	Structs  []structView // that stand in values by reference
	// IDL is the file's text, which services publish when they are exported; "" if the rack would not take it. IDLName is its constant.
	IDL, IDLName string
}

// structView is a struct whose fields can be read in place.
type structView struct {
	Name   string // in IDL
	Go     string
	Line   int
	Fields []paramView
}

type importView struct{ Name, Path string }

type serviceView struct {
	Name     string // in IDL
	Go       string
	Line     int
	State    string       // the runtime's interface that a handler has to be, or ""
	Parent   string       // Go name of the service that it extends, qualified; or ""
	Stubs    bool         // the parent has stubs, too
	Methods  []methodView // its own
	Inherits []methodView // inherited ones by reference
	Policies []marksView
	Failures []marksView
}

// Refs are the service's own methods by reference.
func (s serviceView) Refs() []methodView { return refs(s.Methods) }

// All are its methods by reference, inherited ones included.
func (s serviceView) All() []methodView { return append(s.Refs(), s.Inherits...) }

// Prefix begins the names of what the stubs define for themselves.
func (s serviceView) Prefix() string { return "ref" + s.Go }

// Prefix is that of its service.
func (m methodView) Prefix() string { return "ref" + m.Service }

// RefParams are the arguments by reference.
func (m methodView) RefParams() []paramView {
	return slices.DeleteFunc(slices.Clone(m.Params), func(p paramView) bool { return !p.Ref() })
}

func refs(list []methodView) []methodView {
	return slices.DeleteFunc(slices.Clone(list), func(m methodView) bool { return !m.ByRef })
}

// marksView is what methods have in common: a policy, or a number of failures.
type marksView struct {
	Value   string
	Methods []string // in IDL, quoted by the template
}

type methodView struct {
	Name         string // in IDL
	Go           string
	Line         int
	Service      string // Go name
	Args, Result string // Thrift's structs
	Params       []paramView
	Returns      *paramView // nil for void
	Throws       []paramView
	Oneway       bool
	ByRef        bool
	Doc          []string
}

// paramView is an argument, a result or an exception.
type paramView struct {
	Name  string // in IDL
	Var   string // as a parameter
	Field string // in Thrift's struct
	Type  string // Go's, by value
	ID    int32
	Wire  string // thrift.XXX
	// Address says that Thrift's struct of the result has a pointer to it.
	Address bool
	Way     string // stub's name of how the reference travels; "" for a value
	Elem    string // T of rpc.Ref[T]
	Form    string // expression of its stub.Form
	maker   string // begins the expression of a reference to a value
}

// Ref reports whether it travels by reference.
func (p paramView) Ref() bool { return p.Way != "" }

// Make is the expression of a reference to a value.
func (p paramView) Make(value string) string { return p.maker + value + ")" }

// Number is the field's number as a part of a name.
func (p paramView) Number() string { return strings.Replace(fmt.Sprint(p.ID), "-", "_", 1) }

// plan makes the view of a file; nil if nothing in it is marked.
func (c *checker) plan(u *unit, prefix string, wire wireFunc) *fileView {
	c.file(u)
	fresh := newScope(u, c.scope.naming, prefix)
	s := &fresh
	v := &fileView{Source: inLine(path.Base(u.path)), Package: u.packageName(), IDL: published(u.text), IDLName: "refIDL" + notWord.ReplaceAllString(u.name, "_")}
	for _, d := range u.doc.Services {
		c.only(u, d.Line, "service "+d.Name, d.Annotations, markState, markPolicy, markFailures)
		own := c.methods(u, d)
		all := append(slices.Clone(own), c.inherited(u, d)...)
		c.names(u, d, all, wire)
		if marked(u, d) {
			v.Services = append(v.Services, c.service(s, u, d, own, all))
		}
	}
	if len(v.Services) == 0 {
		return nil
	}
	for _, s := range v.Services {
		v.Bifrost = v.Bifrost || len(s.Refs()) > 0
	}
	v.Structs = c.structs(s)
	v.Forms = s.forms
	if !gotoken.IsIdentifier(v.Package) { // without a namespace it is the IDL file's name
		c.add(u, 0, "write namespace go NAME in the IDL", "%q cannot be the name of a Go package", v.Package)
	}
	for p, name := range s.imports {
		v.Imports = append(v.Imports, importView{name, p})
	}
	slices.SortFunc(v.Imports, func(a, b importView) int { return strings.Compare(a.Path, b.Path) })
	c.collisions(u, v)
	return v
}

var notWord = regexp.MustCompile(`\W`)

// published is a file's text as services publish it, if the rack takes it.
func published(text string) string {
	controls := func(r rune) bool { return unicode.IsControl(r) && r != '\n' && r != '\r' && r != '\t' }
	if len(text) > control.MaxIDL || !utf8.ValidString(text) || strings.ContainsFunc(text, controls) {
		return ""
	}
	return text
}

// methods checks a service's own methods. Those that do not say have the service's
// policy.
func (c *checker) methods(u *unit, s *service) []method {
	general := c.policy(u, s.Line, "service "+s.Name, s.Annotations)
	most := c.failures(u, s.Line, "service "+s.Name, s.Annotations)
	var list []method
	for _, f := range s.Functions {
		m := method{u, s, f, c.method(u, f)}
		if m.marks.policy == "" {
			m.marks.policy = general
		}
		if m.marks.failures == "" {
			m.marks.failures = most
		}
		list = append(list, m)
	}
	return list
}

// inherited returns what a service has from those that it extends. Their mistakes
// are told when stubs are made of their own files.
func (c *checker) inherited(u *unit, s *service) []method {
	quiet := checker{scope: newScope(u, c.scope.naming, "")}
	var list []method
	at, seen := u, []*service{s}
	for d := s; d.Extends != ""; seen = append(seen, d) {
		var parent *service
		if at, parent = extends(at, d); parent == nil || slices.Contains(seen, parent) {
			c.add(u, s.Line, "define it, or include the file that does",
				"service %s extends %s, which is not known or extends itself", d.Name, d.Extends)
			return nil
		}
		list, d = append(list, quiet.methods(at, parent)...), parent
	}
	return list
}

// extends finds the service that s extends.
func extends(u *unit, s *service) (*unit, *service) {
	name := s.Extends
	if i := strings.LastIndexByte(name, '.'); i >= 0 {
		u, name = u.includes[name[:i]], name[i+1:]
	}
	if u == nil {
		return nil, nil
	}
	for _, d := range u.doc.Services {
		if d.Name == name {
			return u, d
		}
	}
	return nil, nil
}

// marked reports whether stubs are made for a service: it, a method, an argument or
// a service that it extends has an annotation of ours.
func marked(u *unit, s *service) bool {
	for depth := 0; s != nil && depth <= maxTypedefs; depth++ {
		lists := []annotations{s.Annotations}
		for _, f := range s.Functions {
			lists = append(lists, f.Annotations)
			for _, a := range f.Arguments {
				lists = append(lists, a.Annotations)
			}
		}
		for _, a := range slices.Concat(lists...) {
			if strings.HasPrefix(a.Key, markPrefix) {
				return true
			}
		}
		u, s = extends(u, s)
	}
	return false
}
