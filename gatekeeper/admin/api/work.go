package api

import (
	"net/netip"
	"time"
)

// Region is one allocation on a memory blade.
type Region struct {
	Region     string     `json:"region" doc:"Its addresses, as a prefix" example:"0:0:1001:0:0:1::/112"`
	Size       uint64     `json:"size" doc:"Bytes; a power of two"`
	Blade      string     `json:"blade,omitempty" doc:"The memory blade that holds it; absent if that has never been seen" example:"m1"`
	Owner      netip.Addr `json:"owner" format:"ipv6" doc:"The node that allocated it"`
	Controller netip.Addr `json:"controller,omitzero" format:"ipv6" doc:"The node that may pass it on and, while nobody leases it, write and free it; absent if that is gone and only leases keep the region"`
	Frozen     bool       `json:"frozen,omitempty" doc:"Nobody can say whose it is, since the switch has lost its registers: no program can reach it, and an operator may free it"`
	Leases     []Lease    `json:"leases" doc:"Who may read besides, each until its call returns, or a standing lease ends"`
}

// Lease is a right to read a region: a call's, or a standing lease.
type Lease struct {
	Call     string     `json:"call" doc:"The call that lent it; see /v1/calls/{id}. Empty for a standing lease"`
	Node     netip.Addr `json:"node" format:"ipv6" doc:"Who may read"`
	Standing uint32     `json:"standing,omitempty" doc:"The call slot of a standing lease; see /v1/slots"`
}

// Slot is a call slot that is open in the switch: that of a call, or of a standing lease.
type Slot struct {
	Slot     uint32     `json:"slot" doc:"The first one, of a call with several"`
	Number   string     `json:"number" doc:"Of this use of the slot: the caller's incarnation, and a count" example:"7.2"`
	Kind     string     `json:"kind" enum:"call,oneway,lease" doc:"lease: a standing lease, which one node has given another"`
	Caller   netip.Addr `json:"caller,omitzero" format:"ipv6" doc:"Who calls, or has given the lease; absent if it is gone"`
	Callee   netip.Addr `json:"callee,omitzero" format:"ipv6" doc:"Who is called, or may read; absent if it is gone"`
	Regions  []string   `json:"regions" doc:"What is lent, or given: where the regions begin"`
	Call     string     `json:"call,omitempty" doc:"The call's id, if its callee has told of it"`
	Children int        `json:"children,omitempty" doc:"How many open slots lend on from it"`
	Step     string     `json:"step,omitempty" enum:"coming,granted,ending" doc:"How far a standing lease has come"`
	Since    time.Time  `json:"since,omitzero" doc:"When a standing lease was asked for"`
}

// Call is one call under way, as the node that serves it has told last.
type Call struct {
	ID        string     `json:"id" doc:"128 bits in hexadecimal" example:"00f3a6c41b9e7d5200000000000000a7"`
	Parent    string     `json:"parent,omitempty" doc:"The execution that made it: a call's id, or a durable main's; absent for a plain client"`
	Caller    netip.Addr `json:"caller" format:"ipv6"`
	Callee    netip.Addr `json:"callee" format:"ipv6"`
	Service   string     `json:"service,omitempty"`
	Method    string     `json:"method"`
	Policy    string     `json:"policy,omitempty" doc:"What becomes of it when a side fails" example:"recover"`
	B1        time.Time  `json:"b1,omitzero" doc:"When its callee got it"`
	Oneway    bool       `json:"oneway,omitempty" doc:"Nobody waits for it"`
	Behind    string     `json:"behind,omitempty" doc:"The call that a stateful service runs while this one waits there"`
	Attempts  int        `json:"attempts,omitempty" doc:"How often it was begun before"`
	Told      time.Time  `json:"told,omitzero" doc:"When its callee told last that it is under way"`
	Arguments uint64     `json:"arguments,omitempty" doc:"How many bytes the message with its arguments and headers has"`
	Headers   []Header   `json:"headers,omitempty" doc:"Once it has begun. Values of others than traceparent and tracestate are hidden: its timeline tells them to who may deploy"`
}

// NodeCalls is what a node has to do with other nodes' calls, oldest first.
type NodeCalls struct {
	Waits  []Call `json:"waits" doc:"Calls that it has made and that have not returned"`
	Serves []Call `json:"serves" doc:"Calls to it that it has not finished"`
}

// Holders is who has to do with a pointer.
type Holders struct {
	Region Region `json:"region" doc:"The region that it lies in, with its controller and leases"`
	Calls  []Call `json:"calls" doc:"Calls under way that lend exactly this pointer"`
}

// FailureDomain is what the failure of a blade would take back.
type FailureDomain struct {
	Nodes   []netip.Addr `json:"nodes" doc:"The blade's nodes, and those that share their fate"`
	Regions []Region     `json:"regions" doc:"Regions on it that could not be reached, if it holds memory"`
	Missing []string     `json:"missing,omitempty" doc:"Who has not answered, so that regions is not complete: the memory blade that was to list them, and switch, which knows controllers and leases"`
	Rerun   []Call       `json:"rerun" doc:"Unfinished calls that would run again, the innermost first"`
	Cut     []Call       `json:"cut" doc:"Unfinished calls that would fail"`
	Out     []Call       `json:"out" doc:"Calls that the nodes have made elsewhere, and that run on"`
	Waiting []Call       `json:"waiting" doc:"Calls elsewhere that wait for one of rerun or cut"`
}

// Rule is an entry of one of the switch's tables, as it was read back.
type Rule struct {
	Table  string            `json:"table" example:"control_rule"`
	Match  map[string]string `json:"match" doc:"Key fields; addresses and prefixes in the usual notation, methods by name, other numbers in decimal"`
	Region string            `json:"region,omitempty" doc:"The first byte of the region that an access rule is about"`
	Action string            `json:"action" example:"allocates"`
	Params map[string]string `json:"params,omitempty" doc:"The action's parameters"`
}

// Stopped is what was stopped of the packets of one port.
type Stopped struct {
	Port      uint16            `json:"port" doc:"Port of the switch that they came in by"`
	Blade     string            `json:"blade,omitempty" doc:"The blade that is there"`
	Denied    uint64            `json:"denied" doc:"Memory accesses that the switch has denied"`
	Dropped   map[string]uint64 `json:"dropped,omitempty" doc:"Dropped by the switch, by why: no identity (the source does not live at the port), no route, malformed, forged, unsupported, hop limit, unlisted TCP, late"`
	Throttled map[string]uint64 `json:"throttled,omitempty" doc:"Dropped because they came faster than their class may, by why they would have been held"`
	Refused   map[string]uint64 `json:"refused,omitempty" doc:"Held packets that the Gatekeeper has refused, by why: refused, malformed, foreign (from somebody who may not say that)"`
}

// Denial is a memory access that the switch has denied.
type Denial struct {
	Time    time.Time  `json:"time"`
	Port    uint16     `json:"port" doc:"Port of the switch that it came in by"`
	Node    netip.Addr `json:"node" format:"ipv6" doc:"Who asked"`
	Op      string     `json:"op" doc:"read, write or free" example:"write"`
	Pointer string     `json:"pointer" doc:"To what" example:"0:0:1001::4000:0"`
}

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
