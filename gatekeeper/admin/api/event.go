package api

import (
	"net/netip"
	"time"
)

// Event is something that happened in the rack. Fields that do not apply are
// absent. Of exactly-once calls without pointers there are no events: they go past the
// Gatekeeper.
type Event struct {
	ID      string       `json:"id" doc:"BOOT-NUMBER; numbers count all events, so a gap means that some were lost" example:"9f86d081884c7d65-42"`
	Time    time.Time    `json:"time"`
	Kind    string       `json:"kind" doc:"What happened; new kinds may be added" example:"call.released"`
	Blade   string       `json:"blade,omitempty"`
	Node    netip.Addr   `json:"node,omitzero" format:"ipv6" doc:"Who did it: caller, allocator, ..."`
	Peer    netip.Addr   `json:"peer,omitzero" format:"ipv6" doc:"With whom: callee"`
	Name    string       `json:"name,omitempty" doc:"The node's name"`
	Service string       `json:"service,omitempty"`
	Method  string       `json:"method,omitempty"`
	Call    string       `json:"call,omitempty"`
	Region  string       `json:"region,omitempty" doc:"A region, or the pointer of a denied access"`
	Op      string       `json:"op,omitempty"`
	Rules   []AccessRule `json:"rules,omitempty" doc:"Rules that were granted or revoked"`
	Code    string       `json:"code,omitempty" doc:"Why something was refused" example:"permission denied"`
	Message string       `json:"message,omitempty"`
}

// AccessRule permits one node one operation on one region.
type AccessRule struct {
	Node   netip.Addr `json:"node" format:"ipv6"`
	Op     string     `json:"op" enum:"read,write,free"`
	Region string     `json:"region"`
}

// Gap is sent in an event stream in the place of events that are lost: their
// reader was too slow, or was away for too long.
type Gap struct {
	Missed uint64 `json:"missed" doc:"How many events; 0 if the Gatekeeper has restarted, so that nobody knows"`
}
