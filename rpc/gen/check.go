package gen

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"

	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
	"github.com/bifrost-rack/bifrost/rpc/stub"
)

// marks is what a method's annotations say.
type marks struct {
	args     []string // the runtime's constant of how each travels by reference, by index; "" is by value
	result   string
	policy   string // the runtime's constant, or ""
	failures string // the value of bifrost.max_failures
}

// byRef reports whether anything travels by reference.
func (m marks) byRef() bool {
	return m.result != "" || slices.ContainsFunc(m.args, func(a string) bool { return a != "" })
}

// method checks a method's annotations.
func (c *checker) method(u *unit, f *function) marks {
	line, on := f.Line, "method "+f.Name
	c.only(u, line, on, f.Annotations, markRef, markPolicy, markFailures)
	if f.Type != nil {
		c.only(u, line, "the type of "+on, f.Type.Annotations)
	}
	m := marks{args: make([]string, len(f.Arguments))}
	m.policy, m.failures = c.policy(u, line, on, f.Annotations), c.failures(u, line, on, f.Annotations)
	for i, a := range f.Arguments {
		m.args[i] = c.argument(u, f, a)
	}
	for _, x := range f.Throws {
		if line := x.Line; len(x.Annotations.Get(markRef)) > 0 {
			c.add(u, line, "an exception ends the call and all that it lent: return the value as a result",
				"exception %s of %s: cannot be a reference", x.Name, on)
		}
	}
	m.result = c.result(u, line, on, f)
	return m
}

// policy returns the runtime's name of the policy that annotations ask for, "" if
// they do not say.
func (c *checker) policy(u *unit, line int, on string, list annotations) string {
	return c.choice(u, line, on, markPolicy, c.mark(u, line, on, list, markPolicy), policies)
}

// state returns what the handler of a service has to be for its state: the runtime's name, or "".
func (c *checker) state(u *unit, d *service) string {
	on := "service " + d.Name
	return c.choice(u, d.Line, on, markState, c.mark(u, d.Line, on, d.Annotations, markState), states)
}

// failures returns after how many failures annotations have a call given up, "" if they do not say.
func (c *checker) failures(u *unit, line int, on string, list annotations) string {
	value := c.mark(u, line, on, list, markFailures)
	if value == "" {
		return ""
	}
	n, err := strconv.ParseUint(value, 10, 64)
	if err != nil || n > rpcpacket.MaxFailures {
		c.add(u, line, fmt.Sprintf("write a number to %d; 0 is never", rpcpacket.MaxFailures), "%s: %s has the value %q", on, markFailures, value)
		return ""
	}
	return strconv.FormatUint(n, 10)
}

// result checks the mark of a method's result.
func (c *checker) result(u *unit, line int, on string, f *function) string {
	switch values := f.Annotations.Get(markRef); {
	case len(values) == 0:
		return ""
	case len(values) > 1:
		c.add(u, line, "return one struct that has both", "%s: two results are marked %s, and a method has one", on, markRef)
	case ways[values[0]] == "" && values[0] != "out":
		c.add(u, line, refRemedy, "%s: %s has the unknown value %q", on, markRef, values[0])
	case f.Type == nil || f.Oneway:
		c.add(u, line, "declare a type for the result, or mark an argument behind its name", "%s: has no result that could be a reference", on)
	default:
		return c.way(u, line, "the result of "+on, values[0], f.Type)
	}
	return ways[bare]
}

// argument checks an argument's mark.
func (c *checker) argument(u *unit, f *function, a *field) string {
	line, on := a.Line, fmt.Sprintf("argument %s of method %s", a.Name, f.Name)
	c.only(u, line, on, a.Annotations, markRef)
	c.only(u, line, "the type of "+on, a.Type.Annotations)
	switch value := c.mark(u, line, on, a.Annotations, markRef); {
	case value == "":
		return ""
	case value == "out" && f.Type != nil:
		c.add(u, line, "return one struct that has both, and mark the method", "%s: makes two results, and a method has one", on)
	case value == "out":
		c.add(u, line, "make it the method's result, and mark that behind the method", "%s: an argument goes in only", on)
	case value == "inout":
		c.add(u, line, "take it as an argument and return what becomes of it", "%s: what is lent cannot be written", on)
	case ways[value] == "" && value != "in":
		c.add(u, line, refRemedy, "%s: %s has the unknown value %q", on, markRef, value)
	default:
		return c.way(u, line, on, value, a.Type)
	}
	return ways[bare]
}

