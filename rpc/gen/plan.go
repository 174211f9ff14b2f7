package gen

import (
	"path"
	"slices"
	"strings"

	"github.com/cloudwego/thriftgo/parser"
)

// method is a method of a service, its own or inherited.
type method struct {
	unit    *unit
	service *parser.Service
	fn      *parser.Function
	marks   marks
}

// fileView is what the template makes a file of.
type fileView struct {
	Source   string // the IDL file's name
	Package  string
	Imports  []importView
	Bifrost  bool // something goes by reference
	Services []serviceView
}

type importView struct{ Name, Path string }

type serviceView struct {
	Name     string // in IDL
	Go       string
	State    string       // the runtime's interface that a handler has to be, or ""
	Parent   string       // Go name of the service that it extends, qualified; or ""
	Stubs    bool         // the parent has stubs, too
	Methods  []methodView // its own
	Inherits []methodView // inherited ones by reference
	Policies []policyView
}

// Refs are the service's own methods by reference.
func (s serviceView) Refs() []methodView { return refs(s.Methods) }

// All are its methods by reference, inherited ones included.
func (s serviceView) All() []methodView { return append(s.Refs(), s.Inherits...) }

func refs(list []methodView) []methodView {
	return slices.DeleteFunc(slices.Clone(list), func(m methodView) bool { return !m.ByRef })
}

type policyView struct {
	Policy  string
	Methods []string // in IDL, quoted by the template
}

type methodView struct {
	Name         string // in IDL
	Go           string
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
	Ref     bool
	Elem    string // T of rpc.Ref[T]
	Form    string // expression of its stub.Form
	Maker   string // RefOf or RefOfStruct
}

// plan makes the view of a file; nil if nothing in it is marked.
func (c *checker) plan(u *unit, prefix string, wire wireFunc) *fileView {
	c.file(u)
	s := &scope{prefix: prefix, self: u, imports: map[string]string{}}
	v := &fileView{Source: path.Base(u.path), Package: u.packageName()}
	for _, d := range u.ast.Services {
		c.only(u, u.lineOf("service", d.Name), "service "+d.Name, d.Annotations, markState, markPolicy)
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
	for p, name := range s.imports {
		v.Imports = append(v.Imports, importView{name, p})
	}
	slices.SortFunc(v.Imports, func(a, b importView) int { return strings.Compare(a.Path, b.Path) })
	c.collisions(u, v)
	return v
}

// methods checks a service's own methods. Those that do not say have the service's
// policy.
func (c *checker) methods(u *unit, s *parser.Service) []method {
	general := c.policy(u, u.lineOf("service", s.Name), "service "+s.Name, s.Annotations)
	var list []method
	for _, f := range s.Functions {
		m := method{u, s, f, c.method(u, s, f)}
		if m.marks.policy == "" {
			m.marks.policy = general
		}
		list = append(list, m)
	}
	return list
}

// inherited returns what a service has from those that it extends. Their mistakes
// are told when stubs are made of their own files.
func (c *checker) inherited(u *unit, s *parser.Service) []method {
	quiet := checker{scope: scope{self: u, imports: map[string]string{}}}
	var list []method
	at, seen := u, []*parser.Service{s}
	for d := s; d.Extends != ""; seen = append(seen, d) {
		var parent *parser.Service
		if at, parent = extends(at, d); parent == nil || slices.Contains(seen, parent) {
			c.add(u, u.lineOf("service", s.Name), "define it, or include the file that does",
				"service %s extends %s, which is not known or extends itself", d.Name, d.Extends)
			return nil
		}
		list, d = append(list, quiet.methods(at, parent)...), parent
	}
	return list
}

// extends finds the service that s extends.
func extends(u *unit, s *parser.Service) (*unit, *parser.Service) {
	name := s.Extends
	if i := strings.LastIndexByte(name, '.'); i >= 0 {
		u, name = u.includes[name[:i]], name[i+1:]
	}
	if u == nil {
		return nil, nil
	}
	for _, d := range u.ast.Services {
		if d.Name == name {
			return u, d
		}
	}
	return nil, nil
}

// marked reports whether stubs are made for a service: it, a method, an argument or
// a service that it extends has an annotation of ours.
func marked(u *unit, s *parser.Service) bool {
	for depth := 0; s != nil && depth <= maxTypedefs; depth++ {
		lists := []parser.Annotations{s.Annotations}
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
