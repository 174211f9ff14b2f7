package interp

import (
	"math"
	"slices"

	"github.com/bifrost-rack/bifrost/p4switch/datapath"
	"github.com/bifrost-rack/bifrost/p4switch/v1model"
)

// words is a packed key of a fixed number of words.
type words interface {
	[1]uint64 | [2]uint64 | [4]uint64 | [8]uint64 | [16]uint64 | [32]uint64
}

// matcher finds the entry that wins for a key.
type matcher interface {
	// find returns the winner, or nil.
	find(key []uint64) *entry
	// same returns the entry with the same match and priority, or nil.
	same(w *want, priority int64) *entry
	insert(e *entry)
	remove(e *entry)
}

// newMatcher makes a matcher for a table's keys.
func newMatcher(p *keyPlan) matcher {
	switch n := p.words; {
	case n <= 1:
		return newSpace[[1]uint64](p)
	case n <= 2:
		return newSpace[[2]uint64](p)
	case n <= 4:
		return newSpace[[4]uint64](p)
	case n <= 8:
		return newSpace[[8]uint64](p)
	case n <= 16:
		return newSpace[[16]uint64](p)
	}
	return newSpace[[32]uint64](p)
}

func newSpace[K words](p *keyPlan) matcher {
	if p.ranges {
		return &rangeSpace[K]{plan: p}
	}
	if exact := p.exactMask(); exact != nil {
		return &prefixSpace[K]{exact: toKey[K](exact), groups: map[K]*space[K]{}}
	}
	return &space[K]{}
}

// space is a tuple space: entries with the same mask are in a hash table of
// their own, and a lookup asks the tables in the order of their best entry's
// precedence, until no other can win. An exact table has one, an LPM table one
// for every prefix length.
type space[K words] struct{ tuples []*tuple[K] }

// tuple holds the entries with one mask. Those with the same key are in order
// of precedence.
type tuple[K words] struct {
	mask    K
	entries map[K][]*entry
	// ranks counts the entries of each precedence; best is the highest.
	ranks map[int64]int
	best  int64
}

// lowest is below every rank.
const lowest = int64(math.MinInt64)

func toKey[K words](w []uint64) (k K) {
	for i, v := range w {
		k[i] = v
	}
	return k
}

func (s *space[K]) find(key []uint64) *entry {
	k := toKey[K](key)
	var won *entry
	for _, t := range s.tuples {
		if won != nil && t.best < won.rank {
			break
		}
		m := k
		for i := 0; i < len(m); i++ {
			m[i] &= t.mask[i]
		}
		if es := t.entries[m]; es != nil && (won == nil || es[0].before(won)) {
			won = es[0]
		}
	}
	return won
}

func (s *space[K]) tuple(mask K) *tuple[K] {
	for _, t := range s.tuples {
		if t.mask == mask {
			return t
		}
	}
	return nil
}

func (s *space[K]) same(w *want, rank int64) *entry {
	t := s.tuple(toKey[K](w.mask))
	if t == nil {
		return nil
	}
	for _, e := range t.entries[toKey[K](w.low)] {
		if e.rank == rank {
			return e
		}
	}
	return nil
}

func (s *space[K]) insert(e *entry) { s.insertAt(e, toKey[K](e.want.mask), toKey[K](e.want.low)) }

// insertAt inserts an entry into the tuple of a mask, with a key.
func (s *space[K]) insertAt(e *entry, mask, k K) {
	t := s.tuple(mask)
	if t == nil {
		t = &tuple[K]{mask: mask, entries: map[K][]*entry{}, ranks: map[int64]int{}, best: lowest}
		s.tuples = append(s.tuples, t)
	}
	t.entries[k] = insertSorted(t.entries[k], e)
	t.ranks[e.rank]++
	s.order(t)
}

func (s *space[K]) remove(e *entry) { s.removeAt(e, toKey[K](e.want.mask), toKey[K](e.want.low)) }

// removeAt removes an entry from the tuple of a mask.
func (s *space[K]) removeAt(e *entry, mask, k K) {
	t := s.tuple(mask)
	es := slices.DeleteFunc(t.entries[k], func(x *entry) bool { return x == e })
	if len(es) > 0 {
		t.entries[k] = es
	} else {
		delete(t.entries, k)
	}
	if t.ranks[e.rank]--; t.ranks[e.rank] == 0 {
		delete(t.ranks, e.rank)
	}
	if len(t.entries) == 0 {
		s.tuples = slices.DeleteFunc(s.tuples, func(x *tuple[K]) bool { return x == t })
		return
	}
	s.order(t)
}