// way is how a value of a type travels by reference, "" if it cannot.
func (c *checker) way(u *unit, line int, on, value string, t *idlType) string {
	if !c.passable(u, line, on, t) {
		return ""
	}
	return cmp.Or(ways[value], ways[bare])
}

// passable checks that a type can travel by reference.
func (c *checker) passable(u *unit, line int, on string, at *idlType) bool {
	t, err := c.scope.resolve(u, at)
	if err != nil {
		return true // what uses the type tells
	}
	if why, remedy := refusal(t); why != "" {
		c.add(u, line, remedy, "%s: %s cannot be a reference", on, why)
		return false
	}
	switch path := c.pointer(t, nil); path {
	case "":
		return true
	case "itself":
		c.add(u, line, "leave the mark out", "%s: a global pointer is a reference already", on)
	default:
		c.add(u, line, "pass the pointer as an argument or a result of its own",
			"%s: %s cannot be a reference: %s is a global pointer, which is lent only inside a message", on, at.Name, path)
	}
	return false
}

// refusal says why a type cannot travel by reference, "" if it can, and what to do
// instead.
func refusal(t *typ) (why, remedy string) {
	switch t.kind {
	case "binary", "string", "map", "set", "list":
		return "", ""
	case "struct":
		if t.def.Category == "exception" {
			return "an exception", "throw it, or pass a struct with the same fields"
		}
		return "", ""
	}
	return "a value of type " + t.kind, "it is small: pass it by value"
}

// pointerStruct is the IDL name of what the runtime takes for a global pointer.
const pointerStruct = "GlobalPointer"

// pointer returns the path to a global pointer within a type, or "".
func (c *checker) pointer(t *typ, seen []*structLike) string {
	if t.elem != nil {
		for _, part := range []*typ{t.key, t.elem} {
			if part == nil {
				continue
			}
			switch path := c.pointer(part, seen); path {
			case "":
			case "itself":
				return "each of its elements"
			default:
				return path
			}
		}
	}
	if t.def == nil {
		return ""
	}
	if t.def.Name == pointerStruct {
		return "itself"
	}
	for _, d := range seen {
		if d == t.def {
			return ""
		}
	}
	for _, f := range t.def.Fields {
		ft, err := c.scope.resolve(t.unit, f.Type)
		if err != nil {
			continue // Thrift's compiler tells
		}
		switch path := c.pointer(ft, append(seen, t.def)); path {
		case "":
		case "itself", "each of its elements":
			return f.Name
		default:
			return f.Name + "." + path
		}
	}
	return ""
}

// names refuses methods of a service that are the same in a packet's header.
func (c *checker) names(u *unit, s *service, methods []method, wire func(string) (rpcpacket.Method, error)) {
	known := map[rpcpacket.Method]string{}
	for _, m := range methods {
		names := []string{m.fn.Name}
		if m.marks.byRef() {
			names = append(names, stub.Method(m.fn.Name))
		}
		for _, name := range names {
			line := m.fn.Line
			w, err := wire(name)
			switch other := known[w]; {
			case err != nil:
				c.add(u, line, "shorten it", "method %s: %v", m.fn.Name, err)
			case other == m.fn.Name:
				c.add(u, line, "rename one of them", "service %s has two methods %s", s.Name, m.fn.Name)
			case other != "":
				c.add(u, line, "rename one of them", "methods %s and %s of service %s are both %s in the 16 bytes of a packet's header",
					other, name, s.Name, w)
			}
			known[w] = name
		}
	}
}
