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

// Status is what a blade is good for now (thesis section 5.3).
type Status string

// The statuses.
const (
	Idle     Status = "free"     // in service, nobody uses it
	InUse    Status = "in use"   // in service; it runs nodes or holds regions
	Draining Status = "draining" // takes nothing new; what is there may finish
	Failed   Status = "failed"   // silent, unplugged, or marked by the operator
)

// Blade is one resource of the rack.
type Blade struct {
	Name string `json:"name"`
	Kind Kind   `json:"kind"`
	// Capacity is bytes of memory, or concurrent nodes; Used is how much of it
	// is taken: as the blade reported (memory), or as known here, with starting
	// programs but without spares (compute).
	Capacity uint64 `json:"capacity"`
	Used     uint64 `json:"used"`
	// Boot is drawn by the blade's daemon when it starts.
	Boot   uint64 `json:"boot"`
	Status Status `json:"status"`
	// Cause says why it is failed or draining.
	Cause string `json:"cause,omitempty"`
	// Mark is what the operator decided, Draining or Failed; Down is true while
	// the blade is out of service. Status follows from both. Drained says
	// that a draining blade was reported as empty.
	Mark    Status `json:"mark,omitempty"`
	Down    bool   `json:"down,omitempty"`
	Drained bool   `json:"drained,omitempty"`
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
	// Services are the names of what it exports, in order.
	Services []string `json:"services,omitempty"`
}
