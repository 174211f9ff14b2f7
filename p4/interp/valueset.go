package interp

import (
	"fmt"

	"github.com/bifrost-rack/bifrost/p4/datapath"
	"github.com/bifrost-rack/bifrost/p4/v1model"
)

// valueSet is a parser value set. Its members are guarded by the executor's
// lock.
type valueSet struct {
	def     *v1model.ValueSet
	parts   []keyLoad // of the keys it is used for; all have the same widths
	members []setMember
}

// setMember matches keys between low and high, masked.
type setMember struct{ mask, low, high []uint64 }

// shape notes the layout of a key that the set is used for.
func (v *valueSet) shape(k *choiceKey) { v.parts = k.parts }

func (v *valueSet) contains(key []uint64) bool {
	for i := range v.members {
		if v.members[i].match(key, v.parts) {
			return true
		}
	}
	return false
}

func (m *setMember) match(key []uint64, parts []keyLoad) bool {
	for i := range parts {
		p := &parts[i]
		var masked [maxKeyWords]uint64
		for w := p.first; w < p.first+p.n; w++ {
			masked[w] = key[w] & m.mask[w]
		}
		k := masked[p.first : p.first+p.n]
		if compareWords(k, m.low[p.first:p.first+p.n]) < 0 || compareWords(k, m.high[p.first:p.first+p.n]) > 0 {
			return false
		}
	}
	return true
}

// compareWords compares numbers of the same number of words.
func compareWords(a, b []uint64) int {
	for i := range a {
		switch {
		case a[i] < b[i]:
			return -1
		case a[i] > b[i]:
			return 1
		}
	}
	return 0
}

// ValueSet implements datapath.Datapath. A member has one match for each part
// of the key that the set is used for; how it matches shows by the fields set.
func (x *Executor) ValueSet(name string, members [][]datapath.Match) error {
	v := x.valueSet(name)
	if v == nil {
		return fmt.Errorf("value set %q: %w", name, datapath.ErrNotFound)
	}
	if v.parts == nil {
		return fmt.Errorf("value set %q: %w: the program never looks at it", name, datapath.ErrUnsupported)
	}
	if v.def.Size > 0 && len(members) > v.def.Size {
		return fmt.Errorf("value set %q: %w", name, datapath.ErrFull)
	}
	packed := make([]setMember, 0, len(members))
	for i, m := range members {
		p, err := v.pack(m)
		if err != nil {
			return fmt.Errorf("value set %q: member %d: %w", name, i, err)
		}
		packed = append(packed, p)
	}
	x.lock.lock()
	defer x.lock.unlock()
	v.members = packed
	return nil
}

func (x *Executor) valueSet(name string) *valueSet {
	for _, v := range x.valueSets {
		if v.def.Name == name {
			return v
		}
	}
	return nil
}

func (v *valueSet) pack(ms []datapath.Match) (setMember, error) {
	var m setMember
	if len(ms) != len(v.parts) {
		return m, fmt.Errorf("%d fields instead of %d", len(ms), len(v.parts))
	}
	for i, p := range v.parts {
		f := fieldMatch{width: p.width}
		if err := f.read(&ms[i], setKind(&ms[i])); err != nil {
			return m, fmt.Errorf("field %d: %w", i, err)
		}
		m.mask = append(m.mask, f.mask...)
		m.low = append(m.low, f.low...)
		m.high = append(m.high, f.high...)
	}
	return m, nil
}

func setKind(m *datapath.Match) v1model.MatchKind {
	switch {
	case m.High != nil:
		return v1model.MatchRange
	case m.Mask != nil || m.Wildcard:
		return v1model.MatchTernary
	case m.PrefixLen > 0:
		return v1model.MatchLPM
	}
	return v1model.MatchExact
}
