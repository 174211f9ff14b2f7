package resources

import (
	"net/netip"
	"time"

	"github.com/bifrost-rack/bifrost/rpc/packet"
)

// Action is something that must become true in the rack. It is one of the types
// below; all are values, and carrying one out twice does no harm.
type Action interface{ action() }

// BladeUp: a blade is in service, with these properties. Its identity, its
// route, its hop and, for a memory blade, its machine's home become rules.
type BladeUp struct{ Blade Blade }

// BladeDown: a blade is out of service. A memory blade's home goes, so that its
// clients hear that it is unavailable. EndNode follows for each node it hosts.
type BladeDown struct{ Blade Blade }

// BladeGone: a blade was removed for good; all its rules go.
type BladeGone struct{ Blade Blade }

// MemoryLost: what a memory blade held is gone, because its server started anew.
type MemoryLost struct{ Machine Machine }

// NodeUp: a node is there, or has moved. Its identity on its blade's port, its
// route and its hop become rules; then the join is answered.
type NodeUp struct {
	Node  Node
	Blade Blade
}

// EndNode: a node has ended or must end, as its Cause says. Fence it, take its
// rules away, clean up after it or plan its recovery; then call Ended.
type EndNode struct{ Node Node }

// StartNode: a blade's daemon is to run a program. If it cannot, StartFailed is
// to be called.
type StartNode struct {
	Blade, Instance string
	Args            []string
	Env             map[string]string
	// Address and Incarnation are set when the node keeps its address.
	Address     netip.Addr
	Incarnation uint32
}

// StopNode: a blade's daemon is to end a program.
type StopNode struct {
	Blade, Instance string
	Grace           time.Duration
}

// SetRoutes: the switch's route entries of one method change.
type SetRoutes struct {
	Service string
	Method  packet.Method
	Change  Change
}

// Short: a deployment lacks blades, or no longer does (both numbers 0). The
// operator is to be told.
type Short struct {
	App, Program string
	// Nodes that wait for a blade and Spares that could not be reserved.
	Nodes, Spares int
}

// Drained: nobody uses a draining blade any more; it may be unplugged.
type Drained struct{ Blade string }

// Stray: a blade reports a node that does not live there (any more).
type Stray struct {
	Blade string
	Node  netip.Addr
}

func (BladeUp) action()    {}
func (BladeDown) action()  {}
func (BladeGone) action()  {}
func (MemoryLost) action() {}
func (NodeUp) action()     {}
func (EndNode) action()    {}
func (StartNode) action()  {}
func (StopNode) action()   {}
func (SetRoutes) action()  {}
func (Short) action()      {}
func (Drained) action()    {}
func (Stray) action()      {}
