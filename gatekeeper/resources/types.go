package resources

import (
	"net/netip"
	"time"

	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/frame"
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

// Port is a port of the switch.
type Port uint16

// Hop is a key of the switch's next_hop table; 0 names none.
type Hop uint16

// Machine is a memory blade's machine id, byte 5 of its pointers; 0 names none.
type Machine uint8

// Blade is one resource of the rack.
type Blade struct {
	Name    string     `json:"name"`
	Kind    Kind       `json:"kind"`
	Port    Port       `json:"port"`
	MAC     frame.MAC  `json:"mac"`
	Address netip.Addr `json:"address"`
	Hop     Hop        `json:"hop"`
	// Machine is a memory blade's machine id.
	Machine Machine `json:"machine,omitempty"`
	// Capacity is bytes of memory, or concurrent nodes; Used is how much of it
	// is taken: as the blade reported (memory), or as known here, with starting
	// programs but without spares (compute).
	Capacity uint64            `json:"capacity"`
	Used     uint64            `json:"used"`
	Spec     map[string]string `json:"spec,omitempty"`
	// Boot is drawn by the blade's daemon when it starts.
	Boot   uint64 `json:"boot"`
	Status Status `json:"status"`
	// Cause says why it is failed or draining.
	Cause string `json:"cause,omitempty"`
	// Mark is what the operator decided, Draining or Failed; Down is true while
	// the blade is silent or unplugged. Status follows from both. Drained says
	// that a draining blade was reported as empty.
	Mark    Status `json:"mark,omitempty"`
	Down    bool   `json:"down,omitempty"`
	Drained bool   `json:"drained,omitempty"`
	// LastSeen is when it last reported.
	LastSeen time.Time `json:"last_seen"`
}

// Node is a logical processor: a program with an address of its own.
type Node struct {
	Address     netip.Addr `json:"address"`
	Incarnation uint32     `json:"incarnation"`
	Name        string     `json:"name"`
	Blade       string     `json:"blade"`
	Hop         Hop        `json:"hop"`
	// Instance is the deployed program that runs as this node, "" for a program
	// that joined by itself.
	Instance string `json:"instance,omitempty"`
	// Ending is true from EndNode to Ended; Cause and Crashed say how it ended.
	Ending  bool   `json:"ending,omitempty"`
	Cause   string `json:"cause,omitempty"`
	Crashed bool   `json:"crashed,omitempty"`
	// Services are the names of what it exports, in order.
	Services []string  `json:"services,omitempty"`
	Joined   time.Time `json:"joined"`
	// Token is what its daemon chose to name this join.
	Token uint64 `json:"token"`
}
