package p4rt

import (
	"github.com/bifrost-rack/bifrost/p4/datapath"
	"github.com/bifrost-rack/bifrost/p4/p4rt/p4info"
	p4v1 "github.com/p4lang/p4runtime/go/p4/v1"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

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
	rs, err := replicas(m.GetReplicas())
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
	rs, err := replicas(m.GetReplicas())
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
func replicas(ms []*p4v1.Replica) ([]datapath.Replica, error) {
	if len(ms) > maxReplicas {
		return nil, status.Errorf(codes.ResourceExhausted, "%d replicas; %d are supported", len(ms), maxReplicas)
	}
	seen := map[datapath.Replica]bool{}
	rs := make([]datapath.Replica, len(ms))
	for i, m := range ms {
		port, err := replicaPort(m)
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

// replicaPort reads either form of a replica's port, which has 9 bits in v1model.
func replicaPort(m *p4v1.Replica) (datapath.Port, error) {
	const portBits = 9
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
	if err := p4info.CheckWidth(k.Port, portBits); err != nil {
		return 0, status.Errorf(status.Code(err), "replica port: %s", status.Convert(err).Message())
	}
	k.Port = p4info.Canonical(k.Port)
	var n datapath.Port
	for _, b := range k.Port {
		n = n<<8 | datapath.Port(b)
	}
	return n, nil
}
