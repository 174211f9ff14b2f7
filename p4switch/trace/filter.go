package trace

import (
	"fmt"
	"math/big"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/bifrost-rack/bifrost/p4switch/v1model"
)

// FilterError tells what is wrong with a term of a filter, and what would be right.
type FilterError struct {
	Term    string // as it was given
	Problem string
	Remedy  string
}

func (e *FilterError) Error() string {
	return fmt.Sprintf("filter %q: %s: %s", e.Term, e.Problem, e.Remedy)
}

// maxTerms bounds a filter, and maxTermBytes one of its terms.
const (
	maxTerms     = 32
	maxTermBytes = 256
)

const termForms = "write FIELD=VALUE, FIELD=VALUE/LENGTH, FIELD=VALUE&MASK, FIELD=LOW..HIGH, or the name of a header that must be valid"

// ParseFilter makes a condition of a program's fields out of terms, which must all hold when the parser has ended:
//
//	FIELD=VALUE  FIELD=VALUE/LENGTH  FIELD=VALUE&MASK  FIELD=LOW..HIGH  HEADER
//
// A field of a header is none of those unless the header is valid. "port" is the port that the packet came by. The last parts of a name are enough.
// Values are numbers (10, 0xa, 0b1010), IPv4, IPv6 and MAC addresses. An error is a *FilterError. Without terms, all packets are meant, and the
// condition is nil.
func ParseFilter(p *v1model.Program, terms []string) (v1model.Expr, error) {
	if len(terms) > maxTerms {
		return nil, &FilterError{terms[maxTerms], fmt.Sprintf("more than %d terms", maxTerms), "leave some out"}
	}
	var all v1model.Expr
	for _, term := range terms {
		e, err := parseTerm(p, term)
		if err != nil {
			return nil, err
		}
		if all != nil {
			e = v1model.Binary{Op: v1model.OpLogicalAnd, X: all, Y: e}
		}
		all = e
	}
	return all, nil
}

func parseTerm(p *v1model.Program, term string) (v1model.Expr, error) {
	fail := func(remedy, problem string, a ...any) (v1model.Expr, error) {
		shown := term
		if len(shown) > maxTermBytes {
			shown = shown[:maxTermBytes] + "…"
		}
		return nil, &FilterError{shown, fmt.Sprintf(problem, a...), remedy}
	}
	if len(term) > maxTermBytes {
		return fail(termForms, "longer than %d bytes", maxTermBytes)
	}
	name, text, valued := strings.Cut(term, "=")
	if name == "" {
		return fail(termForms, "no name")
	}
	if !valued {
		h, names := headerNamed(p, name)
		if h == nil {
			return fail("choose one of "+strings.Join(names, ", ")+"; or "+termForms, "not one header")
		}
		return valid(h), nil
	}
	f, names := fieldNamed(p, name)
	if !f.Valid() {
		return fail("choose one of "+strings.Join(names, ", "), "not one field")
	}
	low, mask, high, err := parseMatch(text, f.Width())
	if err != nil {
		return fail(termForms, "%v", err)
	}
	var e v1model.Expr
	value := v1model.FieldValue{Ref: f}
	k := func(n *big.Int) v1model.Expr { return v1model.Const{Value: n} }
	switch {
	case high != nil:
		e = v1model.Binary{
			Op: v1model.OpLogicalAnd,
			X:  v1model.Binary{Op: v1model.OpGreaterEqual, X: value, Y: k(low)},
			Y:  v1model.Binary{Op: v1model.OpLessEqual, X: value, Y: k(high)},
		}
	case mask != nil:
		e = v1model.Binary{Op: v1model.OpEqual, X: v1model.Binary{Op: v1model.OpAnd, X: value, Y: k(mask)}, Y: k(new(big.Int).And(low, mask))}
	default:
		e = v1model.Binary{Op: v1model.OpEqual, X: value, Y: k(low)}
	}
	if !f.Header.Metadata {
		e = v1model.Binary{Op: v1model.OpLogicalAnd, X: valid(f.Header), Y: e}
	}
	return e, nil
}

