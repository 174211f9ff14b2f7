package interp

// prefixSpace is for LPM tables that also have exact fields: a tuple space for
// every value of those. A lookup then tries only the prefix lengths that occur
// there, and none if nobody has made an entry with that value.
type prefixSpace[K words] struct {
	exact  K // the mask of the exact fields
	groups map[K]*space[K]
}

func (s *prefixSpace[K]) group(k K) K {
	for i := 0; i < len(k); i++ {
		k[i] &= s.exact[i]
	}
	return k
}

func (s *prefixSpace[K]) find(key []uint64) *entry {
	if g := s.groups[s.group(toKey[K](key))]; g != nil {
		return g.find(key)
	}
	return nil
}

func (s *prefixSpace[K]) same(w *want, rank int64) *entry {
	if g := s.groups[s.group(toKey[K](w.low))]; g != nil {
		return g.same(w, rank)
	}
	return nil
}

func (s *prefixSpace[K]) insert(e *entry) {
	k := s.group(toKey[K](e.want.low))
	g := s.groups[k]
	if g == nil {
		g = &space[K]{}
		s.groups[k] = g
	}
	g.insert(e)
}

func (s *prefixSpace[K]) remove(e *entry) {
	k := s.group(toKey[K](e.want.low))
	g := s.groups[k]
	if g.remove(e); len(g.tuples) == 0 {
		delete(s.groups, k)
	}
}
