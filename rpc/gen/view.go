package gen

import (
	"slices"
	"strings"
	"unicode"

	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
	"github.com/bifrost-rack/bifrost/rpc/stub"
)

// wireFunc makes the form of a method's name in a packet's header.
type wireFunc = func(string) (rpcpacket.Method, error)

// service makes the view of a service that has stubs.
func (c *checker) service(s *scope, u *unit, d *service, own, all []method) serviceView {
	line := d.Line
	v := serviceView{Name: d.Name, Go: s.publicName(d.Name), Line: line}
	v.State = c.state(u, d)
	if pu, parent := extends(u, d); parent != nil {
		v.Parent, v.Stubs = s.qualify(pu)+s.publicName(parent.Name), marked(pu, parent)
	}
	for _, m := range own {
		v.Methods = append(v.Methods, c.view(s, m))
	}
	for _, m := range all[len(own):] {
		if m.marks.byRef() {
			v.Inherits = append(v.Inherits, c.view(s, m))
		}
	}
	v.Policies = marksViews(all, func(m *marks) string { return m.policy })
	v.Failures = marksViews(all, func(m *marks) string { return m.failures })
	return v
}

// marksViews groups methods by one of their marks, under all their names.
func marksViews(methods []method, of func(*marks) string) []marksView {
	groups := map[string][]string{}
	for _, m := range methods {
		value := of(&m.marks)
		if value == "" {
			continue
		}
		names := []string{m.fn.Name}
		if m.marks.byRef() {
			names = append(names, stub.Method(m.fn.Name))
		}
		groups[value] = append(groups[value], names...)
	}
	var views []marksView
	for p, names := range groups {
		views = append(views, marksView{p, names})
	}
	slices.SortFunc(views, func(a, b marksView) int { return strings.Compare(a.Value, b.Value) })
	return views
}

// view makes the view of a method.
func (c *checker) view(s *scope, m method) methodView {
	f, service := m.fn, m.service.Name
	v := methodView{
		Name: f.Name, Go: s.publicName(f.Name), Service: s.publicName(service), Line: f.Line, Oneway: f.Oneway, ByRef: m.marks.byRef(),
		Args: s.helperName(service, f.Name, "args"), Result: s.helperName(service, f.Name, "result"), Doc: comment(f.Doc),
	}
	for i, a := range f.Arguments {
		v.Params = append(v.Params, c.param(s, m, a, m.marks.args[i]))
	}
	for i, name := range variables(f.Arguments, s.known) {
		v.Params[i].Var = name
	}
	if f.Type != nil {
		r := c.param(s, m, &field{Name: "success", Type: f.Type, Line: f.Line}, m.marks.result)
		v.Returns = &r
	}
	if v.ByRef && m.unit == s.self {
		for _, x := range f.Throws {
			v.Throws = append(v.Throws, c.param(s, m, x, ""))
		}
	}
	return v
}

// param makes the view of one field, and of how it travels by reference.
func (c *checker) param(s *scope, m method, f *field, way string) paramView {
	p := paramView{Name: f.Name, Field: s.publicName(f.Name), ID: f.ID, Way: way}
	t, err := s.resolve(m.unit, f.Type)
	if err != nil {
		c.add(m.unit, f.Line, "define it, or include the file that does",
			"%s of method %s: %v", f.Name, m.fn.Name, err)
		return p
	}
	p.Type, p.Wire, p.Address = t.goType, t.wire(), t.scalar()
	if way == "" {
		return p
	}
	p.Elem = t.underlying()
	if t.plain() {
		p.Form, p.maker = "stub.Plain["+p.Elem+"]()", "rpc.RefOf["+p.Elem+"]("
		return p
	}
	typed := s.form(t, p.Elem)
	p.Form, p.maker = "stub.Typed("+typed+")", "rpc.NewRef["+p.Elem+"]("+typed+", "
	return p
}

// structs makes the views of the structs that values by reference have in them, those that their fields
// have in them included.
func (c *checker) structs(s *scope) (all []structView) {
	for i := 0; i < len(s.inPlace); i++ { // it grows
		d := s.inPlace[i]
		v := structView{Name: d.Name, Go: s.publicName(d.Name), Line: d.Line}
		for _, f := range d.Fields {
			if t, err := s.resolve(s.self, f.Type); err == nil { // else what uses the type tells
				v.Fields = append(v.Fields, paramView{Name: f.Name, Field: s.publicName(f.Name), ID: f.ID, Type: t.goType, Form: s.form(t, t.goType)})
			}
		}
		all = append(all, v)
	}
	slices.SortFunc(all, func(a, b structView) int { return strings.Compare(a.Go, b.Go) })
	return all
}

// comment makes Go comment lines of IDL's.
func comment(text string) []string {
	var lines []string
	for _, line := range strings.Split(text, "\n") {
		line = strings.TrimSpace(inLine(line))
		line = strings.TrimSuffix(strings.TrimLeft(strings.TrimPrefix(line, "//"), "/*"), "*/")
		if line = strings.TrimSpace(line); line != "" {
			lines = append(lines, line)
		}
	}
	return lines
}

// inLine makes UTF-8 of text, without the control characters and byte order marks that may not be in a line of source.
func inLine(text string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) && r != '\t' || r == '\uFEFF' {
			return -1
		}
		return r
	}, text)
}

// collisions refuses IDL that defines what the stubs are called.
func (c *checker) collisions(u *unit, v *fileView) {
	defined := u.definitions(c.scope.naming)
	for _, d := range u.doc.Consts {
		defined[c.scope.publicName(d.Name)] = d.Name
	}
	for _, d := range v.Structs {
		for _, name := range []string{d.Go + "Fields", d.Go + "FieldsOf"} {
			if other := defined[name]; other != "" {
				c.add(u, d.Line, "rename it", "the stubs of struct %s define %s, and so does %s", d.Name, name, other)
			}
		}
	}
	for _, s := range v.Services {
		for _, name := range []string{s.Go + "RefClient", s.Go + "RefHandler", s.Go + "Values", "New" + s.Go + "RefClient", "New" + s.Go + "RefProcessor",
			"Open" + s.Go, "Export" + s.Go, "Add" + s.Go + "Refs"} {
			if d := defined[name]; d != "" {
				c.add(u, s.Line, "rename it", "the stubs of service %s define %s, and so does %s", s.Name, name, d)
			}
		}
		for _, m := range s.Methods {
			if s.State != "" && slices.Contains(stateMethods[s.State], m.Go) {
				c.add(u, m.Line, "rename it, or leave bifrost.state out and give rpc.WithState another object than the handler",
					"method %s of service %s: a handler with state has a method %s for the runtime", m.Name, s.Name, m.Go)
			}
		}
	}
}
