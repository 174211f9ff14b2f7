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
	Freeing    bool       `json:"freeing,omitempty" doc:"The memory blade has been told to free it"`
	Leases     []Lease    `json:"leases" doc:"Who may read besides, each until its call returns"`
}

// Lease is a call's right to read a region.
type Lease struct {
	Call string     `json:"call" doc:"The call that lent it; see /v1/calls/{id}"`
	Node netip.Addr `json:"node" format:"ipv6" doc:"Who may read"`
}

// Call is a held call: one that carries a pointer or asks for exactly-once.
type Call struct {
	ID      string     `json:"id" doc:"128 bits in hexadecimal" example:"00f3a6c41b9e7d5200000000000000a7"`
	Parent  string     `json:"parent,omitempty" doc:"The execution that made it; absent for a plain client"`
	Caller  netip.Addr `json:"caller" format:"ipv6"`
	Callee  netip.Addr `json:"callee" format:"ipv6"`
	Service string     `json:"service,omitempty"`
	Method  string     `json:"method"`
	Stage   string     `json:"stage" enum:"waiting,running,replying,finished" doc:"waiting: held until its rules are in place; running: with its callee; replying: its reply is held; finished: over, but not settled by its caller yet"`
	Code    string     `json:"code,omitempty" doc:"Why it failed" example:"permission denied"`
}

// Rule is an entry of one of the switch's tables, as it was read back.
type Rule struct {
	Table  string            `json:"table" example:"dsm_access"`
	Match  map[string]string `json:"match" doc:"Key fields; addresses and prefixes in the usual notation, methods by name, other numbers in decimal"`
	Region string            `json:"region,omitempty" doc:"The region that an access rule is about"`
	Action string            `json:"action" example:"permit"`
	Params map[string]string `json:"params,omitempty" doc:"The action's parameters"`
}

// Denial is a memory access that the switch has denied.
type Denial struct {
	Time    time.Time  `json:"time"`
	Port    uint16     `json:"port" doc:"Port of the switch that it came in by"`
	Node    netip.Addr `json:"node" format:"ipv6" doc:"Who asked"`
	Op      string     `json:"op" doc:"read, write or free" example:"write"`
	Pointer string     `json:"pointer" doc:"To what" example:"0:0:1001::40"`
}
