//go:build linux

package ebpf

import (
	"encoding/binary"
	"fmt"
	mapsutil "maps"
	"slices"
	"sync"

	"github.com/bifrost-rack/bifrost/p4switch/datapath"
	"github.com/bifrost-rack/bifrost/p4switch/v1model"
	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
)

// The entries of a table with an action profile name a member, which is an action,
// or a group, from which the packet's hash chooses a member. Members and groups are
// nodes of tries, as entries are; a group's node has all its members in it, each as
// often as it weighs, so a packet sees a group before an update or behind it:
//
//	entry ──▶ member: an entry's value
//	      └─▶ group: how many there are u64 │ an entry's value each
//
// In the place of its action an entry has one of these, and the id as its argument.
const (
	actMember = 1<<31 - 2
	actGroup  = 1<<31 - 1
)

const (
	// maxChoices is how many members a group may have, each counted as often as it
	// weighs.
	maxChoices = 512
	// defaultProfile is the size of a profile that does not tell.
	defaultProfile = 1 << 16
)

// profile is an action profile. Its lock is taken before a table's.
type profile struct {
	def             *v1model.ActionProfile
	members, groups *ebpf.Map // groups is nil without a selector

	mu        sync.Mutex // guards what follows
	known     map[uint32]*member
	knownSets map[uint32]*memberSet
}

// member is an action that entries and groups refer to.
type member struct {
	call *v1model.ActionCall
	refs int
}

// memberSet is a group.
type memberSet struct {
	weights map[uint32]int
	refs    int
}

// profileObjects are a profile's maps.
type profileObjects struct{ members, groups fder }

// recordSize is the size of a member's value.
func recordSize(p *v1model.ActionProfile) (n int) {
	for _, t := range p.Tables {
		n = max(n, align8(entrySize(t)))
	}
	return n
}

// actionNumber is how entries name an action of their table; those of members are
// for all tables of the profile.
func actionNumber(t *v1model.Table, i int) int {
	if t.Profile != nil {
		return t.Actions[i].Index + 1
	}
	return i + 1
}

// resolve makes rEntry the member that an entry names, or goes to none if there is
// none.
func (g *gen) resolve(t *v1model.Table, none string) {
	if t.Profile == nil {
		return
	}
	maps, direct, group := g.objs.profiles[t.Profile.Index], g.label("direct"), g.label("group")
	g.emit(
		asm.LoadMem(asm.R0, rEntry, entryAction, asm.Word),
		asm.JEq.Imm(asm.R0, actGroup, group), asm.JNE.Imm(asm.R0, actMember, direct))
	g.lookupID(maps.members, none)
	g.jump(direct)
	g.mark(group)
	if calc := t.Profile.Selector; calc == nil {
		g.jump(none)
	} else {
		if isCRC(calc.Algorithm) {
			g.findTables()
		}
		g.calculate(calc)
		g.store(stScratch, asm.R0)
		g.lookupID(maps.groups, none)
		g.emit(asm.LoadMem(asm.R1, rEntry, 0, asm.DWord), asm.JEq.Imm(asm.R1, 0, none))
		g.load(asm.R0, stScratch)
		g.emit(
			asm.Mod.Reg(asm.R0, asm.R1), asm.JGE.Imm(asm.R0, maxChoices, none),
			asm.Mul.Imm(asm.R0, int32(recordSize(t.Profile))), asm.Add.Reg(rEntry, asm.R0), asm.Add.Imm(rEntry, listHeader))
	}
	g.mark(direct)
}

// lookupID looks up the id that is the entry's argument.
func (g *gen) lookupID(m fder, none string) {
	g.storeImm(g.st.key, 32, asm.Word)
	g.emit(asm.LoadMem(asm.R0, rEntry, entryArgs, asm.Word), asm.StoreMem(rState, int16(g.st.key+4), asm.R0, asm.Word))
	g.lookup(m, rState, g.st.key)
	g.emit(asm.JEq.Imm(asm.R0, 0, none), asm.Mov.Reg(rEntry, asm.R0))
}

func idKey(id uint32) []byte {
	return binary.NativeEndian.AppendUint32(binary.NativeEndian.AppendUint32(nil, 32), id)
}

func (x *Executor) makeProfiles() error {
	for _, def := range x.prog.Profiles {
		p := &profile{def: def, known: map[uint32]*member{}, knownSets: map[uint32]*memberSet{}}
		x.profiles = append(x.profiles, p)
		size := def.MaxSize
		if size <= 0 {
			size = defaultProfile
		}
		trie := func(name string, value int) (*ebpf.Map, error) {
			return newMap(&ebpf.MapSpec{
				Name: name, Type: ebpf.LPMTrie, Flags: bpfNoPrealloc, KeySize: 8, ValueSize: uint32(value), MaxEntries: uint32(size),
			})
		}
		var err error
		if p.members, err = trie("members", max(recordSize(def), entryArgs)); err == nil && def.Selector != nil {
			p.groups, err = trie("groups", listHeader+maxChoices*recordSize(def))
		}
		if err != nil {
			return fmt.Errorf("action profile %q: %w", def.Name, err)
		}
	}
	return nil
}

func (x *Executor) profile(name string) (*profile, error) {
	for _, p := range x.profiles {
		if p.def.Name == name {
			return p, nil
		}
	}
	return nil, fmt.Errorf("action profile %q: %w", name, datapath.ErrNotFound)
}

// Member implements datapath.Datapath.
func (x *Executor) Member(op datapath.Op, name string, id uint32, a datapath.Action) error {
	p, err := x.profile(name)
	if err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := x.writeMember(p, op, id, a); err != nil {
		return fmt.Errorf("action profile %q: member %d: %w", name, id, err)
	}
	return nil
}

