//go:build linux

package ebpf

import (
	"encoding/binary"
	"fmt"

	"github.com/bifrost-rack/bifrost/p4/datapath"
	"github.com/bifrost-rack/bifrost/p4/v1model"
	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
)

// A parser value set is a list as that of a table which is looked through (scan.go),
// without values: each member has a mask and two bounds for every word of the key.

// defaultSet is how many members a set has that does not tell.
const defaultSet = 1024

// valueSet is a value set that the parser looks at.
type valueSet struct {
	def  *v1model.ValueSet
	plan *scanPlan
	list *ebpf.Map
}

// planSet plans a set; nil if the parser does not look at it.
func planSet(p *v1model.Program, set *v1model.ValueSet) *scanPlan {
	for _, st := range p.Parser.States {
		for _, c := range st.Cases {
			if c.Set == set {
				return planMembers(set, st.Key)
			}
		}
	}
	return nil
}

func planMembers(set *v1model.ValueSet, key []v1model.KeyPart) *scanPlan {
	p := &scanPlan{}
	for _, k := range key {
		kind := v1model.MatchRange // which the others are special cases of
		if k.Width > 64 {
			kind = v1model.MatchTernary
		}
		p.fields = append(p.fields, scanField{Key: v1model.Key{Kind: kind}, at: p.words, width: k.Width})
		p.words += words(k.Width)
	}
	room := set.Size
	if room <= 0 {
		room = defaultSet
	}
	p.record = scanWord * p.words
	p.room = min(room+1, maxList/p.record) // a list's first entry matches nothing
	return p
}

func setName(set *v1model.ValueSet) string { return fmt.Sprintf("bifrost_set_%d", set.Index) }

// inSet goes to none unless the key, which is on the stack, is in a set.
func (g *gen) inSet(set *v1model.ValueSet, none string) {
	p := planSet(g.prog, set)
	for i := range p.words {
		g.emit(asm.LoadMem(asm.R0, asm.R10, spillAt(i+1), asm.DWord))
		g.store(g.st.key+8*i, asm.R0)
	}
	g.search(setName(set), p, g.objs.sets[set.Index], none)
	g.emit(asm.JEq.Imm(asm.R0, 0, none)) // none of the members
}

// makeSets makes the sets' maps.
func (x *Executor) makeSets() error {
	for _, def := range x.prog.ValueSets {
		s := valueSet{def: def, plan: planSet(x.prog, def)}
		x.sets = append(x.sets, &s)
		if s.plan == nil {
			continue
		}
		var err error
		s.list, err = newMap(&ebpf.MapSpec{
			Name: "value_set", Type: ebpf.LPMTrie, Flags: bpfNoPrealloc, KeySize: 8, ValueSize: uint32(s.plan.size()), MaxEntries: 1,
		})
		if err == nil {
			err = s.write(nil)
		}
		if err != nil {
			return fmt.Errorf("value set %q: %w", def.Name, err)
		}
	}
	return nil
}

// ValueSet implements datapath.Datapath. How a member matches shows by the fields set.
func (x *Executor) ValueSet(name string, members [][]datapath.Match) error {
	for _, s := range x.sets {
		if s.def.Name != name {
			continue
		}
		if s.plan == nil {
			return fmt.Errorf("value set %q: %w: the program never looks at it", name, datapath.ErrUnsupported)
		}
		if err := s.write(members); err != nil {
			return fmt.Errorf("value set %q: %w", name, err)
		}
		return nil
	}
	return fmt.Errorf("value set %q: %w", name, datapath.ErrNotFound)
}

// write replaces the set's members, in one step.
func (s *valueSet) write(members [][]datapath.Match) error {
	if len(members)+1 > s.plan.room {
		return datapath.ErrFull
	}
	b := make([]byte, s.plan.size())
	binary.NativeEndian.PutUint64(b, uint64(len(members)+1))
	for i, m := range members {
		if err := s.plan.member(b[listHeader+(i+1)*s.plan.record:], m); err != nil {
			return fmt.Errorf("member %d: %w", i, err)
		}
	}
	return putElement(s.list, listKey(), b)
}

// member writes what a member wants of the key's words.
func (p *scanPlan) member(want []byte, ms []datapath.Match) error {
	if len(ms) != len(p.fields) {
		return fmt.Errorf("%d fields instead of %d", len(ms), len(p.fields))
	}
	for i, f := range p.fields {
		as := f
		if as.Kind = memberKind(&ms[i]); as.Kind == v1model.MatchRange && f.Kind != v1model.MatchRange {
			return fmt.Errorf("field %d: %w: range of more than 64 bits", i, datapath.ErrUnsupported)
		}
		if _, err := as.put(want, &ms[i]); err != nil {
			return fmt.Errorf("field %d: %w", i, err)
		}
		if f.Kind == v1model.MatchRange && as.Kind != v1model.MatchRange {
			at := want[scanWord*f.at:]
			copy(at[16:24], at[8:16])
		}
	}
	return nil
}

func memberKind(m *datapath.Match) v1model.MatchKind {
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
