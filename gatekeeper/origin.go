package gatekeeper

import (
	"encoding/binary"
	"slices"

	"github.com/bifrost-rack/bifrost/dsm/packet"
	"github.com/bifrost-rack/bifrost/gatekeeper/log"
	"github.com/bifrost-rack/bifrost/internal/fault"
	rpc "github.com/bifrost-rack/bifrost/rpc/packet"
)

// A re-run of an execution must get the regions that the runs before it got: its calls
// pass their pointers. Memory blades know who has allocated what, and a re-run asks all
// of them. Two cases they cannot see, so an allocation's answer is compared with what
// the execution was given before, here:
//
//	the region was on a machine that has started anew ─▶ unavailable: no run can ever have it again
//	an earlier run's answer was lost, and a later run
//	got another region while the blade was away      ─▶ not found here; the first region is reclaimed
//
// What is known goes when the execution has ended, or its changes were committed.

// origin names an allocation: which one, of which execution.
type origin struct {
	execution rpc.ID
	branch    uint64 // a main's has its last checkpoint in the upper half
	index     uint32
}

// originOf is the allocation that a memory header speaks of, the zero origin if it is
// not an execution's.
func originOf(m *packet.Header) origin {
	if m.Execution == ([16]byte{}) {
		return origin{}
	}
	return origin{rpc.ID(m.Execution), m.Branch, m.Index}
}

// originSize is how many bytes append adds.
const originSize = 16 + 8 + 4

func (o origin) append(b []byte) []byte {
	b = append(b, o.execution[:]...)
	b = binary.BigEndian.AppendUint64(b, o.branch)
	return binary.BigEndian.AppendUint32(b, o.index)
}

func parseOrigin(b []byte) origin {
	return origin{rpc.ID(b[:16]), binary.BigEndian.Uint64(b[16:]), binary.BigEndian.Uint32(b[24:])}
}

// origins are the allocations of executions that have not ended.
type origins struct {
	of     map[packet.Pointer]origin // by a region's base
	region map[origin]packet.Region
	lost   map[packet.Pointer]bool // regions whose machine has lost them
	all    map[rpc.ID][]origin
}

func newOrigins() origins {
	return origins{
		of: map[packet.Pointer]origin{}, region: map[origin]packet.Region{}, lost: map[packet.Pointer]bool{}, all: map[rpc.ID][]origin{},
	}
}

// note says which allocation a region is.
func (s *origins) note(o origin, r packet.Region) {
	if o == (origin{}) {
		return
	}
	s.of[r.Base], s.region[o] = o, r
	s.all[o.execution] = append(s.all[o.execution], o)
}

// on reports whether an execution has regions on a memory machine.
func (s *origins) on(e rpc.ID, machine uint8) bool {
	return slices.ContainsFunc(s.all[e], func(o origin) bool {
		r := s.region[o]
		return r.Base.Machine() == machine && !s.lost[r.Base]
	})
}

// lose says that a machine has lost its content, and returns the regions that executions
// may ask for again.
func (s *origins) lose(machine uint8) (lost []packet.Region) {
	for o, r := range s.region {
		if r.Base.Machine() == machine && s.of[r.Base] == o && !s.lost[r.Base] {
			s.lost[r.Base] = true
			lost = append(lost, r)
		}
	}
	return lost
}

// forget drops a region.
func (s *origins) forget(r packet.Region) {
	o, known := s.of[r.Base]
	if !known {
		return
	}
	delete(s.of, r.Base)
	delete(s.lost, r.Base)
	delete(s.region, o)
	rest := slices.DeleteFunc(s.all[o.execution], func(x origin) bool { return x == o })
	if len(rest) == 0 {
		delete(s.all, o.execution)
	} else {
		s.all[o.execution] = rest
	}
}

// end drops what an execution has allocated before a checkpoint, the zero checkpoint
// standing for its end. It returns the lost regions among it.
func (s *origins) end(e rpc.ID, checkpoint uint32) (lost []packet.Region) {
	for _, o := range slices.Clone(s.all[e]) {
		r := s.region[o]
		if checkpoint != 0 && o.branch>>32 >= uint64(checkpoint) {
			continue
		}
		if s.lost[r.Base] {
			lost = append(lost, r)
		}
		s.forget(r)
	}
	return lost
}

// loseMachine says that a memory blade's machine has lost its content: the blade has
// started anew, and begins above all that it had.
func (c *controller) loseMachine(b *blade) {
	for _, r := range c.origins.lose(b.hello.Machine) {
		c.keepLost(r)
	}
	if m := b.mirror; m != nil {
		m.copies, m.lost = nil, b.begin // it begins as another copy, which enroll writes down
	}
	c.steps(c.leases.RemoveMachine(c.cfg.DSMPrefix, b.hello.Machine, b.begin))
}

// restoreLost tells the lease machine what machines have lost.
func (c *controller) restoreLost() {
	for _, b := range c.blades {
		if b.memory() && b.mirror == nil && b.begin > 0 {
			c.leases.RemoveMachine(c.cfg.DSMPrefix, b.hello.Machine, b.begin)
		}
	}
	for _, m := range c.mirrors {
		if m.lost > 0 {
			c.leases.RemoveMachine(c.cfg.DSMPrefix, m.machine, m.lost)
		}
	}
}

// keepLost writes down that a region is lost that an execution may ask for again.
func (c *controller) keepLost(r packet.Region) {
	c.put(log.Record{Kind: log.KindRegion, ID: log.AddrID(r.Base.Addr()), Data: c.origins.of[r.Base].append([]byte{r.Class, regionLost})})
}

// endOrigins forgets what an execution has allocated before a checkpoint, or until its
// end.
func (c *controller) endOrigins(e rpc.ID, checkpoint uint32) {
	for _, r := range c.origins.end(e, checkpoint) {
		c.drop(log.KindRegion, log.AddrID(r.Base.Addr()))
	}
}

// endedOrigins forgets the allocations of executions that have ended, after a restart.
func (c *controller) endedOrigins() {
	for e := range c.origins.all {
		if c.ended(e) && !c.table.Open(e) {
			c.endOrigins(e, 0)
		}
	}
}

// otherRegion refuses the answer to an allocation for which the execution was given
// another region before.
func (c *controller) otherRegion(h *held, r packet.Region, m *packet.Header, known *allocs) bool {
	had, there := c.origins.region[originOf(m)]
	if !there || had == r {
		return false
	}
	why := fault.NotFound // a re-run goes on looking, and finds the other one
	if c.origins.lost[had.Base] {
		why = fault.Unavailable
	}
	if !known.late(m.Request) {
		known.handled(m.Request) // a later copy of the answer gives nobody the region
		c.keepAllocs(c.nodes[h.dst], r.Base.Machine())
		c.reclaim([]packet.Region{r})
	}
	c.noRegion(h, r, m, why)
	return true
}
