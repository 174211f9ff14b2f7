package gen

import (
	"slices"
	"strings"

	"github.com/cloudwego/thriftgo/parser"

	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
	"github.com/bifrost-rack/bifrost/rpc/stub"
)

// wireFunc makes the form of a method's name in a packet's header.
type wireFunc = func(string) (rpcpacket.Method, error)

// service makes the view of a service that has stubs.
func (c *checker) service(s *scope, u *unit, d *parser.Service, own, all []method) serviceView {
	v := serviceView{Name: d.Name, Go: publicName(d.Name)}
	line := u.lineOf("service", d.Name)
	v.State = c.choice(u, line, "service "+d.Name, markState, c.mark(u, line, "service "+d.Name, d.Annotations, markState), states)
	if pu, parent := extends(u, d); parent != nil {
		v.Parent, v.Stubs = s.qualify(pu)+publicName(parent.Name), marked(pu, parent)
	}
	for _, m := range own {
		v.Methods = append(v.Methods, c.view(s, m))
	}
	for _, m := range all[len(own):] {
		if m.marks.byRef() {
			v.Inherits = append(v.Inherits, c.view(s, m))
		}
	}
	v.Policies = policyViews(all)
	return v
}

// policyViews groups methods by their policies, under all their names.
func policyViews(methods []method) []policyView {
	groups := map[string][]string{}
	for _, m := range methods {
		if m.marks.policy == "" {
			continue
		}
		names := []string{m.fn.Name}
		if m.marks.byRef() {
			names = append(names, stub.Method(m.fn.Name))
		}
		groups[m.marks.policy] = append(groups[m.marks.policy], names...)
	}
	var views []policyView
	for p, names := range groups {
		views = append(views, policyView{p, names})
	}
	slices.SortFunc(views, func(a, b policyView) int { return strings.Compare(a.Policy, b.Policy) })
	return views
}

// view makes the view of a method.
func (c *checker) view(s *scope, m method) methodView {
	f, service := m.fn, m.service.Name
	v := methodView{
		Name: f.Name, Go: publicName(f.Name), Service: publicName(service), Oneway: f.Oneway, ByRef: m.marks.byRef(),
		Args: helperName(service, f.Name, "args"), Result: helperName(service, f.Name, "result"), Doc: comment(f.ReservedComments),
	}
	for i, a := range f.Arguments {
		v.Params = append(v.Params, c.param(s, m, a, m.marks.args[i]))
	}
	if !f.Void {
		r := c.param(s, m, &parser.Field{Name: "success", Type: f.FunctionType}, m.marks.result)
		v.Returns = &r
	}
	if v.ByRef && m.unit == s.self {
		for _, x := range f.Throws {
			v.Throws = append(v.Throws, c.param(s, m, x, false))
		}
	}
	return v
}

// param makes the view of one field.
func (c *checker) param(s *scope, m method, f *parser.Field, ref bool) paramView {
	p := paramView{Name: f.Name, Var: s.variable(f.Name), Field: publicName(f.Name), ID: f.ID, Ref: ref}
	t, err := s.resolve(m.unit, f.Type)
	if err != nil {
		c.add(m.unit, m.unit.fieldLine(m.service.Name, m.fn.Name, f.Name), "define it, or include the file that does",
			"%s of method %s: %v", f.Name, m.fn.Name, err)
		return p
	}
	p.Type, p.Wire, p.Address = t.goType, t.wire(), t.scalar()
	if !ref {
		return p
	}
	switch t.kind {
	case "struct":
		name := s.qualify(t.unit)
		p.Elem = "*" + name + publicName(t.def.Name)
		p.Form = "stub.Struct(" + name + "New" + publicName(t.def.Name) + ")"
		p.Maker = "rpc.RefOfStruct[" + p.Elem + "]"
	case "list":
		p.Elem = "[]" + t.elem.goType
	default:
		p.Elem = "[]byte"
	}
	if t.kind != "struct" {
		p.Form, p.Maker = "stub.Plain["+p.Elem+"]()", "rpc.RefOf["+p.Elem+"]"
	}
	return p
}

// comment makes Go comment lines of IDL's.
func comment(text string) []string {
	var lines []string
	for _, line := range strings.Split(text, "\n") {
		line = strings.TrimSpace(line)
		line = strings.TrimSuffix(strings.TrimLeft(strings.TrimPrefix(line, "//"), "/*"), "*/")
		if line = strings.TrimSpace(line); line != "" {
			lines = append(lines, line)
		}
	}
	return lines
}

// collisions refuses IDL that defines what the stubs are called.
func (c *checker) collisions(u *unit, v *fileView) {
	defined := map[string]string{}
	for _, list := range [][]*parser.StructLike{u.ast.Structs, u.ast.Unions, u.ast.Exceptions} {
		for _, d := range list {
			defined[publicName(d.Name)] = d.Name
		}
	}
	for _, d := range u.ast.Typedefs {
		defined[publicName(d.Alias)] = d.Alias
	}
	for _, d := range u.ast.Enums {
		defined[publicName(d.Name)] = d.Name
	}
	for _, s := range v.Services {
		for _, name := range []string{s.Go + "RefClient", s.Go + "RefHandler", "Open" + s.Go, "Export" + s.Go, "Add" + s.Go + "Refs"} {
			if d := defined[name]; d != "" {
				c.add(u, u.lineOf("service", s.Name), "rename it", "the stubs of service %s define %s, and so does the type %s", s.Name, name, d)
			}
		}
	}
}
