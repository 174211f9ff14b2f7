package api

import (
	"net/netip"
	"time"
)

// Event is something that happened in the rack. Fields that do not apply are
// absent. Calls go past the Gatekeeper: there are events only of those that it hears to have
// been refused, given up or cancelled.
type Event struct {
	ID      string     `json:"id" doc:"BOOT-NUMBER; numbers count all events, so a gap means that some were lost" example:"9f86d081884c7d65-42"`
	Time    time.Time  `json:"time"`
	Kind    string     `json:"kind" doc:"What happened; new kinds may be added" example:"call.refused"`
	Blade   string     `json:"blade,omitempty"`
	Node    netip.Addr `json:"node,omitzero" format:"ipv6" doc:"Who did it: caller, allocator, ..."`
	Peer    netip.Addr `json:"peer,omitzero" format:"ipv6" doc:"With whom: callee"`
	Name    string     `json:"name,omitempty" doc:"The node's name"`
	Service string     `json:"service,omitempty"`
	Method  string     `json:"method,omitempty"`
	Call    string     `json:"call,omitempty"`
	Region  string     `json:"region,omitempty" doc:"A region, or the pointer of a denied access"`
	Op      string     `json:"op,omitempty"`
	Code    string     `json:"code,omitempty" doc:"Why something was refused" example:"permission denied"`
	Message string     `json:"message,omitempty"`
}

// Gap is sent in an event stream in the place of events that are lost: their
// reader was too slow, or was away for too long.
type Gap struct {
	Missed uint64 `json:"missed" doc:"How many events; 0 if the Gatekeeper has restarted, so that nobody knows"`
}
