// Package agent is a benchmark's process on a blade: the harness starts it in the
// blade's network namespace, pinned to its CPUs, and tells it by lines of JSON
// what to serve or to measure. It ends with its input, so a harness that is killed
// leaves none behind.
//
//	harness ── Request ──▶ stdin    agent: a peer's server, or its client
//	        ◀── Answer ─── stdout
package agent

import (
	"time"

	"github.com/bifrost-rack/bifrost/bench/peer"
	"github.com/bifrost-rack/bifrost/bench/stats"
)

// Request is what the harness asks; exactly one field is set.
type Request struct {
	// Serve makes the agent a peer's server, Dial its client.
	Serve *Role `json:"serve,omitempty"`
	Dial  *Role `json:"dial,omitempty"`
	// Measure is for a client.
	Measure *Measure `json:"measure,omitempty"`
	// Phases asks what the parts of operations, or of handlers, have taken since
	// the last time, and makes them be measured from now on.
	Phases bool `json:"phases,omitempty"`
}

// Role is what an agent is.
type Role struct {
	Peer string    `json:"peer"`
	Site peer.Site `json:"site"`
}

// Measure asks for operations to be repeated by a number of callers at once.
type Measure struct {
	Work    peer.Work     `json:"work"`
	Callers int           `json:"callers"`
	Warmup  time.Duration `json:"warmup"`
	For     time.Duration `json:"for"`
	// Max is how many operations each caller does at most; 0 means no limit.
	Max int `json:"max,omitempty"`
	// Phases has the parts of operations measured, too.
	Phases bool `json:"phases,omitempty"`
}

// Answer is what the agent says: an error, or what was asked for.
type Answer struct {
	Error  string                    `json:"error,omitempty"`
	Result *stats.Summary            `json:"result,omitempty"`
	Phases map[peer.Phase]peer.Total `json:"phases,omitempty"`
}
