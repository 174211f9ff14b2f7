package interp

import (
	"fmt"
	"sort"

	"github.com/bifrost-rack/bifrost/p4switch/datapath"
	"github.com/bifrost-rack/bifrost/p4switch/v1model"
)

// keyPlan says how a table's key is packed into words: wide fields word by
// word, then narrow ones, several to a word.
type keyPlan struct {
	fields []keyField // in the table's order
	words  int
	// ranges: some field is matched by range.
	ranges bool
}

// keyField is one field of a key.
type keyField struct {
	v1model.Key
	sl     slot
	base   int // of the header, whose validity decides; -1 for one always valid
	mask   []uint64
	first  int  // the field's first word of the key
	shift  uint // of a field that shares its word
	single bool // the field is one word or less
}

func (c *compiler) keyPlan(t *v1model.Table) (*keyPlan, error) {
	p := &keyPlan{}
	for _, k := range t.Key {
		f := keyField{Key: k, sl: c.lay.slot(k.Field), base: -1}
		if !k.Field.Header.Metadata && k.Field.Field != v1model.ValidField {
			f.base = c.lay.bases[k.Field.Header.Index]
		}
		f.mask = fullMask(f.sl.width)
		if k.Mask != nil {
			f.mask = bytesToWords(k.Mask, f.sl.width)
		}
		f.single = f.sl.n == 1
		p.ranges = p.ranges || k.Kind == v1model.MatchRange
		p.fields = append(p.fields, f)
	}
	p.allocate()
	if p.words > maxKeyWords {
		return nil, fmt.Errorf("table %q: key of more than %d bits: %w", t.Name, maxKeyWords*64, datapath.ErrUnsupported)
	}
	return p, nil
}

// allocate gives each field its words.
func (p *keyPlan) allocate() {
	order := make([]*keyField, len(p.fields))
	for i := range p.fields {
		order[i] = &p.fields[i]
	}
	sort.SliceStable(order, func(i, j int) bool { return order[i].sl.width > order[j].sl.width })
	room := []int{} // free bits of each word
	for _, f := range order {
		if !f.single {
			f.first = len(room)
			for range f.sl.n {
				room = append(room, 0)
			}
			continue
		}
		f.first = len(room)
		for i, free := range room {
			if free >= f.sl.width {
				f.first = i
				break
			}
		}
		if f.first == len(room) {
			room = append(room, 64)
		}
		f.shift = uint(64 - room[f.first])
		room[f.first] -= f.sl.width
	}
	p.words = len(room)
}

// exactMask has the bits of the exact fields of an LPM key set; it is nil if the
// key is of another kind or has no such fields.
func (p *keyPlan) exactMask() []uint64 {
	mask, exact, prefix := make([]uint64, p.words), false, false
	for i := range p.fields {
		switch f := &p.fields[i]; f.Kind {
		case v1model.MatchExact:
			exact = true
			f.put(mask, fullMask(f.sl.width))
		case v1model.MatchLPM:
			prefix = true
		default:
			return nil
		}
	}
	if !exact || !prefix {
		return nil
	}
	return mask
}

// load packs the packet's key.
func (p *keyPlan) load(s *state) []uint64 {
	key := s.key[:p.words]
	clear(key)
	for i := range p.fields {
		f := &p.fields[i]
		if f.base >= 0 && s.w[f.base] == 0 {
			continue
		}
		if f.single {
			key[f.first] |= (s.w[f.sl.at] & f.mask[0]) << f.shift
			continue
		}
		for k, m := range f.mask {
			key[f.first+k] = s.w[f.sl.at+k] & m
		}
	}
	return key
}

// put packs a field's value or mask.
func (f *keyField) put(key, v []uint64) {
	if f.single {
		key[f.first] |= v[0] << f.shift
		return
	}
	copy(key[f.first:], v)
}

