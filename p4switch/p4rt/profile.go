package p4rt

import (
	"maps"

	"github.com/bifrost-rack/bifrost/p4switch/datapath"
	"github.com/bifrost-rack/bifrost/p4switch/p4rt/p4info"
	p4v1 "github.com/p4lang/p4runtime/go/p4/v1"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// profileStore holds the members and groups of an action profile or selector.
type profileStore struct {
	info    *p4info.Profile
	members *ordered[uint32, *member]
	groups  *ordered[uint32, *group]
	size    int64              // of all groups together, as the selector counts it
	watched map[uint32]*choice // groups, those of sets among them, with a watch port

	// One-shot action sets use ids of their own making; a profile is programmed
	// either with them or with members and groups, never both.
	sets   int
	lastID uint32
}

type member struct {
	msg    *p4v1.ActionProfileMember
	refs   int // table entries
	groups int // groups that it is in
}

type group struct {
	msg  *p4v1.ActionProfileGroup
	refs int // table entries
	size int64
}

// choice is what a group's packets are shared out to: the weights of its members, and the ports that members depend on.
type choice struct {
	weights map[uint32]int
	ports   map[uint32]datapath.Port
	chosen  map[uint32]int // the weights of those whose ports were up when the data plane was told
}

func newChoice() *choice {
	return &choice{weights: map[uint32]int{}, ports: map[uint32]datapath.Port{}}
}

// alive are the weights of the members whose ports are up.
func (c *choice) alive(up func(datapath.Port) bool) map[uint32]int {
	if len(c.ports) == 0 {
		return c.weights
	}
	out := map[uint32]int{}
	for id, w := range c.weights {
		if port, watches := c.ports[id]; !watches || up(port) {
			out[id] = w
		}
	}
	return out
}

func newProfileStore(a *p4info.Profile) *profileStore {
	return &profileStore{info: a, members: newOrdered[uint32, *member](), groups: newOrdered[uint32, *group](), watched: map[uint32]*choice{}}
}

// refer counts an entry's reference to a member or group, up or down.
func (s *profileStore) refer(e *entry, by int) {
	switch a := e.msg.GetAction().GetType().(type) {
	case *p4v1.TableAction_ActionProfileMemberId:
		if m, ok := s.members.get(a.ActionProfileMemberId); ok {
			m.refs += by
		}
	case *p4v1.TableAction_ActionProfileGroupId:
		if g, ok := s.groups.get(a.ActionProfileGroupId); ok {
			g.refs += by
		}
	}
}

// profile finds a profile that is, or may be, programmed with members and groups.
func (p *pipeline) profile(id uint32) (*profileStore, error) {
	s := p.store.profiles[id]
	if s == nil {
		return nil, unknown("action profile", id)
	}
	if s.sets > 0 {
		return nil, status.Errorf(codes.InvalidArgument, "action profile %q is programmed with one-shot action sets", s.info.Name)
	}
	return s, nil
}

// writeMember applies an update to a member (section "Action Profile Member
// Programming").
func (p *pipeline) writeMember(op p4v1.Update_Type, m *p4v1.ActionProfileMember) error {
	s, err := p.profile(m.GetActionProfileId())
	if err != nil {
		return err
	}
	id := m.GetMemberId()
	if id == 0 {
		return status.Error(codes.InvalidArgument, "member id 0 is reserved")
	}
	old, found := s.members.get(id)
	if err := mustExist(op, found, "member", id); err != nil {
		return err
	}
	if op == p4v1.Update_DELETE {
		if old.refs > 0 || old.groups > 0 {
			return status.Errorf(codes.FailedPrecondition, "member %d is used by %d entries and %d groups", id, old.refs, old.groups)
		}
		if err := p.dp.Member(datapath.Delete, s.info.Name, id, datapath.Action{}); err != nil {
			return datapathError(err)
		}
		s.members.remove(id)
		p.info.UseAction(-1, old.msg.GetAction())
		return nil
	}
	a, err := p.memberAction(s, m.GetAction())
	if err != nil {
		return err
	}
	if op == p4v1.Update_INSERT {
		if s.info.Size > 0 && int64(s.members.len()) >= s.info.Size {
			return status.Errorf(codes.ResourceExhausted, "action profile %q is full: it has %d members", s.info.Name, s.info.Size)
		}
		old = &member{}
	}
	if err := p.dp.Member(dpOp(op), s.info.Name, id, a); err != nil {
		return datapathError(err)
	}
	p.info.UseAction(-1, old.msg.GetAction())
	p.info.UseAction(1, m.GetAction())
	s.members.put(id, &member{msg: m, refs: old.refs, groups: old.groups})
	return nil
}

// mustExist is the check of an update's type against what is there.
func mustExist(op p4v1.Update_Type, found bool, what string, id uint32) error {
	if op == p4v1.Update_INSERT && found {
		return status.Errorf(codes.AlreadyExists, "%s %d exists already", what, id)
	}
	if op != p4v1.Update_INSERT && !found {
		return status.Errorf(codes.NotFound, "there is no %s %d", what, id)
	}
	return nil
}

func dpOp(op p4v1.Update_Type) datapath.Op { return datapath.Op(op) }

// memberAction checks an action against what the profile's tables allow.
func (p *pipeline) memberAction(s *profileStore, m *p4v1.Action) (datapath.Action, error) {
	if m == nil {
		return datapath.Action{}, status.Error(codes.InvalidArgument, "the action is missing")
	}
	for _, id := range s.info.Tables {
		if t := p.info.Tables[id]; t != nil {
			if err := t.CheckUse(m.GetActionId(), p4info.InEntry); err != nil {
				return datapath.Action{}, err
			}
		}
	}
	return p.info.Action(m)
}

// writeGroup applies an update to a group (section "Action Profile Group
// Programming").
func (p *pipeline) writeGroup(op p4v1.Update_Type, m *p4v1.ActionProfileGroup) error {
	s, err := p.profile(m.GetActionProfileId())
	if err != nil {
		return err
	}
	id := m.GetGroupId()
	switch {
	case !s.info.Selector:
		return status.Errorf(codes.InvalidArgument, "action profile %q is no selector, so it has no groups", s.info.Name)
	case id == 0:
		return status.Error(codes.InvalidArgument, "group id 0 is reserved")
	}
	old, found := s.groups.get(id)
	if err := mustExist(op, found, "group", id); err != nil {
		return err
	}
	if op == p4v1.Update_DELETE {
		if old.refs > 0 {
			return status.Errorf(codes.FailedPrecondition, "group %d is used by %d entries", id, old.refs)
		}
		if err := p.setGroup(s, datapath.Delete, id, newChoice()); err != nil {
			return datapathError(err)
		}
		s.groups.remove(id)
		s.regroup(old, nil)
		return nil
	}
	next, members, err := p.group(s, old, m)
	if err != nil {
		return err
	}
	if err := p.setGroup(s, dpOp(op), id, members); err != nil {
		return datapathError(err)
	}
	s.groups.put(id, next)
	s.regroup(old, next)
	return nil
}

// setGroup writes a group to the data plane, without the members whose ports are down.
func (p *pipeline) setGroup(s *profileStore, op datapath.Op, id uint32, c *choice) error {
	c.chosen = c.alive(p.srv.portUp)
	err := p.dp.Group(op, s.info.Name, id, c.chosen)
	switch {
	case err != nil:
	case len(c.ports) > 0:
		s.watched[id] = c
	default:
		delete(s.watched, id)
	}
	return err
}

// followPorts takes members whose ports have gone down out of their groups, and puts those back whose ports have come up.
func (p *pipeline) followPorts() {
	for _, info := range p.info.ProfileOrder {
		s := p.store.profiles[info.ID]
		for id, c := range s.watched {
			if maps.Equal(c.chosen, c.alive(p.srv.portUp)) {
				continue
			}
			if err := p.setGroup(s, datapath.Modify, id, c); err != nil {
				p.srv.log.Error("a group does not follow its watch ports", "selector", info.Name, "group", id, "error", err)
			}
		}
	}
}

// group checks a group to be inserted or, if old is not nil, modified.
func (p *pipeline) group(s *profileStore, old *group, m *p4v1.ActionProfileGroup) (*group, *choice, error) {
	next := &group{msg: m}
	limit := int64(m.GetMaxSize())
	switch {
	case limit < 0 || s.info.MaxGroupSize > 0 && limit > int64(s.info.MaxGroupSize):
		return nil, nil, status.Errorf(codes.InvalidArgument, "max_size %d is not in 0..%d", limit, s.info.MaxGroupSize)
	case old != nil && old.msg.GetMaxSize() != m.GetMaxSize():
		return nil, nil, status.Errorf(codes.InvalidArgument, "max_size cannot change from %d to %d", old.msg.GetMaxSize(), m.GetMaxSize())
	case limit == 0:
		limit = int64(s.info.MaxGroupSize)
	}
	c := newChoice()
	for _, gm := range m.GetMembers() {
		if _, dup := c.weights[gm.GetMemberId()]; dup {
			return nil, nil, status.Errorf(codes.InvalidArgument, "member %d is in the group twice", gm.GetMemberId())
		}
		if _, ok := s.members.get(gm.GetMemberId()); !ok {
			return nil, nil, status.Errorf(codes.NotFound, "there is no member %d", gm.GetMemberId())
		}
		size, err := p.weigh(s, c, gm.GetMemberId(), gm.GetWeight(), gm)
		if err != nil {
			return nil, nil, err
		}
		next.size += size
	}
	if old != nil {
		next.refs = old.refs
	}
	return next, c, s.checkSize(old.sizeOf(), next.size, limit, codes.ResourceExhausted)
}

func (g *group) sizeOf() int64 {
	if g == nil {
		return 0
	}
	return g.size
}

// weigh checks a member's weight and watch port, and adds it to a choice; size is what it adds to its
// group as the selector counts.
func (p *pipeline) weigh(s *profileStore, c *choice, id uint32, w int32, m watched) (size int64, err error) {
	weight, size, err := s.weight(w)
	if err != nil {
		return 0, err
	}
	c.weights[id] = weight
	switch {
	case watchesNumber(m):
		return 0, status.Error(codes.Unimplemented, "the field watch is deprecated since P4Runtime 1.2: use watch_port")
	case len(m.GetWatchPort()) == 0:
		return size, nil
	}
	port, err := p.port(m.GetWatchPort())
	if err != nil {
		return 0, err
	}
	if !p.replaying && !p.srv.hasPort(port) {
		return 0, status.Errorf(codes.InvalidArgument, "watch port %d is not a port of the switch", port)
	}
	c.ports[id] = port
	return size, nil
}

// weight checks a member's weight.
func (s *profileStore) weight(w int32) (weight int, size int64, err error) {
	switch {
	case s.info.NoWeights && w != 0:
		return 0, 0, status.Errorf(codes.InvalidArgument, "weight %d: selector %q has no weights", w, s.info.Name)
	case s.info.NoWeights:
		return 1, 1, nil
	case w <= 0:
		return 0, 0, status.Errorf(codes.InvalidArgument, "weight %d is not positive", w)
	case s.info.SumOfMembers && s.info.MaxMemberWeight > 0 && w > s.info.MaxMemberWeight:
		return 0, 0, status.Errorf(codes.InvalidArgument, "weight %d exceeds the selector's limit %d", w, s.info.MaxMemberWeight)
	case s.info.SumOfMembers:
		return int(w), 1, nil
	}
	return int(w), int64(w), nil
}

// checkSize checks a group's new size against its own limit and the selector's.
func (s *profileStore) checkSize(oldSize, newSize, limit int64, code codes.Code) error {
	if limit > 0 && newSize > limit {
		return status.Errorf(code, "group of size %d exceeds its limit %d", newSize, limit)
	}
	if total := s.size - oldSize + newSize; s.info.Size > 0 && total > s.info.Size {
		return status.Errorf(codes.ResourceExhausted, "groups of size %d together exceed the selector's %d", total, s.info.Size)
	}
	return nil
}

// regroup replaces a group in what is counted; either may be nil.
func (s *profileStore) regroup(old, next *group) {
	for by, g := range map[int]*group{-1: old, 1: next} {
		if g == nil {
			continue
		}
		s.size += int64(by) * g.size
		for _, gm := range g.msg.GetMembers() {
			if m, ok := s.members.get(gm.GetMemberId()); ok {
				m.groups += by
			}
		}
	}
}

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
	set, c := &actionSet{profile: s}, newChoice()
	var actions []datapath.Action
	for _, am := range m.GetActionProfileActions() {
		a, err := p.memberAction(s, am.GetAction())
		if err != nil {
			return nil, err
		}
		id := s.newID()
		size, err := p.weigh(s, c, id, am.GetWeight(), am)
		if err != nil {
			return nil, err
		}
		set.members, actions, set.size = append(set.members, id), append(actions, a), set.size+size
	}
	if err := s.checkSize(0, set.size, int64(s.info.MaxGroupSize), codes.InvalidArgument); err != nil {
		return nil, err
	}
	return set, p.program(set, actions, c)
}

// program writes a set to the data plane, all or nothing.
func (p *pipeline) program(set *actionSet, actions []datapath.Action, c *choice) error {
	s := set.profile
	for i, id := range set.members {
		if err := p.dp.Member(datapath.Insert, s.info.Name, id, actions[i]); err != nil {
			p.deleteMembers(s, set.members[:i])
			return datapathError(err)
		}
	}
	set.group = s.newID()
	if err := p.setGroup(s, datapath.Insert, set.group, c); err != nil {
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
	if err := p.setGroup(s, datapath.Delete, set.group, newChoice()); err != nil {
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
