package api

import (
	"net/netip"
	"time"
)

// Timeline is what became of one call, also after it is over.
type Timeline struct {
	ID      string     `json:"id" doc:"128 bits in hexadecimal" example:"00f3a6c41b9e7d5200000000000000a7"`
	Parent  string     `json:"parent,omitempty" doc:"The execution that made it: a call's id, or a durable main's; absent for a plain client"`
	Depth   int        `json:"depth" doc:"In a trace: how many of the calls before it wait for it; else 0"`
	Caller  netip.Addr `json:"caller,omitzero" format:"ipv6"`
	Callee  netip.Addr `json:"callee,omitzero" format:"ipv6"`
	Service string     `json:"service,omitempty"`
	Method  string     `json:"method"`
	Policy  string     `json:"policy" example:"recover"`
	Oneway  bool       `json:"oneway,omitempty" doc:"Nobody waits for it"`

	A1        time.Time `json:"a1" doc:"When it was sent"`
	B1        time.Time `json:"b1,omitzero" doc:"When its callee first got it"`
	B2        time.Time `json:"b2,omitzero" doc:"When its callee had finished it"`
	A2        time.Time `json:"a2,omitzero" doc:"When its reply went to the caller"`
	Over      bool      `json:"over" doc:"It has been answered, or given up"`
	Code      string    `json:"code,omitempty" doc:"Of the exception that it ended with" example:"permission denied"`
	Exception string    `json:"exception,omitempty" doc:"The type of the exception that it ended with, if the IDL declares it" example:"NoSuchKey"`
	Text      string    `json:"text,omitempty" doc:"What the exception says; at most 256 bytes, what is longer ends with …"`
	Arguments uint64    `json:"arguments,omitempty" doc:"How many bytes the message with its arguments and headers has"`
	Answer    uint64    `json:"answer,omitempty" doc:"How many bytes the answer has"`
	Headers   []Header  `json:"headers,omitempty" doc:"The first ones, 16 and 512 bytes at most. The values of others than traceparent and tracestate are hidden from tokens that may not deploy, and not kept over a restart"`
	Former    bool      `json:"former,omitempty" doc:"It was over before the Gatekeeper began"`
	Attempts  int       `json:"attempts,omitempty" doc:"How often its execution was begun again after a failure"`
	Steps     []Step    `json:"steps" doc:"Everything that has happened to it"`
	Skipped   int       `json:"skipped,omitempty" doc:"How many steps there were before the last one besides"`
}

// Step is something that has happened to a call.
type Step struct {
	Time    time.Time  `json:"time"`
	Kind    string     `json:"kind" enum:"sent,delivered,replied,answered,replayed,recalled" doc:"sent a1; delivered b1; replied b2; answered a2; replayed: run again; recalled: the same answer again"`
	Node    netip.Addr `json:"node,omitzero" format:"ipv6" doc:"Where"`
	Blade   string     `json:"blade,omitempty" doc:"The blade that the node was on then" example:"s1"`
	Attempt int        `json:"attempt,omitempty" doc:"How often its execution had been begun before"`
	Why     string     `json:"why,omitempty" doc:"Of replayed: how the former execution came to its end" example:"blade s2 has failed: no heartbeat"`
}

// Header is a header of a call.
type Header struct {
	Name  string `json:"name" example:"tenant"`
	Value string `json:"value"`
}

// History says how many calls there were, and how much is kept of what was before the
// Gatekeeper began.
type History struct {
	Began   time.Time `json:"began" doc:"When this run of the Gatekeeper began; what is older was read from its files"`
	Since   time.Time `json:"since,omitzero" doc:"The beginning of the oldest minute"`
	Calls   int       `json:"calls" doc:"How many calls of former runs there are; /v1/timelines has them behind those of this run"`
	Kept    bool      `json:"kept" doc:"It is written to files, so that it outlives this run"`
	Trouble string    `json:"trouble,omitempty" doc:"Why it cannot be written at present" example:"no space left on device"`
	Missed  uint64    `json:"missed,omitempty" doc:"How many calls and events were not written: more happened in a second than is kept of one, or there was trouble"`
	Minutes []Minute  `json:"minutes" doc:"Of the last two days, the oldest first. A minute in which the Gatekeeper was restarted is there twice"`
}

