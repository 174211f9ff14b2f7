package p4rt

import (
	"cmp"
	"context"

	"github.com/bifrost-rack/bifrost/p4switch/datapath"
	"github.com/bifrost-rack/bifrost/p4switch/p4rt/p4info"
	p4v1 "github.com/p4lang/p4runtime/go/p4/v1"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
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
	s.pipe.dp.Synchronize()
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

// update applies one update, and notes it for the server's Persister if p is live.
func (p *pipeline) update(u *p4v1.Update) error {
	p.info.Update()
	err := knownUpdate(u)
	if err == nil {
		err = p.apply(u)
	}
	if err == nil && p.srv.cfg.Persister != nil && keeps(u) && p == p.srv.live.Load() {
		p.made = append(p.made, u)
	}
	return err
}

// knownUpdate is known for an update. Of entries with an action of their own, which are most, it looks at the entry, its fields
// and its action one by one: to walk through all of a message takes 2 µs.
func knownUpdate(u *p4v1.Update) error {
	e := u.GetEntity().GetTableEntry()
	if e == nil || e.GetAction().GetAction() == nil {
		return known(u.ProtoReflect())
	}
	err := cmp.Or(knownAlone(u), knownAlone(u.GetEntity()), knownAlone(e), knownAlone(e.GetAction()), knownAlone(e.GetAction().GetAction()))
	for _, m := range e.GetMatch() {
		err = cmp.Or(err, knownAlone(m))
	}
	return err
}

// knownAlone is known for a message without those in it.
func knownAlone(m proto.Message) error { return unknownField(m.ProtoReflect()) }

// known refuses what a later P4Runtime has and this one does not know, such as a group_action (1.6): to leave it out would be
// another entry than the controller means.
func known(m protoreflect.Message) (err error) {
	if err := unknownField(m); err != nil {
		return err
	}
	m.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch {
		case f.Message() == nil || f.IsMap():
		case f.IsList():
			for i := 0; err == nil && i < v.List().Len(); i++ {
				err = known(v.List().Get(i).Message())
			}
		default:
			err = known(v.Message())
		}
		return err == nil
	})
	return err
}