func valid(h *v1model.Header) v1model.Expr {
	return v1model.Unary{Op: v1model.OpValid, X: v1model.HeaderValue{Header: h}}
}

// parseMatch reads what a field of a width must be: a value, and perhaps a mask or an upper bound.
func parseMatch(text string, width int) (low, mask, high *big.Int, err error) {
	all := new(big.Int).Sub(new(big.Int).Lsh(big.NewInt(1), uint(width)), big.NewInt(1)) //nolint:gosec // a field's width
	value, more, by := text, "", ""
	for _, sep := range []string{"..", "&", "/"} {
		if v, m, ok := strings.Cut(text, sep); ok {
			value, more, by = v, strings.TrimLeft(m, "&"), sep
			break
		}
	}
	if low, err = Number(value); err != nil {
		return nil, nil, nil, err
	}
	switch by {
	case "..":
		high, err = Number(more)
	case "&":
		mask, err = Number(more)
	case "/":
		n, bad := strconv.Atoi(more)
		if bad != nil || n < 0 || n > width {
			return nil, nil, nil, fmt.Errorf("prefix of %q bits of %d", more, width)
		}
		mask = new(big.Int).Lsh(new(big.Int).Rsh(all, uint(width-n)), uint(width-n)) //nolint:gosec // not negative
	}
	if err != nil {
		return nil, nil, nil, err
	}
	for _, n := range []*big.Int{low, mask, high} {
		if n != nil && n.Cmp(all) > 0 {
			return nil, nil, nil, fmt.Errorf("%s needs more than the field's %d bits", n, width)
		}
	}
	if high != nil && low.Cmp(high) > 0 {
		return nil, nil, nil, fmt.Errorf("%s is more than %s", low, high)
	}
	return low, mask, high, nil
}

// Number reads a number that is not negative, or an IPv4, IPv6 or MAC address.
func Number(s string) (*big.Int, error) {
	if mac, err := net.ParseMAC(s); err == nil {
		return new(big.Int).SetBytes(mac), nil
	}
	if a, err := netip.ParseAddr(s); err == nil {
		return new(big.Int).SetBytes(a.AsSlice()), nil
	}
	n, ok := new(big.Int).SetString(s, 0)
	if !ok || n.Sign() < 0 {
		return nil, fmt.Errorf("%q is neither a number nor an address", s)
	}
	return n, nil
}

// headerNamed finds a program's header; nil, and the names that there are, unless one is meant.
func headerNamed(p *v1model.Program, name string) (*v1model.Header, []string) {
	var all []*v1model.Header
	for _, h := range p.Headers {
		if !h.Metadata {
			all = append(all, h)
		}
	}
	return named(all, name, func(h *v1model.Header) string { return h.Name })
}

// fieldNamed finds a program's field.
func fieldNamed(p *v1model.Program, name string) (v1model.FieldRef, []string) {
	if name == "port" {
		return p.Std.IngressPort, nil
	}
	var all []v1model.FieldRef
	for _, h := range p.Headers {
		for i, f := range h.Type.Fields {
			if !f.Varbit && !f.Signed {
				all = append(all, v1model.FieldRef{Header: h, Field: i})
			}
		}
	}
	return named(all, name, v1model.FieldRef.String)
}

// named finds the one thing of a name, or whose name ends so, or with whose name the name ends: p4c leaves out what headers are in.
func named[T any](all []T, name string, of func(T) string) (found T, names []string) {
	n := 0
	for _, t := range all {
		is := of(t)
		names = append(names, is)
		switch {
		case is == name:
			return t, nil
		case strings.HasSuffix(is, "."+name) || strings.HasSuffix(name, "."+is):
			if found = t; n > 0 {
				var none T
				found = none
			}
			n++
		}
	}
	slices.Sort(names)
	return found, names
}