// match packs what an entry wants of all fields.
func (p *keyPlan) match(ms []datapath.Match) (want, error) {
	w := want{
		mask: make([]uint64, p.words), low: make([]uint64, p.words), high: make([]uint64, p.words),
	}
	if len(ms) != len(p.fields) {
		return w, fmt.Errorf("%d match fields for a key of %d", len(ms), len(p.fields))
	}
	for i := range p.fields {
		f := &p.fields[i]
		m := fieldMatch{width: f.sl.width}
		if err := m.read(&ms[i], f.Kind); err != nil {
			return w, fmt.Errorf("match field %q: %w", f.Name, err)
		}
		// A field that the program masks already cannot match what it masks out.
		for k := range m.mask {
			m.mask[k] &= f.mask[k]
			m.low[k] &= f.mask[k]
		}
		f.put(w.mask, m.mask)
		f.put(w.low, m.low)
		f.put(w.high, m.high)
		w.prefixLen += m.prefixLen
	}
	return w, nil
}

// want is a packed match: a masked key between low and high field by field.
type want struct {
	mask, low, high []uint64
	prefixLen       int
}

// within tells whether every field of a key, masked, is between the entry's
// low and high.
func (p *keyPlan) within(key []uint64, w *want) bool {
	for i := range p.fields {
		f := &p.fields[i]
		if f.single {
			m := mask64(f.sl.width)
			v := key[f.first] & w.mask[f.first] >> f.shift & m
			if v < w.low[f.first]>>f.shift&m || v > w.high[f.first]>>f.shift&m {
				return false
			}
			continue
		}
		at, n := f.first, f.sl.n
		var v [maxKeyWords]uint64
		for k := at; k < at+n; k++ {
			v[k] = key[k] & w.mask[k]
		}
		if compareWords(v[at:at+n], w.low[at:at+n]) < 0 || compareWords(v[at:at+n], w.high[at:at+n]) > 0 {
			return false
		}
	}
	return true
}

// fieldMatch is what an entry wants of a field of width bits, in words: a
// masked key between low and high, inclusive. Only a range has low ≠ high.
type fieldMatch struct {
	width           int
	mask, low, high []uint64
	prefixLen       int // of LPM
}

// read takes a match of the given kind; a field without a mask is exact.
func (f *fieldMatch) read(m *datapath.Match, kind v1model.MatchKind) error {
	n := wordsFor(f.width)
	if m.Wildcard {
		if kind == v1model.MatchExact {
			return fmt.Errorf("exact field left out")
		}
		f.mask, f.low, f.high = make([]uint64, n), make([]uint64, n), make([]uint64, n)
		return nil
	}
	var err error
	if f.low, err = f.words(m.Value); err != nil {
		return err
	}
	f.high = f.low
	f.mask = fullMask(f.width)
	switch kind {
	case v1model.MatchLPM:
		if m.PrefixLen < 0 || m.PrefixLen > f.width {
			return fmt.Errorf("prefix of %d bits of %d", m.PrefixLen, f.width)
		}
		f.prefixLen = m.PrefixLen
		f.mask = prefixMask(f.width, m.PrefixLen)
	case v1model.MatchTernary:
		if m.Mask != nil {
			f.mask, err = f.words(m.Mask)
		}
	case v1model.MatchRange:
		if f.high, err = f.words(m.High); err == nil && compareWords(f.low, f.high) > 0 {
			err = fmt.Errorf("empty range")
		}
	default: // exact: the value is all
	}
	if err != nil {
		return err
	}
	for i := range f.mask {
		f.low[i] &= f.mask[i]
	}
	return nil
}

// words reads bytes as wide as the field.
func (f *fieldMatch) words(b []byte) ([]uint64, error) {
	if len(b) != (f.width+7)/8 {
		return nil, fmt.Errorf("%d bytes for %d bits", len(b), f.width)
	}
	w := bytesToWords(b, f.width)
	if spare := len(b)*8 - f.width; spare > 0 && b[0]>>(8-spare) != 0 {
		return nil, fmt.Errorf("value wider than %d bits", f.width)
	}
	return w, nil
}

// prefixMask has the first n bits of a field set.
func prefixMask(width, n int) []uint64 {
	w := fullMask(width)
	for drop, i := width-n, len(w)-1; drop > 0; i-- {
		k := min(drop, 64)
		w[i] &= ^mask64(k)
		drop -= k
	}
	return w
}
