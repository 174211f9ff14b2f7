package p4rt

import (
	"github.com/bifrost-rack/bifrost/p4/datapath"
	"github.com/bifrost-rack/bifrost/p4/p4rt/p4info"
	p4v1 "github.com/p4lang/p4runtime/go/p4/v1"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// actionSet is what stands behind a one-shot action set (section "One Shot
// Action Selector Programming"): a group and its members, with ids of our own.
type actionSet struct {
	profile *profileStore
	group   uint32
	members []uint32
	size    int64
}

// bind puts a table action into e (section "Action Specification"). For an
// action set it makes the members and the group behind it, which discard undoes.
//

func (p *pipeline) bind(t *p4info.Table, e *datapath.Entry, m *p4v1.TableAction) (*actionSet, error) {
	if t.Profile == nil {
		return nil, p.bindDirect(t, e, m.GetAction())
	}
	s := p.store.profiles[t.Profile.ID]
	switch a := m.GetType().(type) {
	case *p4v1.TableAction_ActionProfileMemberId:
		if s.sets > 0 {
			return nil, mixed(s.info)
		}
		if _, ok := s.members.get(a.ActionProfileMemberId); !ok {
			return nil, absent("member", a.ActionProfileMemberId)
		}
		e.Member = &a.ActionProfileMemberId
		return nil, nil
	case *p4v1.TableAction_ActionProfileGroupId:
		if !s.info.Selector {
			break
		}
		if s.sets > 0 {
			return nil, mixed(s.info)
		}
		if _, ok := s.groups.get(a.ActionProfileGroupId); !ok {
			return nil, absent("group", a.ActionProfileGroupId)
		}
		e.Group = &a.ActionProfileGroupId
		return nil, nil
	case *p4v1.TableAction_ActionProfileActionSet:
		if !s.info.Selector {
			break
		}
		set, err := p.makeSet(s, a.ActionProfileActionSet)
		if err == nil {
			e.Group = &set.group
		}
		return set, err
	}
	return nil, status.Errorf(codes.InvalidArgument, "an action of the form %T does not fit table %q, which has an action profile", m.GetType(), t.Name)
}

func (p *pipeline) bindDirect(t *p4info.Table, e *datapath.Entry, m *p4v1.Action) error {
	if m == nil {
		return status.Errorf(codes.InvalidArgument, "table %q has no action profile, so its entries need an action", t.Name)
	}
	if err := t.CheckUse(m.GetActionId(), p4info.InEntry); err != nil {
		return err
	}
	a, err := p.info.Action(m)
	e.Action = &a
	return err
}

// absent is the error for a reference to nothing; id 0 is not a reference.
func absent(what string, id uint32) error {
	if id == 0 {
		return status.Errorf(codes.InvalidArgument, "%s id 0 is reserved", what)
	}
	return status.Errorf(codes.NotFound, "there is no %s %d", what, id)
}

func mixed(s *p4info.Profile) error {
	return status.Errorf(codes.InvalidArgument, "selector %q is programmed either with one-shot action sets or with members and groups, not both", s.Name)
}

// makeSet checks an action set and makes its members and group.
func (p *pipeline) makeSet(s *profileStore, m *p4v1.ActionProfileActionSet) (*actionSet, error) {
	if s.members.len() > 0 || s.groups.len() > 0 {
		return nil, mixed(s.info)
	}
	if m.GetActionSelectionMode() != p4v1.ActionProfileActionSet_DEFAULT_MODE_DETERMINED_BY_ACTION_SELECTOR {
		return nil, status.Errorf(codes.Unimplemented, "selection mode %v is not supported", m.GetActionSelectionMode())
	}
	if !s.supports(m.GetSizeSemantics()) {
		return nil, status.Errorf(codes.Unimplemented, "size semantics %v is not this selector's", m.GetSizeSemantics())
	}
	set := &actionSet{profile: s}
	weights := map[uint32]int{}
	var actions []datapath.Action
	for _, am := range m.GetActionProfileActions() {
		a, err := p.memberAction(s, am.GetAction())
		if err != nil {
			return nil, err
		}
		w, size, err := s.weight(am.GetWeight(), am)
		if err != nil {
			return nil, err
		}
		id := s.newID()
		weights[id] = w
		set.members, actions, set.size = append(set.members, id), append(actions, a), set.size+size
	}
	if err := s.checkSize(0, set.size, int64(s.info.MaxGroupSize), codes.InvalidArgument); err != nil {
		return nil, err
	}
	return set, p.program(set, actions, weights)
}

// program writes a set to the data plane, all or nothing.
func (p *pipeline) program(set *actionSet, actions []datapath.Action, weights map[uint32]int) error {
	s := set.profile
	for i, id := range set.members {
		if err := p.dp.Member(datapath.Insert, s.info.Name, id, actions[i]); err != nil {
			p.deleteMembers(s, set.members[:i])
			return datapathError(err)
		}
	}
	set.group = s.newID()
	if err := p.dp.Group(datapath.Insert, s.info.Name, set.group, weights); err != nil {
		p.deleteMembers(s, set.members)
		return datapathError(err)
	}
	s.sets++
	s.size += set.size
	return nil
}

// discard removes a set that no entry refers to any more; nil is none.
func (p *pipeline) discard(set *actionSet) {
	if set == nil || set.group == 0 {
		return
	}
	s := set.profile
	if err := p.dp.Group(datapath.Delete, s.info.Name, set.group, nil); err != nil {
		p.srv.log.Error("cannot delete the group of an action set", "selector", s.info.Name, "error", err)
	}
	p.deleteMembers(s, set.members)
	s.sets--
	s.size -= set.size
}

func (p *pipeline) deleteMembers(s *profileStore, ids []uint32) {
	for _, id := range ids {
		if err := p.dp.Member(datapath.Delete, s.info.Name, id, datapath.Action{}); err != nil {
			p.srv.log.Error("cannot delete a member of an action set", "selector", s.info.Name, "error", err)
		}
	}
}

// supports tells whether a set's size semantics is the selector's own.
func (s *profileStore) supports(m p4v1.ActionProfileActionSet_SizeSemantics) bool {
	own := p4v1.ActionProfileActionSet_SUM_OF_WEIGHTS
	if s.info.SumOfMembers {
		own = p4v1.ActionProfileActionSet_SUM_OF_MEMBERS
	}
	return m == own || m == p4v1.ActionProfileActionSet_DEFAULT_SIZE_DETERMINED_BY_ACTION_SELECTOR
}

// newID is an id for a member or group of a set. Ids count up; that they wrap
// around into one still in use takes four billion sets.
func (s *profileStore) newID() uint32 {
	s.lastID++
	if s.lastID == 0 {
		s.lastID = 1
	}
	return s.lastID
}
