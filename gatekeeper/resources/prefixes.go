package resources

import (
	"fmt"
	"net/netip"
)

// Prefixes returns the fewest disjoint entries that say the same as the spread,
// ordered by value. An empty spread has none.
func (s *Spread) Prefixes() []Prefix {
	var all []Prefix
	s.collect(&all, 0, 0)
	return all
}

// collect appends the entries of the block whose high length bits are those of value.
func (s *Spread) collect(all *[]Prefix, value int, length uint8) {
	size := 256 >> length
	n, uniform := s.owner[value], true
	for _, o := range s.owner[value : value+size] {
		uniform = uniform && o == n
	}
	switch {
	case !uniform:
		s.collect(all, value, length+1)
		s.collect(all, value+size/2, length+1)
	case n.IsValid():
		*all = append(*all, Prefix{Value: uint8(value), Len: length, Node: n})
	}
}

// spreadOf is the inverse of Prefixes. It refuses entries that overlap, that
// have bits behind their length, or that leave values to nobody.
func spreadOf(entries []Prefix) (s Spread, err error) {
	covered := 0
	for _, p := range entries {
		size := 256 >> min(p.Len, 8)
		if p.Len > 8 || int(p.Value)%size != 0 || !p.Node.IsValid() {
			return s, fmt.Errorf("no spread prefix: value %d, length %d, node %s", p.Value, p.Len, p.Node)
		}
		for v := int(p.Value); v < int(p.Value)+size; v++ {
			if s.owner[v].IsValid() {
				return s, fmt.Errorf("spread value %d belongs to %s and to %s", v, s.owner[v], p.Node)
			}
			s.owner[v] = p.Node
		}
		covered += size
	}
	if covered != 0 && covered != 256 {
		return s, fmt.Errorf("spread covers %d of 256 values", covered)
	}
	return s, nil
}

// Change is how one method's entries become others. Insert and Modify first,
// wait for the switch, then Delete: so every call is routed by an old or a new
// entry at any moment, because a longer prefix wins over a shorter one.
type Change struct {
	Insert, Modify, Delete []Prefix
}

// IsZero reports whether nothing changes.
func (c Change) IsZero() bool { return len(c.Insert)+len(c.Modify)+len(c.Delete) == 0 }

// changeTo tells the entries that turn the spread s into t.
func (s *Spread) changeTo(t *Spread) (c Change) {
	type key struct{ value, length uint8 }
	old := map[key]netip.Addr{}
	before := s.Prefixes()
	for _, p := range before {
		old[key{p.Value, p.Len}] = p.Node
	}
	for _, p := range t.Prefixes() {
		k := key{p.Value, p.Len}
		was, there := old[k]
		delete(old, k)
		switch {
		case !there:
			c.Insert = append(c.Insert, p)
		case was != p.Node:
			c.Modify = append(c.Modify, p)
		}
	}
	for _, p := range before {
		if _, gone := old[key{p.Value, p.Len}]; gone {
			c.Delete = append(c.Delete, p)
		}
	}
	return c
}
