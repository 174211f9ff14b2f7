package p4rt

import (
	"github.com/bifrost-rack/bifrost/p4/datapath"
	p4v1 "github.com/p4lang/p4runtime/go/p4/v1"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

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
		if err := p.dp.Group(datapath.Delete, s.info.Name, id, nil); err != nil {
			return datapathError(err)
		}
		s.groups.remove(id)
		s.regroup(old, nil)
		return nil
	}
	next, weights, err := s.group(old, m)
	if err != nil {
		return err
	}
	if err := p.dp.Group(dpOp(op), s.info.Name, id, weights); err != nil {
		return datapathError(err)
	}
	s.groups.put(id, next)
	s.regroup(old, next)
	return nil
}

// group checks a group to be inserted or, if old is not nil, modified.
func (s *profileStore) group(old *group, m *p4v1.ActionProfileGroup) (*group, map[uint32]int, error) {
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
	weights := map[uint32]int{}
	for _, gm := range m.GetMembers() {
		if _, dup := weights[gm.GetMemberId()]; dup {
			return nil, nil, status.Errorf(codes.InvalidArgument, "member %d is in the group twice", gm.GetMemberId())
		}
		if _, ok := s.members.get(gm.GetMemberId()); !ok {
			return nil, nil, status.Errorf(codes.NotFound, "there is no member %d", gm.GetMemberId())
		}
		w, size, err := s.weight(gm.GetWeight(), gm)
		if err != nil {
			return nil, nil, err
		}
		weights[gm.GetMemberId()] = w
		next.size += size
	}
	if old != nil {
		next.refs = old.refs
	}
	return next, weights, s.checkSize(old.sizeOf(), next.size, limit, codes.ResourceExhausted)
}

func (g *group) sizeOf() int64 {
	if g == nil {
		return 0
	}
	return g.size
}

// weight checks a member's weight and watch port; size is what it adds to its
// group as the selector counts.
func (s *profileStore) weight(w int32, m watched) (weight int, size int64, err error) {
	switch {
	case watches(m):
		return 0, 0, status.Error(codes.Unimplemented, "watch ports are not supported")
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