// order keeps the tuples in the order of their best entries after t has changed.
func (s *space[K]) order(t *tuple[K]) {
	best := lowest
	for r := range t.ranks {
		best = max(best, r)
	}
	if best == t.best {
		return
	}
	t.best = best
	slices.SortStableFunc(s.tuples, func(a, b *tuple[K]) int {
		switch {
		case a.best > b.best:
			return -1
		case a.best < b.best:
			return 1
		}
		return 0
	})
}

func insertSorted(es []*entry, e *entry) []*entry {
	i := 0
	for i < len(es) && es[i].before(e) {
		i++
	}
	return slices.Insert(es, i, e)
}

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

// rangeSpace is a tuple space for tables with ranges. A range is in two tuples: below and above the multiple of the highest power of two in it, each the
// more than half of a block. Whether a key of the block is in the range is seen from the entry. A range of more than a word is in one tuple for all values.
type rangeSpace[K words] struct {
	space[K]
	plan *keyPlan
}

func (s *rangeSpace[K]) find(key []uint64) *entry {
	k := toKey[K](key)
	var won *entry
	for _, t := range s.tuples {
		if won != nil && t.best < won.rank {
			break
		}
		m := k
		for i := 0; i < len(m); i++ {
			m[i] &= t.mask[i]
		}
		for _, e := range t.entries[m] {
			if won != nil && !e.before(won) {
				break
			}
			if e.matches(key) {
				won = e
				break
			}
		}
	}
	return won
}

func (s *rangeSpace[K]) same(w *want, rank int64) *entry {
	mask, k := s.parts(w)
	t := s.tuple(mask[0])
	if t == nil {
		return nil
	}
	for _, e := range t.entries[k[0]] {
		if e.rank == rank && slices.Equal(e.want.mask, w.mask) && slices.Equal(e.want.low, w.low) && slices.Equal(e.want.high, w.high) {
			return e
		}
	}
	return nil
}

func (s *rangeSpace[K]) insert(e *entry) {
	mask, k := s.parts(&e.want)
	for i := range mask {
		s.insertAt(e, mask[i], k[i])
	}
}

func (s *rangeSpace[K]) remove(e *entry) {
	mask, k := s.parts(&e.want)
	for i := range mask {
		s.removeAt(e, mask[i], k[i])
	}
}

// parts are the masks of an entry's tuples, and its keys there.
func (s *rangeSpace[K]) parts(w *want) (masks, keys []K) {
	mask, k := toKey[K](w.mask), toKey[K](w.low)
	masks, keys = []K{mask}, []K{k}
	splits := 0
	for i := range s.plan.fields {
		f := &s.plan.fields[i]
		if f.Kind != v1model.MatchRange {
			continue
		}
		for n := range masks {
			for at := f.first; at < f.first+f.sl.n; at++ {
				bits := ^uint64(0)
				if f.single {
					bits = mask64(f.sl.width) << f.shift
				}
				masks[n][at] &^= bits
				keys[n][at] &^= bits
			}
		}
		if !f.single || w.mask[f.first]>>f.shift&mask64(f.sl.width) == 0 || splits == datapath.MaxSplit {
			continue
		}
		splits++
		low, high := w.low[f.first]>>f.shift&mask64(f.sl.width), w.high[f.first]>>f.shift&mask64(f.sl.width)
		blocks := datapath.Blocks(low, high)
		for n := len(masks) - 1; n >= 0; n-- {
			if len(blocks) > 1 {
				masks, keys = append(masks, masks[n]), append(keys, keys[n])
				narrow(f, &masks[len(masks)-1], &keys[len(keys)-1], blocks[1])
			}
			narrow(f, &masks[n], &keys[n], blocks[0])
		}
	}
	return masks, keys
}

// narrow puts a block of a field into a mask and a key.
func narrow[K words](f *keyField, mask, k *K, b datapath.Block) {
	(*mask)[f.first] |= b.Mask & mask64(f.sl.width) << f.shift
	(*k)[f.first] |= b.Value << f.shift
}
