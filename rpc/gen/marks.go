package gen

import (
	"fmt"
	"slices"
	"strings"
)

// The annotations.
const (
	markRef      = "bifrost.ref"
	markPolicy   = "bifrost.policy"
	markState    = "bifrost.state"
	markFailures = "bifrost.max_failures"
	markPrefix   = "bifrost."
	bare         = "1" // the value of an annotation without one
)

// places says where each annotation belongs.
var places = map[string]string{
	markRef:      "it belongs behind an argument's name, or, for the result, behind the method",
	markPolicy:   "it belongs behind a method or, for all of its methods, behind a service",
	markState:    "it belongs behind a service",
	markFailures: "it belongs behind a method or, for all of its methods, behind a service",
}

// ways are the values of bifrost.ref, and the runtime's names for them (package stub).
var ways = map[string]string{bare: "Cheapest", "region": "InRegion", "value": "InMessage"}

// refRemedy is what to do about another value.
const refRemedy = `write (bifrost.ref), (bifrost.ref = "region") or (bifrost.ref = "value")`

// policies are the values of bifrost.policy, and the runtime's names for them.
var policies = map[string]string{
	"none": "PolicyNone", "recover": "PolicyRecover", "fate-share": "PolicyFateShare", "tainted": "PolicyTainted",
}

// states are the values of bifrost.state, and what a handler must then be.
var states = map[string]string{bare: "State", "snapshot": "State", "incremental": "IncrementalState"}

// stateMethods are the methods of these.
var stateMethods = map[string][]string{
	"State":            {"Snapshot", "Restore"},
	"IncrementalState": {"Snapshot", "Restore", "Delta", "Apply"},
}

// checker collects the mistakes of IDL files.
type checker struct {
	problems problems
	scope    scope // for types that are looked at, not written
}

func (c *checker) add(u *unit, line int, remedy, format string, args ...any) {
	c.problems.add(u.path, line, remedy, format, args...)
}

// mark returns the value of an annotation that may stand but once, "" if it does
// not stand here.
func (c *checker) mark(u *unit, line int, on string, list annotations, key string) string {
	values := list.Get(key)
	if len(values) > 1 {
		c.add(u, line, "write it once", "%s: two annotations %s", on, key)
	}
	if len(values) == 0 {
		return ""
	}
	return values[0]
}

// only refuses annotations of ours that do not belong here.
func (c *checker) only(u *unit, line int, on string, list annotations, allowed ...string) {
	for _, a := range list {
		if !strings.HasPrefix(a.Key, markPrefix) || slices.Contains(allowed, a.Key) {
			continue
		}
		where := places[a.Key]
		if where == "" {
			c.add(u, line, "there are bifrost.ref, bifrost.policy, bifrost.max_failures and bifrost.state", "%s: unknown annotation %s", on, a.Key)
			continue
		}
		c.add(u, line, where, "%s: %s cannot stand here", on, a.Key)
	}
}

// choice returns what a value stands for, and refuses one that is not among them.
func (c *checker) choice(u *unit, line int, on, key, value string, among map[string]string) string {
	if value == "" {
		return ""
	}
	r, ok := among[value]
	if !ok {
		var known []string
		for v := range among {
			if v != bare {
				known = append(known, fmt.Sprintf("%q", v))
			}
		}
		slices.Sort(known)
		c.add(u, line, "write "+strings.Join(known, " or "), "%s: %s has the unknown value %q", on, key, value)
	}
	return r
}

// file refuses marks where nothing travels by itself: in structs, exceptions and
// typedefs.
func (c *checker) file(u *unit) {
	for _, d := range u.doc.Structs {
		c.only(u, d.Line, d.Category+" "+d.Name, d.Annotations)
		for _, f := range d.Fields {
			c.member(u, d, f)
		}
	}
	for _, d := range u.doc.Typedefs {
		line := d.Line
		c.only(u, line, "typedef "+d.Alias, d.Annotations)
		c.only(u, line, "typedef "+d.Alias, d.Type.Annotations)
	}
}

func (c *checker) member(u *unit, d *structLike, f *field) {
	on, line := fmt.Sprintf("field %s of %s %s", f.Name, d.Category, d.Name), f.Line
	if len(f.Annotations.Get(markRef))+len(f.Type.Annotations.Get(markRef)) > 0 {
		remedy := "pass the whole struct by reference, where it is an argument or a result"
		if d.Category == "exception" {
			remedy = "an exception ends the call and all that it lent: carry the value in it, or return it as a result"
		}
		c.add(u, line, remedy, "%s: cannot be a reference", on)
		return
	}
	c.only(u, line, on, f.Annotations)
	c.only(u, line, on, f.Type.Annotations)
}
