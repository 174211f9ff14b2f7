package simrack

import (
	"fmt"
	"net/netip"
	"sync"

	configv1 "github.com/p4lang/p4runtime/go/p4/config/v1"
	p4v1 "github.com/p4lang/p4runtime/go/p4/v1"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/prototext"

	"github.com/bifrost-rack/bifrost/internal/rackaddr"
	"github.com/bifrost-rack/bifrost/p4"
)

// identityTable is the id of the switch's table of that name.
var identityTable = sync.OnceValues(func() (uint32, error) {
	var info configv1.P4Info
	if err := prototext.Unmarshal(p4.Info, &info); err != nil {
		return 0, err
	}
	for _, t := range info.GetTables() {
		if t.GetPreamble().GetAlias() == "identity" {
			return t.GetPreamble().GetId(), nil
		}
	}
	return 0, fmt.Errorf("simrack: the program has no table of identities")
})

// entities collects what the switch answers.
type entities struct {
	p4v1.P4Runtime_ReadServer
	all []*p4v1.Entity
}

func (e *entities) Send(r *p4v1.ReadResponse) error {
	e.all = append(e.all, r.GetEntities()...)
	return nil
}

// Identities tells where the switch lets packets of nodes in: the blades by the nodes' addresses. It asks the switch itself, so
// that a connection which is down or stalled does not matter. A switch that is down lets nothing in.
func (r *Rack) Identities() (map[netip.Addr][]string, error) {
	sw := r.Switch()
	if sw == nil {
		return nil, nil
	}
	table, err := identityTable()
	if err != nil {
		return nil, err
	}
	var found entities
	err = sw.Server().Read(&p4v1.ReadRequest{DeviceId: 1, Entities: []*p4v1.Entity{{
		Entity: &p4v1.Entity_TableEntry{TableEntry: &p4v1.TableEntry{TableId: table}},
	}}}, &found)
	if status.Code(err) == codes.FailedPrecondition {
		return nil, nil // it has no program yet
	}
	blades := map[uint32]string{}
	for _, b := range r.blades {
		blades[uint32(b.host.Port())] = b.Name
	}
	all := map[netip.Addr][]string{}
	for _, e := range found.all {
		port, node := uint32(0), netip.Addr{}
		for _, m := range e.GetTableEntry().GetMatch() {
			for _, b := range m.GetExact().GetValue() {
				port = port<<8 | uint32(b)
			}
			if v := m.GetLpm().GetValue(); len(v) == 16 && m.GetLpm().GetPrefixLen() == 128 {
				node = netip.AddrFrom16([16]byte(v))
			}
		}
		if rackaddr.NodePrefix.Contains(node) {
			all[node] = append(all[node], blades[port])
		}
	}
	return all, err
}
