package resources

import (
	"net/netip"
	"time"
)

// Action is something that must become true in the rack. It is one of the types
// below; all are values, and carrying one out twice does no harm.
type Action interface{ action() }

// BladeDown says that a blade is out of service. EndNode follows for each node it
// hosts.
type BladeDown struct{ Blade Blade }

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
	// Address is set when the node keeps its address, and After is the incarnation that it goes on from.
	Address netip.Addr
	After   uint32
	// Heir: it is not the program that is to run, but one that answers from the node's ledger what
	// is known of its calls, and ends those that had begun. It leaves by itself.
	Heir bool
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

// GiveUp says that the next node of an instance does not come after all: nobody takes the address that was kept
// for it.
type GiveUp struct{ Node netip.Addr }

// Short says that a deployment lacks blades, or no longer does (both numbers
// 0). The operator is to be told.
type Short struct {
	App, Program string
	// Nodes that wait for a blade and Spares that could not be reserved.
	Nodes, Spares int
}

// ProgramFailed says that an instance has failed on a blade, why, and how often it has in a row.
type ProgramFailed struct {
	Instance, Blade string
	Failures        int
	Cause           string
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

func (BladeDown) action()     {}
func (EndNode) action()       {}
func (StartNode) action()     {}
func (EmptyNode) action()     {}
func (StopNode) action()      {}
func (GiveUp) action()        {}
func (Short) action()         {}
func (ProgramFailed) action() {}
func (RolledOut) action()     {}
func (RolledBack) action()    {}
func (Drained) action()       {}
