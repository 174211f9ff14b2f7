package recovery

import (
	"net/netip"
	"time"

	"github.com/bifrost-rack/bifrost/gatekeeper/wal"
)

// Output is what an input leads to: records, as one batch, then actions in their
// order.
type Output struct {
	Put     []wal.Record
	Delete  []wal.Key
	Actions []Action
}

// Action is something to do. It is one of the types below; carrying one out twice
// does no harm.
type Action interface{ action() }

// Unidentify takes the node's identity out of the switch and has its program
// ended, if that still runs. Unidentified answers, when the switch has.
type Unidentify struct {
	Node wal.Node
	Gone bool
}

// Fence makes a memory server refuse an incarnation of a node and all before it.
// Machine.Fenced answers. Gone: there will be no other incarnation, so the server takes back what
// the node alone could have decided about.
type Fence struct {
	Server Server
	Node   wal.Node
	Gone   bool
}

// Fenced says that nothing of the node's failed incarnations can happen any more.
type Fenced struct{ Node netip.Addr }

// Place hands the node over to package resources (Registry.Ended): with Keep, its
// program is started on a spare, with its address and the next incarnation.
// Machine.Joined answers, however long that takes.
type Place struct {
	Node wal.Node
	Keep bool
}

// Recovered says that a recovery has ended. Since is when the failure was told.
type Recovered struct {
	Node  wal.Node
	Since time.Time
}

func (Unidentify) action() {}
func (Fence) action()      {}
func (Fenced) action()     {}
func (Place) action()      {}
func (Recovered) action()  {}

func (m *Machine) do(a Action) { m.out.Actions = append(m.out.Actions, a) }

func (m *Machine) take() Output {
	o := m.out
	m.out = Output{}
	return o
}
