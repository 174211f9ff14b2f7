package p4rt

import (
	"github.com/bifrost-rack/bifrost/p4/datapath"
	"github.com/bifrost-rack/bifrost/p4/p4rt/p4info"
	p4v1 "github.com/p4lang/p4runtime/go/p4/v1"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// profileStore holds the members and groups of an action profile or selector.
type profileStore struct {
	info    *p4info.Profile
	members *ordered[uint32, *member]
	groups  *ordered[uint32, *group]
	size    int64 // of all groups together, as the selector counts it

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

func newProfileStore(a *p4info.Profile) *profileStore {
	return &profileStore{info: a, members: newOrdered[uint32, *member](), groups: newOrdered[uint32, *group]()}
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
