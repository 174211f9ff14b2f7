package interp

import (
	"fmt"
	"maps"
	"slices"

	"github.com/bifrost-rack/bifrost/p4switch/datapath"
	"github.com/bifrost-rack/bifrost/p4switch/v1model"
)

// profile is an action profile, perhaps with a selector.
type profile struct {
	def     *v1model.ActionProfile
	hash    func(*state) uint64 // nil without a selector
	members map[uint32]*member
	groups  map[uint32]*group
}

// member is an action that entries and groups refer to.
type member struct {
	do   *bound
	refs int
}

// group is members to choose from, each as often as it weighs.
type group struct {
	weights map[uint32]int
	choices []*member
	refs    int
}

// choose finds what an entry does for a packet; nil if it refers to an empty
// group or to nothing.
func (p *profile) choose(s *state, e *entry) *bound {
	switch {
	case e.member != nil:
		return e.member.do
	case e.group != nil && len(e.group.choices) > 0:
		g := e.group.choices
		if p.hash == nil {
			return g[0].do
		}
		return g[p.hash(s)%uint64(len(g))].do
	}
	return e.do
}

// Member implements datapath.Datapath.
func (x *Executor) Member(op datapath.Op, name string, id uint32, a datapath.Action) error {
	p, err := x.profile(name)
	if err != nil {
		return err
	}
	x.lock.lock()
	defer x.lock.unlock()
	if err := x.writeMember(p, op, id, a); err != nil {
		return fmt.Errorf("action profile %q: member %d: %w", name, id, err)
	}
	return nil
}

func (x *Executor) writeMember(p *profile, op datapath.Op, id uint32, a datapath.Action) error {
	m := p.members[id]
	if op == datapath.Delete {
		switch {
		case m == nil:
			return datapath.ErrNotFound
		case m.refs > 0:
			return fmt.Errorf("%w: still in use", datapath.ErrUnsupported)
		}
		delete(p.members, id)
		return nil
	}
	do, err := x.bindAny(p.def.Tables, a)
	if err != nil {
		return err
	}
	switch {
	case op == datapath.Modify && m == nil:
		return datapath.ErrNotFound
	case op == datapath.Modify:
		m.do = do
		return nil
	case m != nil:
		return datapath.ErrExists
	case p.def.MaxSize > 0 && len(p.members) >= p.def.MaxSize:
		return datapath.ErrFull
	}
	p.members[id] = &member{do: do}
	return nil
}

// Group implements datapath.Datapath.
func (x *Executor) Group(op datapath.Op, name string, id uint32, members map[uint32]int) error {
	p, err := x.profile(name)
	if err != nil {
		return err
	}
	if p.hash == nil {
		return fmt.Errorf("action profile %q: %w: it has no selector, so no groups", name, datapath.ErrUnsupported)
	}
	x.lock.lock()
	defer x.lock.unlock()
	if err := p.writeGroup(op, id, members); err != nil {
		return fmt.Errorf("action profile %q: group %d: %w", name, id, err)
	}
	return nil
}

func (p *profile) writeGroup(op datapath.Op, id uint32, weights map[uint32]int) error {
	g := p.groups[id]
	switch {
	case op == datapath.Insert && g != nil:
		return datapath.ErrExists
	case op != datapath.Insert && g == nil:
		return datapath.ErrNotFound
	case op == datapath.Delete && g.refs > 0:
		return fmt.Errorf("%w: still in use", datapath.ErrUnsupported)
	case op == datapath.Delete:
		p.release(g)
		delete(p.groups, id)
		return nil
	}
	choices, err := p.choices(weights)
	if err != nil {
		return err
	}
	if g == nil {
		g = &group{}
		p.groups[id] = g
	}
	p.release(g)
	for m := range weights {
		p.members[m].refs++
	}
	g.weights, g.choices = maps.Clone(weights), choices
	return nil
}

// release gives up a group's hold on its members.
func (p *profile) release(g *group) {
	for m := range g.weights {
		p.members[m].refs--
	}
}

// maxWeight bounds the sum of a group's weights.
const maxWeight = 1 << 16

// choices lists a group's members by id, each as often as it weighs.
func (p *profile) choices(weights map[uint32]int) ([]*member, error) {
	var all []*member
	for _, id := range slices.Sorted(maps.Keys(weights)) {
		m, n := p.members[id], weights[id]
		switch {
		case m == nil:
			return nil, fmt.Errorf("member %d: %w", id, datapath.ErrNotFound)
		case n < 1 || len(all)+n > maxWeight:
			return nil, fmt.Errorf("member %d: %w: weight %d", id, datapath.ErrUnsupported, n)
		}
		for range n {
			all = append(all, m)
		}
	}
	return all, nil
}

func (x *Executor) profile(name string) (*profile, error) {
	for _, p := range x.profiles {
		if p.def.Name == name {
			return p, nil
		}
	}
	return nil, fmt.Errorf("action profile %q: %w", name, datapath.ErrNotFound)
}