func (x *Executor) writeMember(p *profile, op datapath.Op, id uint32, a datapath.Action) error {
	m := p.known[id]
	switch {
	case op != datapath.Insert && m == nil:
		return datapath.ErrNotFound
	case op == datapath.Insert && m != nil:
		return datapath.ErrExists
	case op == datapath.Delete && m.refs > 0:
		return fmt.Errorf("%w: still in use", datapath.ErrUnsupported)
	case op == datapath.Delete:
		delete(p.known, id)
		return deleteElement(p.members, idKey(id))
	}
	call, err := x.bindAny(p.def.Tables, a)
	if err != nil {
		return err
	}
	if op == datapath.Insert && p.def.MaxSize > 0 && len(p.known) >= p.def.MaxSize {
		return datapath.ErrFull
	}
	if err := putElement(p.members, idKey(id), p.record(call)); err != nil {
		return err
	}
	if m == nil {
		m = &member{}
		p.known[id] = m
	}
	m.call = call
	for gid, s := range p.knownSets {
		if _, in := s.weights[id]; !in {
			continue
		}
		if err := p.putGroup(gid, s.weights); err != nil {
			return err
		}
	}
	return nil
}

// bindAny makes an action of any of the tables.
func (x *Executor) bindAny(tables []*v1model.Table, a datapath.Action) (call *v1model.ActionCall, err error) {
	err = fmt.Errorf("action %q: %w", a.Name, datapath.ErrNotFound)
	for _, t := range tables {
		if _, ok := t.Action(a.Name); ok && x.tables[t.Name] != nil {
			return x.tables[t.Name].bind(&a)
		}
	}
	return nil, err
}

// record is a member's value in the kernel.
func (p *profile) record(call *v1model.ActionCall) []byte {
	b := make([]byte, recordSize(p.def))
	binary.NativeEndian.PutUint32(b[entryAction:], uint32(call.Action.Index+1))
	binary.NativeEndian.PutUint32(b[entryHit:], 1)
	putArgs(b, call)
	return b
}

// Group implements datapath.Datapath.
func (x *Executor) Group(op datapath.Op, name string, id uint32, members map[uint32]int) error {
	p, err := x.profile(name)
	if err != nil {
		return err
	}
	if p.groups == nil {
		return fmt.Errorf("action profile %q: %w: it has no selector, so no groups", name, datapath.ErrUnsupported)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.writeGroup(op, id, members); err != nil {
		return fmt.Errorf("action profile %q: group %d: %w", name, id, err)
	}
	return nil
}

func (p *profile) writeGroup(op datapath.Op, id uint32, weights map[uint32]int) error {
	s := p.knownSets[id]
	switch {
	case op == datapath.Insert && s != nil:
		return datapath.ErrExists
	case op != datapath.Insert && s == nil:
		return datapath.ErrNotFound
	case op == datapath.Delete && s.refs > 0:
		return fmt.Errorf("%w: still in use", datapath.ErrUnsupported)
	case op == datapath.Delete:
		p.hold(s.weights, -1)
		delete(p.knownSets, id)
		return deleteElement(p.groups, idKey(id))
	}
	if err := p.putGroup(id, weights); err != nil {
		return err
	}
	if s == nil {
		s = &memberSet{}
		p.knownSets[id] = s
	}
	p.hold(weights, 1)
	p.hold(s.weights, -1)
	s.weights = mapsutil.Clone(weights)
	return nil
}

// hold notes that a group refers to its members once more, or once less.
func (p *profile) hold(weights map[uint32]int, n int) {
	for id := range weights {
		p.known[id].refs += n
	}
}

// putGroup writes a group's node: its members by id, each as often as it weighs.
func (p *profile) putGroup(id uint32, weights map[uint32]int) error {
	size := recordSize(p.def)
	b := make([]byte, listHeader+maxChoices*size)
	n := 0
	for _, of := range slices.Sorted(mapsutil.Keys(weights)) {
		m, weight := p.known[of], weights[of]
		switch {
		case m == nil:
			return fmt.Errorf("member %d: %w", of, datapath.ErrNotFound)
		case weight < 1:
			return fmt.Errorf("member %d: %w: weight %d", of, datapath.ErrUnsupported, weight)
		case n+weight > maxChoices:
			return fmt.Errorf("%w: it holds %d members, each counted as often as it weighs", datapath.ErrFull, maxChoices)
		}
		for range weight {
			copy(b[listHeader+n*size:], p.record(m.call))
			n++
		}
	}
	binary.NativeEndian.PutUint64(b, uint64(n))
	return putElement(p.groups, idKey(id), b)
}

// choice is what an entry does: an action, which may be none, or what it names of its
// table's profile.
type choice struct {
	call *v1model.ActionCall
	act  uint32 // actMember, actGroup, or 0
	id   uint32
	refs *int // of what is named
}

// chosen is what an entry of a table with a profile names. The profile is locked.
func (p *profile) chosen(e *datapath.Entry) (choice, error) {
	switch {
	case e.Member != nil && e.Group == nil && e.Action == nil:
		if m := p.known[*e.Member]; m != nil {
			return choice{act: actMember, id: *e.Member, refs: &m.refs}, nil
		}
		return choice{}, fmt.Errorf("member %d: %w", *e.Member, datapath.ErrNotFound)
	case e.Group != nil && e.Member == nil && e.Action == nil:
		if s := p.knownSets[*e.Group]; s != nil {
			return choice{act: actGroup, id: *e.Group, refs: &s.refs}, nil
		}
		return choice{}, fmt.Errorf("group %d: %w", *e.Group, datapath.ErrNotFound)
	}
	return choice{}, fmt.Errorf("%w: the table needs another kind of action", datapath.ErrUnsupported)
}
