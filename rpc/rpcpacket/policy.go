package rpcpacket

import "strings"

// RefSuffix ends the name of a method's form by reference, which is a method of its
// own on the wire.
const RefSuffix = ".ref"

// PlainMethod is the name that people know a method by, also of its form by reference.
func PlainMethod(name string) string { return strings.TrimSuffix(name, RefSuffix) }

// ParsePolicy reads what Policy.String writes; it reports false for anything else.
func ParsePolicy(s string) (Policy, bool) {
	for p := PolicyNone; p <= PolicyTainted; p++ {
		if p.String() == s {
			return p, true
		}
	}
	return PolicyNone, false
}
