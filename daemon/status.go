package daemon

import (
	"net/netip"
	"os"
	"slices"
	"strings"

	"github.com/bifrost-rack/bifrost/internal/join"
)

// Status implements join.Host.
func (c *Compute) Status(uid uint32) join.Status {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := join.Status{
		Blade: c.cfg.Name, Address: c.address, Rack: c.rack,
		Nodes: []join.NodeStatus{}, Programs: []join.ProgramStatus{},
	}
	s.Rack.Memories = slices.Clone(c.rack.Memories)
	select {
	case <-c.registered.made:
		s.Registered = true
	default:
	}
	for _, n := range sortedValues(c.nodes, netip.Addr.Compare) {
		s.Nodes = append(s.Nodes, join.NodeStatus{
			Name: n.identity.Name, Address: n.identity.Address, Incarnation: n.identity.Incarnation,
			Instance: n.program.Instance, PID: n.program.PID,
			Services: n.services(),
		})
	}
	for _, p := range sortedValues(c.programs, strings.Compare) {
		told := join.ProgramStatus{Name: p.start.Name, PID: p.process.PID()}
		if uid == 0 || int(uid) == os.Geteuid() || uid == p.process.UID() {
			told.Args = slices.Clone(p.start.Args)
		}
		s.Programs = append(s.Programs, told)
	}
	return s
}
