package p4rt

import (
	p4v1 "github.com/p4lang/p4runtime/go/p4/v1"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Read implements the RPC of that name. All requests of a batch see one state;
// the entities are sent after the lock is released, so a controller that reads
// slowly holds up nobody.
func (s *Server) Read(r *p4v1.ReadRequest, stream p4v1.P4Runtime_ReadServer) error {
	if r.GetDeviceId() != s.cfg.DeviceID {
		return s.wrongDevice(r.GetDeviceId())
	}
	found, errs, err := s.read(r)
	if err != nil {
		return err
	}
	for len(found) > 0 {
		n := min(readChunk, len(found))
		if err := stream.Send(&p4v1.ReadResponse{Entities: found[:n]}); err != nil {
			return err
		}
		found = found[n:]
	}
	return batchError("requests", errs)
}

// read answers a batch (section "Batch Processing").
func (s *Server) read(req *p4v1.ReadRequest) ([]*p4v1.Entity, []error, error) {
	sc, requests := everything, req.GetEntities()
	if req.GetRole() != "" {
		var err error
		if sc, err = s.arb.roleScope(req.GetRole()); err != nil {
			return nil, nil, err
		}
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.pipe == nil {
		return nil, nil, errNoPipeline
	}
	var found []*p4v1.Entity
	errs := make([]error, len(requests))
	for i, e := range requests {
		r := reader{p: s.pipe, scope: sc}
		if errs[i] = r.read(e); errs[i] == nil {
			found = append(found, r.found...)
		}
	}
	return found, errs, nil
}

// reader collects what one request asks for.
type reader struct {
	p     *pipeline
	scope *scope // nil: everything
	found []*p4v1.Entity
}

func (r *reader) read(e *p4v1.Entity) error {
	switch q := e.GetEntity().(type) {
	case *p4v1.Entity_TableEntry:
		return r.tables(q.TableEntry)
	case *p4v1.Entity_DirectCounterEntry:
		return r.directCounters(q.DirectCounterEntry)
	case *p4v1.Entity_DirectMeterEntry:
		return r.directMeters(q.DirectMeterEntry)
	case *p4v1.Entity_ActionProfileMember:
		return r.members(q.ActionProfileMember)
	case *p4v1.Entity_ActionProfileGroup:
		return r.groups(q.ActionProfileGroup)
	case *p4v1.Entity_CounterEntry:
		return r.counters(q.CounterEntry)
	case *p4v1.Entity_MeterEntry:
		return r.meters(q.MeterEntry)
	case *p4v1.Entity_RegisterEntry:
		return r.registers(q.RegisterEntry)
	case *p4v1.Entity_PacketReplicationEngineEntry:
		return r.replication(q.PacketReplicationEngineEntry)
	case *p4v1.Entity_ValueSetEntry:
		return r.valueSets(q.ValueSetEntry)
	case *p4v1.Entity_DigestEntry:
		return r.digests(q.DigestEntry)
	case *p4v1.Entity_ExternEntry:
		if q.ExternEntry.GetExternTypeId() != 0 || q.ExternEntry.GetExternId() != 0 {
			return status.Error(codes.InvalidArgument, "the program has no such extern")
		}
		return nil // a wildcard, and there are none
	}
	return status.Error(codes.InvalidArgument, "a read request must name the kind of its entity")
}

// add adds an entity if the role's scope includes it.
func (r *reader) add(e *p4v1.Entity) {
	if r.scope == nil || r.scope.entity(r.p.info, e) {
		r.found = append(r.found, e)
	}
}

// choose is what an id in a request means: one object, or all if it is 0.
func choose[T any](what string, id uint32, all []*T, byID map[uint32]*T) ([]*T, error) {
	if id == 0 {
		return all, nil
	}
	if o := byID[id]; o != nil {
		return []*T{o}, nil
	}
	return nil, unknown(what, id)
}
