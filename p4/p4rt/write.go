package p4rt

import (
	"context"

	p4v1 "github.com/p4lang/p4runtime/go/p4/v1"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Write implements the RPC of that name. The updates of a batch are applied in
// order; when it returns, those that succeeded are in force for every packet, also
// for those that were in flight.
func (s *Server) Write(_ context.Context, r *p4v1.WriteRequest) (*p4v1.WriteResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	sc, err := s.mayChange(r)
	if err != nil {
		return nil, err
	}
	if s.pipe == nil {
		return nil, errNoPipeline
	}
	errs, err := s.pipe.batch(sc, r)
	if err != nil {
		return nil, err
	}
	s.keep()
	s.pipe.dp.Settle()
	if err := batchError("updates", errs); err != nil {
		return nil, err
	}
	return &p4v1.WriteResponse{}, nil
}

// change is a request that only a primary may make.
type change interface {
	GetDeviceId() uint64
	GetRole() string
	GetRoleId() uint64
	GetElectionId() *p4v1.Uint128
}

// mayChange makes the checks that Write and SetForwardingPipelineConfig share,
// in the specification's order, and gives the role's scope.
func (s *Server) mayChange(r change) (*scope, error) {
	if r.GetDeviceId() != s.cfg.DeviceID {
		return nil, s.wrongDevice(r.GetDeviceId())
	}
	if r.GetRoleId() != 0 {
		return nil, status.Error(codes.NotFound, "numeric role ids are deprecated since P4Runtime 1.4: use role")
	}
	return s.arb.checkPrimary(r.GetRole(), r.GetElectionId())
}

// permitted applies one update if the role's scope allows it.
func (p *pipeline) permitted(sc *scope, u *p4v1.Update) error {
	if !sc.entity(p.info, u.GetEntity()) {
		return status.Errorf(codes.PermissionDenied, "%q is not in the role's scope", objectOf(p.info, u.GetEntity()))
	}
	return p.update(u)
}

// update applies one update, and notes it for the server's Keeper if p is live.
func (p *pipeline) update(u *p4v1.Update) error {
	err := p.apply(u)
	if err == nil && p.srv.cfg.Keeper != nil && keeps(u) && p == p.srv.live.Load() {
		p.made = append(p.made, u)
	}
	return err
}

func (p *pipeline) apply(u *p4v1.Update) error {
	op := u.GetType()
	if op < p4v1.Update_INSERT || op > p4v1.Update_DELETE {
		return status.Errorf(codes.InvalidArgument, "update has the type %v", op)
	}
	switch e := u.GetEntity().GetEntity().(type) {
	case *p4v1.Entity_TableEntry:
		return p.writeTable(op, e.TableEntry)
	case *p4v1.Entity_ActionProfileMember:
		return p.writeMember(op, e.ActionProfileMember)
	case *p4v1.Entity_ActionProfileGroup:
		return p.writeGroup(op, e.ActionProfileGroup)
	case *p4v1.Entity_PacketReplicationEngineEntry:
		return p.writeReplication(op, e.PacketReplicationEngineEntry)
	case *p4v1.Entity_DigestEntry:
		return p.writeDigest(op, e.DigestEntry)
	case *p4v1.Entity_ExternEntry:
		return status.Error(codes.InvalidArgument, "the program has no extern of that type")
	case nil:
		return status.Error(codes.InvalidArgument, "update has no entity")
	}
	if op != p4v1.Update_MODIFY {
		return status.Errorf(codes.InvalidArgument, "%T can only be modified, not %v", u.GetEntity().GetEntity(), op)
	}
	switch e := u.GetEntity().GetEntity().(type) {
	case *p4v1.Entity_CounterEntry:
		return p.writeCounter(e.CounterEntry)
	case *p4v1.Entity_DirectCounterEntry:
		return p.writeDirectCounter(e.DirectCounterEntry)
	case *p4v1.Entity_MeterEntry:
		return p.writeMeter(e.MeterEntry)
	case *p4v1.Entity_DirectMeterEntry:
		return p.writeDirectMeter(e.DirectMeterEntry)
	case *p4v1.Entity_RegisterEntry:
		return p.writeRegister(e.RegisterEntry)
	case *p4v1.Entity_ValueSetEntry:
		return p.writeValueSet(e.ValueSetEntry)
	}
	return status.Errorf(codes.Unimplemented, "%T is not supported", u.GetEntity().GetEntity())
}

// unknown is the error for an id that is not in the P4Info. (NOT_FOUND is for
// objects that are not there, ids that cannot be are malformed.)
func unknown(what string, id uint32) error {
	return status.Errorf(codes.InvalidArgument, "no %s has the id %#x", what, id)
}