// Minute is how many calls ended in a minute.
type Minute struct {
	Time  time.Time `json:"time" doc:"Its beginning"`
	Calls uint64    `json:"calls" doc:"How many have ended"`
	// Declared are answers, not failures.
	Declared uint64  `json:"declared,omitempty" doc:"How many of them with an exception that the IDL declares"`
	Failed   uint64  `json:"failed,omitempty" doc:"How many of them with another exception"`
	P50      float64 `json:"p50,omitempty" doc:"How many seconds half of them took at most, of those that the Gatekeeper follows"`
	P99      float64 `json:"p99,omitempty" doc:"How many seconds 99 % of them took at most"`
}

// MethodFigures is what has become of a method's calls since the Gatekeeper began.
type MethodFigures struct {
	Service  string            `json:"service,omitempty" example:"Store"`
	Method   string            `json:"method" example:"put"`
	Calls    uint64            `json:"calls" doc:"How many have ended"`
	Open     uint64            `json:"open" doc:"How many are under way"`
	Failed   map[string]uint64 `json:"failed,omitempty" doc:"How many have failed, by code"`
	Declared uint64            `json:"declared,omitempty" doc:"How many have ended with an exception that the IDL declares: an answer"`
	Rerun    uint64            `json:"rerun,omitempty" doc:"How many had to be run again after a failure"`
	Mean     float64           `json:"mean,omitempty" doc:"How many seconds they took, from a1 to a2"`
	P50      float64           `json:"p50,omitempty" doc:"How many seconds half of them took at most, estimated from buckets"`
	P95      float64           `json:"p95,omitempty"`
	P99      float64           `json:"p99,omitempty"`
	Slow     string            `json:"slow,omitempty" doc:"One of the slowest, to be looked at with /v1/calls/{id}/timeline"`
}

// Trace is the calls that belong together.
type Trace struct {
	Call  string     `json:"call" doc:"The one that was asked about"`
	Calls []Timeline `json:"calls" doc:"From the outermost call on whose behalf it was made, as far as that is remembered, all that were made on its behalf; each in front of those that it has made itself"`
	More  bool       `json:"more,omitempty" doc:"There are others"`
}

// Graph says who calls whom.
type Graph struct {
	By       string    `json:"by" enum:"service,node"`
	Since    time.Time `json:"since" doc:"Of calls that were sent then or later"`
	Calls    uint64    `json:"calls" doc:"How many there are, those of folded edges included"`
	Vertices []Vertex  `json:"vertices" doc:"What the edges lead from and to"`
	Edges    []Edge    `json:"edges" doc:"The busiest first"`
	Folded   Folded    `json:"folded" doc:"What is not listed"`
}

// Vertex is an end of edges.
type Vertex struct {
	Name string `json:"name" doc:"Unique in the graph. That of a program ends with a slash; a node's is BLADE/NAME" example:"Store"`
	Kind string `json:"kind" enum:"service,program,node" doc:"program: it makes calls on nobody's behalf"`
	Node string `json:"node,omitempty" format:"ipv6" doc:"A node's address"`
}

// Edge is the calls from one vertex to another.
type Edge struct {
	From     string `json:"from" example:"Front"`
	To       string `json:"to" example:"Store"`
	Calls    uint64 `json:"calls"`
	Open     uint64 `json:"open,omitempty" doc:"How many of them are under way"`
	Declared uint64 `json:"declared,omitempty" doc:"How many ended with an exception that the IDL declares"`
	Failed   uint64 `json:"failed,omitempty" doc:"How many ended with another exception"`
	Rerun    uint64 `json:"rerun,omitempty" doc:"How many had to be run again"`
}

// Folded is what a graph does not list.
type Folded struct {
	Edges int    `json:"edges"`
	Calls uint64 `json:"calls"`
}
