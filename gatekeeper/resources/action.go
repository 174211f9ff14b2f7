package resources

import (
	"net/netip"
	"time"

	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// Action is something that must become true in the rack. It is one of the types
// below; all are values, and carrying one out twice does no harm.
type Action interface{ action() }

// BladeUp says that a blade is in service, with these properties. Its identity,
// its route, its hop and, for a memory blade, its machine's home become rules.
type BladeUp struct{ Blade Blade }

// BladeDown says that a blade is out of service. A memory blade's home goes, so
// that its clients hear that it is unavailable. EndNode follows for each node it
// hosts.
type BladeDown struct{ Blade Blade }

// BladeGone says that a blade was removed for good; all its rules go.
type BladeGone struct{ Blade Blade }

// MemoryLost says that what a memory blade held is gone: its server started
// anew, or it was removed.
type MemoryLost struct{ Machine Machine }

// NodeUp says that a node is there, or has moved. Its identity on its blade's
// port, its route and its hop become rules; then the join is answered.
type NodeUp struct {
	Node  Node
	Blade Blade
}

// EndNode says that a node has ended or must end; Node.Cause tells why. Fence
// it, take its rules away, clean up after it or plan its recovery; then call
// Ended.
type EndNode struct{ Node Node }

// StartNode makes a blade's daemon run a program. If it cannot, StartFailed is
// to be called.
type StartNode struct {
	Blade, Instance string
	Args            []string
	Env             map[string]string
	Binary          string // Program.Binary
	// Services are what it is to export; Liveness is with its defaults.
	Services []string
	Liveness Liveness
	// Address and Incarnation are set when the node keeps its address.
	Address     netip.Addr
	Incarnation uint32
}

// EmptyNode lets a node finish its calls without getting new ones; then call Emptied.
// If it Moves, those wait for the next node with its address; otherwise they are
// others'. StopNode follows, after Config.DrainPatience at the latest if its blade
// drains.
type EmptyNode struct {
	Node  Node
	Moves bool
}

// StopNode makes a blade's daemon end a program, by force after Grace.
type StopNode struct {
	Blade, Instance string
	Grace           time.Duration
}

// SetRoutes changes the switch's route entries of one method.
type SetRoutes struct {
	Service string
	Method  rpcpacket.Method
	Change  Change
}

// Short says that a deployment lacks blades, or no longer does (both numbers
// 0). The operator is to be told.
type Short struct {
	App, Program string
	// Nodes that wait for a blade and Spares that could not be reserved.
	Nodes, Spares int
}

// RolledOut says that all nodes of a deployment run its new programs, and are ready.
type RolledOut struct {
	App      string
	Revision int
}

// RolledBack says that new programs have failed, and why. The deployment goes back to
// those of revision Former, under the number Revision.
type RolledBack struct {
	App              string
	Revision, Former int
	Cause            string
}

// Drained says that nobody uses a draining blade any more; it may be unplugged.
type Drained struct{ Blade string }

// Stray says that a blade reports a node that does not live there (any more).
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
func (EmptyNode) action()  {}
func (StopNode) action()   {}
func (SetRoutes) action()  {}
func (Short) action()      {}
func (RolledOut) action()  {}
func (RolledBack) action() {}
func (Drained) action()    {}
func (Stray) action()      {}