func unknownField(m protoreflect.Message) error {
	b := m.GetUnknown()
	if len(b) == 0 {
		return nil
	}
	n, _, _ := protowire.ConsumeTag(b)
	return status.Errorf(codes.Unimplemented, "field %d of %s is unknown in P4Runtime %s, which this switch speaks", n, m.Descriptor().FullName(), APIVersion)
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

// cells is the range of indices that an update or a read of an array means: one
// if the index is set, all otherwise (first to last, exclusive).
func cells(what string, size int64, ix *p4v1.Index) (first, last int64, err error) {
	switch i := ix.GetIndex(); {
	case ix == nil:
		return 0, size, nil
	case i < 0:
		return 0, 0, status.Errorf(codes.InvalidArgument, "%s: index %d is negative", what, i)
	case i >= size:
		return 0, 0, status.Errorf(codes.OutOfRange, "%s: index %d is beyond its size %d", what, i, size)
	default:
		return i, i + 1, nil
	}
}

// writeCounter sets cells of an indirect counter (section "CounterEntry").
func (p *pipeline) writeCounter(m *p4v1.CounterEntry) error {
	c := p.info.Counters[m.GetCounterId()]
	if c == nil {
		return unknown("counter", m.GetCounterId())
	}
	first, last, err := cells(c.Name, c.Size, m.GetIndex())
	if err != nil || m.GetData() == nil {
		return err
	}
	v, err := counts(m.GetData())
	if err != nil {
		return err
	}
	for i := first; i < last; i++ {
		if err := p.dp.SetCounter(c.Name, int(i), v); err != nil {
			return datapathError(err)
		}
	}
	return nil
}

// writeMeter configures cells of an indirect meter (section "MeterEntry").
func (p *pipeline) writeMeter(m *p4v1.MeterEntry) error {
	mt := p.info.Meters[m.GetMeterId()]
	if mt == nil {
		return unknown("meter", m.GetMeterId())
	}
	first, last, err := cells(mt.Name, mt.Size, m.GetIndex())
	if err != nil {
		return err
	}
	if err := checkMeter(mt.Type, m.GetConfig(), m.GetCounterData()); err != nil {
		return err
	}
	for i := first; i < last; i++ {
		if err := p.dp.Meter(mt.Name, int(i), meterConfig(m.GetConfig())); err != nil {
			return datapathError(err)
		}
		if err := p.clearMeter(m.GetCounterData(), datapath.MeterCell{Name: mt.Name, Index: int(i)}); err != nil {
			return err
		}
		if cell := (meterCell{mt.ID, i}); m.GetConfig() != nil {
			p.store.meters[cell] = m.GetConfig()
		} else {
			delete(p.store.meters, cell)
		}
	}
	return nil
}

// clearMeter clears what a meter has counted if a request has counts, which can only be zero.
func (p *pipeline) clearMeter(m *p4v1.MeterCounterData, of datapath.MeterCell) error {
	if m == nil {
		return nil
	}
	return datapathError(p.dp.SetMeterCounts(of, datapath.MeterCounts{}))
}

// writeRegister sets cells of a register (section "RegisterEntry").
func (p *pipeline) writeRegister(m *p4v1.RegisterEntry) error {
	r := p.info.Registers[m.GetRegisterId()]
	if r == nil {
		return unknown("register", m.GetRegisterId())
	}
	first, last, err := cells(r.Name, r.Size, m.GetIndex())
	if err != nil {
		return err
	}
	v, err := r.Cell.Cell(m.GetData())
	if err != nil {
		return err
	}
	for i := first; i < last; i++ {
		if err := p.dp.SetRegister(r.Name, int(i), v); err != nil {
			return datapathError(err)
		}
	}
	return nil
}

// writeValueSet replaces a value set's members (section "ValueSetEntry").
func (p *pipeline) writeValueSet(m *p4v1.ValueSetEntry) error {
	v := p.info.ValueSets[m.GetValueSetId()]
	if v == nil {
		return unknown("value set", m.GetValueSetId())
	}
	if len(m.GetMembers()) > int(v.Size) {
		return status.Errorf(codes.ResourceExhausted, "value set %q has room for %d members, not %d", v.Name, v.Size, len(m.GetMembers()))
	}
	members := make([][]datapath.Match, len(m.GetMembers()))
	seen := map[string]bool{}
	for i, mm := range m.GetMembers() {
		key, err := p4info.MatchKey(v.Fields, mm.GetMatch())
		if err != nil {
			return err
		}
		id := entryKey(datapath.Entry{Match: key})
		if seen[id] {
			return status.Errorf(codes.AlreadyExists, "value set %q: member %d is there already", v.Name, i)
		}
		seen[id], members[i] = true, key
	}
	if err := p.dp.ValueSet(v.Name, members); err != nil {
		return datapathError(err)
	}
	p.store.valueSets[v.ID] = m
	return nil
}

// writeDigest enables, reconfigures or disables a digest (section "DigestEntry").
func (p *pipeline) writeDigest(op p4v1.Update_Type, m *p4v1.DigestEntry) error {
	d := p.digests[m.GetDigestId()]
	if d == nil {
		return unknown("digest", m.GetDigestId())
	}
	_, found := p.store.digests[m.GetDigestId()]
	if err := mustExist(op, found, "configuration of digest", m.GetDigestId()); err != nil {
		return err
	}
	if op == p4v1.Update_DELETE {
		d.configure(nil)
		delete(p.store.digests, m.GetDigestId())
		return nil
	}
	c := m.GetConfig()
	if c.GetMaxListSize() < 0 || c.GetMaxTimeoutNs() < 0 || c.GetAckTimeoutNs() < 0 {
		return status.Error(codes.InvalidArgument, "a digest's list size and timeouts must not be negative")
	}
	if c == nil {
		c = &p4v1.DigestEntry_Config{}
	}
	d.configure(c)
	p.store.digests[m.GetDigestId()] = m
	return nil
}

// writeReplication applies an update to a multicast group or clone session.
func (p *pipeline) writeReplication(op p4v1.Update_Type, m *p4v1.PacketReplicationEngineEntry) error {
	switch e := m.GetType().(type) {
	case *p4v1.PacketReplicationEngineEntry_MulticastGroupEntry:
		return p.writeMulticast(op, e.MulticastGroupEntry)
	case *p4v1.PacketReplicationEngineEntry_CloneSessionEntry:
		return p.writeClone(op, e.CloneSessionEntry)
	}
	return status.Error(codes.InvalidArgument, "packet replication entry is neither a multicast group nor a clone session")
}

// writeMulticast applies section "MulticastGroupEntry".
func (p *pipeline) writeMulticast(op p4v1.Update_Type, m *p4v1.MulticastGroupEntry) error {
	id := m.GetMulticastGroupId()
	if id == 0 || id > maxGroup {
		return status.Errorf(codes.InvalidArgument, "multicast group %d is not in 1..%d", id, maxGroup)
	}
	_, found := p.store.multicast.get(id)
	if err := mustExist(op, found, "multicast group", id); err != nil {
		return err
	}
	if op == p4v1.Update_DELETE {
		if err := p.dp.Multicast(id, nil); err != nil {
			return datapathError(err)
		}
		p.store.multicast.remove(id)
		return nil
	}
	rs, err := p.replicas(m.GetReplicas())
	if err != nil {
		return err
	}
	if err := p.dp.Multicast(id, rs); err != nil {
		return datapathError(err)
	}
	p.store.multicast.put(id, m)
	return nil
}

// writeClone applies section "CloneSessionEntry".
func (p *pipeline) writeClone(op p4v1.Update_Type, m *p4v1.CloneSessionEntry) error {
	id := m.GetSessionId()
	switch {
	case id == 0 || id > maxSession:
		return status.Errorf(codes.InvalidArgument, "clone session %d is not in 1..%d", id, maxSession)
	case op != p4v1.Update_DELETE && m.GetClassOfService() != 0:
		return status.Errorf(codes.InvalidArgument, "class of service %d: there is only class 0", m.GetClassOfService())
	case op != p4v1.Update_DELETE && m.GetPacketLengthBytes() < 0:
		return status.Errorf(codes.InvalidArgument, "packet length %d is negative", m.GetPacketLengthBytes())
	}
	_, found := p.store.clones.get(id)
	if err := mustExist(op, found, "clone session", id); err != nil {
		return err
	}
	if op == p4v1.Update_DELETE {
		if err := p.dp.Clone(id, nil, 0); err != nil {
			return datapathError(err)
		}
		p.store.clones.remove(id)
		return nil
	}
	rs, err := p.replicas(m.GetReplicas())
	if err != nil {
		return err
	}
	if err := p.dp.Clone(id, rs, int(m.GetPacketLengthBytes())); err != nil {
		return datapathError(err)
	}
	p.store.clones.put(id, m)
	return nil
}

// replicas checks and translates the replicas of a group or session; the ports'
// byte strings are brought into canonical form.
func (p *pipeline) replicas(ms []*p4v1.Replica) ([]datapath.Replica, error) {
	if len(ms) > maxReplicas {
		return nil, status.Errorf(codes.ResourceExhausted, "%d replicas; %d are supported", len(ms), maxReplicas)
	}
	seen := map[datapath.Replica]bool{}
	rs := make([]datapath.Replica, len(ms))
	for i, m := range ms {
		port, err := p.replicaPort(m)
		switch {
		case err != nil:
			return nil, err
		case len(m.GetBackupReplicas()) > 0:
			return nil, status.Error(codes.Unimplemented, "backup replicas are not supported")
		case m.GetInstance() > maxInstance:
			return nil, status.Errorf(codes.InvalidArgument, "replica instance %d exceeds %d", m.GetInstance(), maxInstance)
		}
		rs[i] = datapath.Replica{Port: port, Instance: m.GetInstance()}
		if seen[rs[i]] {
			return nil, status.Errorf(codes.InvalidArgument, "replica (port %d, instance %d) is there twice", port, m.GetInstance())
		}
		seen[rs[i]] = true
	}
	return rs, nil
}

// portBits is how many bits a port has in v1model.
const portBits = 9

// replicaPort reads either form of a replica's port.
func (p *pipeline) replicaPort(m *p4v1.Replica) (datapath.Port, error) {
	if port, ok := egressPort(m); ok {
		if port >= 1<<portBits {
			return 0, status.Errorf(codes.OutOfRange, "replica port %d needs more than %d bits", port, portBits)
		}
		return datapath.Port(port), nil
	}
	k, ok := m.GetPortKind().(*p4v1.Replica_Port)
	if !ok {
		return 0, status.Error(codes.InvalidArgument, "replica has no port")
	}
	if p.info.Ports() == nil {
		k.Port = p4info.Canonical(k.Port)
	}
	return p.port(k.Port)
}

// port reads a port as controllers name it: a byte string, or a string in programs whose packet metadata have ports of such a type.
func (p *pipeline) port(b []byte) (n datapath.Port, err error) {
	if s := p.info.Ports(); s != nil {
		b, err = s.Bytes(b)
	}
	if err == nil {
		err = p4info.CheckWidth(b, portBits)
	}
	if err != nil {
		return 0, status.Errorf(status.Code(err), "port: %s", status.Convert(err).Message())
	}
	for _, c := range b {
		n = n<<8 | datapath.Port(c)
	}
	return n, nil
}
