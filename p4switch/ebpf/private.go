//go:build linux

package ebpf

import (
	"reflect"
	"slices"

	"github.com/bifrost-rack/bifrost/p4switch/v1model"
)

// A field of metadata is private if only actions refer to it, and each one writes it before it reads it: a local variable,
// mostly of p4c's making, of which a long action has hundreds. What an earlier packet has left there makes no difference. So such a field is
// neither zeroed nor kept for copies of the packet, and those of one action that are not needed at the same time lie in one place.

// lifetime is where an action needs a field: from the first statement that refers to it to the last.
type lifetime struct {
	field       v1model.FieldRef
	first, last int
}

// privates are the fields that are private.
type privates struct {
	alone  [][]lifetime       // by action: fields of just this one
	shared []v1model.FieldRef // of several
}

func privatesOf(p *v1model.Program, n *needs) privates {
	barred := map[v1model.FieldRef]bool{}
	outside := refs{skip: true, seen: map[any]bool{}, f: func(r v1model.FieldRef) { barred[r] = true }}
	outside.walk(reflect.ValueOf(p))
	users := map[v1model.FieldRef]int{} // how many actions refer to it
	of := make([][]lifetime, len(p.Actions))
	for i, a := range p.Actions {
		of[i] = lifetimes(a, n, barred)
		for _, l := range of[i] {
			users[l.field]++
		}
	}
	out := privates{alone: make([][]lifetime, len(p.Actions))}
	for i, all := range of {
		for _, l := range all {
			switch k := users[l.field]; {
			case barred[l.field]:
			case k == 1:
				out.alone[i] = append(out.alone[i], l)
			case k > 1:
				out.shared = append(out.shared, l.field)
				users[l.field] = 0
			}
		}
	}
	return out
}

// lifetimes are those of the metadata that an action refers to, by their beginning. It bars what the action may read before it has
// written it, and what is referred to up to where a loop ends.
func lifetimes(a *v1model.Action, n *needs, barred map[v1model.FieldRef]bool) (all []lifetime) {
	before := n.action(a, n.none(), n.none())
	index := map[v1model.FieldRef]int{}
	for i, s := range a.Body {
		(&refs{seen: map[any]bool{}, f: func(r v1model.FieldRef) {
			number, ok := n.number(r)
			if !ok {
				return
			}
			if _, ok := index[r]; !ok {
				index[r] = len(all)
				all = append(all, lifetime{r, i, i})
				if before.has(number) {
					barred[r] = true
				}
			}
			all[index[r]].last = i
		}}).walk(reflect.ValueOf(s))
		if to, jumps := v1model.JumpTarget(s); jumps && to <= i {
			for _, l := range all {
				barred[l.field] = true
			}
		}
	}
	return all
}

// writes is the field that a statement assigns to without reading it, and whether it always does. It is not Valid if the
// statement's source has the field, too.
func writes(s v1model.Stmt, cells int) (dst v1model.FieldRef, whole bool) {
	var src []v1model.Expr
	switch s := s.(type) {
	case v1model.Assign:
		f, ok := s.Dst.(v1model.FieldValue)
		if !ok {
			return dst, false
		}
		dst, whole, src = f.Ref, true, []v1model.Expr{s.Src}
	case v1model.ReadRegister:
		f, ok := s.Dst.(v1model.FieldValue)
		if !ok {
			return dst, false
		}
		p := v1model.SpanOf(s.Index)
		n := bounded(s.Register.Size, cells)
		k, isConst := s.Index.(v1model.Const)
		inside := !p.Signed && p.Bits < 31 && 1<<p.Bits <= n || isConst && k.Value.IsInt64() && k.Value.Int64() >= 0 && k.Value.Int64() < int64(n)
		dst, whole, src = f.Ref, inside, []v1model.Expr{s.Index}
	}
	(&refs{seen: map[any]bool{}, f: func(r v1model.FieldRef) {
		if r == dst {
			dst, whole = v1model.FieldRef{}, false
		}
	}}).walk(reflect.ValueOf(src))
	return dst, whole
}

// refs finds the fields that a part of a program refers to; skip leaves out what actions do.
type refs struct {
	skip bool
	seen map[any]bool
	f    func(v1model.FieldRef)
}

func (w *refs) walk(v reflect.Value) {
	switch v.Kind() {
	case reflect.Interface:
		w.walk(v.Elem())
	case reflect.Pointer:
		if v.IsNil() || w.seen[v.Pointer()] {
			return
		}
		w.seen[v.Pointer()] = true
		switch v.Interface().(type) {
		case *v1model.Header, *v1model.HeaderType:
			return // a field is named with its header
		case *v1model.Action:
			if w.skip {
				return
			}
		}
		w.walk(v.Elem())
	case reflect.Slice, reflect.Array:
		for i := range v.Len() {
			w.walk(v.Index(i))
		}
	case reflect.Struct:
		if !v.CanInterface() {
			return
		}
		switch x := v.Interface().(type) {
		case v1model.FieldRef:
			if x.Valid() {
				w.f(x)
			}
			return
		case v1model.HeaderValue:
			for i := range x.Header.Type.Fields {
				w.f(v1model.FieldRef{Header: x.Header, Field: i})
			}
			return
		}
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() {
				w.walk(v.Field(i))
			}
		}
	case reflect.Map:
		for it := v.MapRange(); it.Next(); {
			w.walk(it.Key())
			w.walk(it.Value())
		}
	default:
	}
}

// place gives private fields places from a number of bytes on, and returns where these end.
func (p privates) place(from int, put func(r v1model.FieldRef, at int)) (end int) {
	end = from
	for _, r := range p.shared {
		put(r, end)
		end += 8 * words(r.Width())
	}
	from = end
	for _, all := range p.alone {
		var busy []int // by word: the last statement that needs it
		for _, l := range all {
			n := words(l.field.Width())
			at := 0
			for at < len(busy) && slices.ContainsFunc(busy[at:min(at+n, len(busy))], func(last int) bool { return last >= l.first }) {
				at++
			}
			for len(busy) < at+n {
				busy = append(busy, 0)
			}
			for i := range n {
				busy[at+i] = l.last
			}
			put(l.field, from+8*at)
		}
		end = max(end, from+8*len(busy))
	}
	return end
}
