package resources

import (
	"net/netip"

	"github.com/bifrost-rack/bifrost/internal/control"
)

// Kind is what a blade is.
type Kind string

// The kinds, as blades announce themselves.
const (
	Compute Kind = control.Compute
	Memory  Kind = control.Memory
)

// Mark is what an operator has decided about a blade, "" for nothing.
type Mark string

// The marks.
const (
	Draining Mark = "draining" // it takes nothing new; what is there may finish
	Failed   Mark = "failed"   // it is out of service until Return
)

// Rack tells a Registry what the Gatekeeper knows of nodes. Its answers change only between
// calls of the Registry's methods.
type Rack interface {
	// Exports reports whether an incarnation of a node exports a service, or did when it ended.
	Exports(node netip.Addr, incarnation uint32, service string) bool
}

// Blade is one resource of the rack.
type Blade struct {
	Name string `json:"name"`
	Kind Kind   `json:"kind"`
	// Capacity is how many nodes a compute blade may run at once. What a memory blade
	// has room for is the Gatekeeper's to know.
	Capacity uint64 `json:"capacity"`
	// Cause says why it is failed or draining.
	Cause string `json:"cause,omitempty"`
	// Mark is what the operator decided, Draining or Failed; Down is true from the
	// time at which the blade was lost until its next hello. Drained says that a draining
	// blade was reported as empty.
	Mark    Mark `json:"mark,omitempty"`
	Down    bool `json:"down,omitempty"`
	Drained bool `json:"drained,omitempty"`
}

// Node is a logical processor: a program with an address of its own.
type Node struct {
	Address     netip.Addr `json:"address"`
	Incarnation uint32     `json:"incarnation"`
	Name        string     `json:"name"`
	Blade       string     `json:"blade"`
	// Instance is the deployed program that runs as this node, "" for a program
	// that joined by itself.
	Instance string `json:"instance,omitempty"`
	// Ending is true from EndNode to Ended; Cause and Crashed say how it ended.
	Ending  bool   `json:"ending,omitempty"`
	Cause   string `json:"cause,omitempty"`
	Crashed bool   `json:"crashed,omitempty"`
}
