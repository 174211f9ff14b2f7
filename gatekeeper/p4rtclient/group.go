package p4rtclient

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"

	p4v1 "github.com/p4lang/p4runtime/go/p4/v1"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Multicast is the table of multicast groups. It is not the program's: an Entry of it is
// a group, made by Group, so that groups are written, read back and compared like
// entries.
const Multicast = "multicast_group"

// Replica is where one of a packet's copies goes: a port, and the replica id that the
// program sees in egress.
type Replica struct{ Port, ID uint16 }

// Group returns the entry that is a multicast group.
func Group(id uint16, replicas ...Replica) Entry {
	slices.SortFunc(replicas, func(a, b Replica) int { return cmp.Compare(a.ID, b.ID) })
	e := Entry{Table: Multicast, Match: []Match{{Field: "group", Value: Uint(uint64(id))}}, Action: "replicate"}
	for _, r := range replicas {
		e.Params = append(e.Params, Param{"port", Uint(uint64(r.Port))}, Param{"id", Uint(uint64(r.ID))})
	}
	return e
}

// encodeGroup writes a group as P4Runtime has it.
func encodeGroup(e *Entry, withReplicas bool) (*p4v1.Entity, error) {
	if len(e.Match) != 1 || len(e.Params)%2 != 0 {
		return nil, fmt.Errorf("%s is no multicast group", e)
	}
	id, ok := e.Match[0].Value.Uint64()
	if !ok || id == 0 || id > 1<<16-1 {
		return nil, fmt.Errorf("multicast group %s", e.Match[0].Value)
	}
	g := &p4v1.MulticastGroupEntry{MulticastGroupId: uint32(id)}
	for i := 0; withReplicas && i < len(e.Params); i += 2 {
		instance, _ := e.Params[i+1].Value.Uint64()
		port, err := e.Params[i].Value.fit(portBits)
		if err != nil {
			return nil, fmt.Errorf("multicast group %d: port: %w", id, err)
		}
		g.Replicas = append(g.Replicas, &p4v1.Replica{
			PortKind: &p4v1.Replica_Port{Port: []byte(port)}, Instance: uint32(instance), //nolint:gosec // 16 bits
		})
	}
	return replication(g), nil
}

// portBits is the width of a port in v1model.
const portBits = 9

func replication(g *p4v1.MulticastGroupEntry) *p4v1.Entity {
	return &p4v1.Entity{Entity: &p4v1.Entity_PacketReplicationEngineEntry{PacketReplicationEngineEntry: &p4v1.PacketReplicationEngineEntry{
		Type: &p4v1.PacketReplicationEngineEntry_MulticastGroupEntry{MulticastGroupEntry: g},
	}}}
}

// decodeGroup is the reverse.
func decodeGroup(g *p4v1.MulticastGroupEntry) Entry {
	var rs []Replica
	for _, r := range g.GetReplicas() {
		port, _ := Bytes(r.GetPort()).Uint64()
		if r.GetPort() == nil {
			port = uint64(r.GetEgressPort()) //nolint:staticcheck // the older form, in which a switch may answer
		}
		rs = append(rs, Replica{Port: uint16(port), ID: uint16(r.GetInstance())}) //nolint:gosec // 9 and 16 bits
	}
	return Group(uint16(g.GetMulticastGroupId()), rs...) //nolint:gosec // 16 bits
}

// Groups returns the multicast groups. A switch that does not tell them is taken to have
// none: to insert one that is there is then answered with ALREADY_EXISTS.
func (c *Client) Groups(ctx context.Context) ([]Entry, error) {
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	stream, err := c.rpc.Read(ctx, &p4v1.ReadRequest{DeviceId: c.cfg.DeviceID, Entities: []*p4v1.Entity{replication(&p4v1.MulticastGroupEntry{})}})
	if err != nil {
		return nil, fmt.Errorf("read multicast groups: %w", err)
	}
	var out []Entry
	for {
		m, err := stream.Recv()
		switch {
		case errors.Is(err, io.EOF) || status.Code(err) == codes.Unimplemented:
			return out, nil
		case err != nil:
			return nil, fmt.Errorf("read multicast groups: %w", err)
		}
		for _, e := range m.GetEntities() {
			if g := e.GetPacketReplicationEngineEntry().GetMulticastGroupEntry(); g != nil {
				out = append(out, decodeGroup(g))
			}
		}
	}
}
