package control

import (
	"encoding/hex"
	"fmt"
	"net/netip"
)

// MaxExecutions is how many runs a Commit, a Rollback or an ExecutionList names at most:
// some 750 kB of JSON.
const MaxExecutions = 4096

// MaxRegions is how many regions a Reclaim, a RegionList or a Fenced names at most:
// some 700 kB of JSON.
const MaxRegions = 4096

// ExecutionID is an execution's id as rpc/rpcpacket.ID has it; in JSON it is
// hexadecimal. Zero is none.
type ExecutionID [16]byte

// Run names one run of an execution: the run whose changes a command is about. A memory
// blade that has changes of a later run refuses the command, so a command that was
// delayed cannot destroy or reveal what a later run has done.
type Run struct {
	Execution ExecutionID `json:"execution"`
	// Node and Incarnation are who runs the execution, or ran it.
	Node        netip.Addr `json:"node"`
	Incarnation uint32     `json:"incarnation"`
	// Main and Checkpoint are of a durable main, which several runs of one incarnation
	// may execute, each with several commits. Main tells these runs apart; a later run
	// has a higher number, and 0 means that the execution is a call's. Checkpoint is, in
	// a Commit, the checkpoint that commits all changes before it, and in a Rollback the
	// one after which all changes are taken back.
	Main       uint64 `json:"main,omitempty"`
	Checkpoint uint32 `json:"checkpoint,omitempty"`
}

// Commit makes what runs of executions have done to a memory blade's regions final:
// copies of old content go, regions that they freed are freed. A run of which the blade
// knows nothing is no error, so the command may be repeated. Settled answers it.
//
// It is given when the execution's outcome has been logged, and before control of
// any region leaves it. Its node must not have requests on its behalf under way:
// see dsmclient.Client.Finish.
type Commit struct {
	// Boot is the start of the daemon that the command is for (Hello.Boot). Another
	// start refuses it as Stale.
	Boot uint64 `json:"boot"`
	Runs []Run  `json:"runs"`
}

// Rollback takes back what runs of executions have done to a memory blade's regions: old
// content comes back, frees are forgotten, and regions that they allocated are zero
// again and wait for the next run, whose allocations find them. Changes of earlier
// incarnations of the same node are taken back, too. A run of which the blade knows
// nothing is no error, so the command may be repeated. Settled answers it.
//
// It is given after the incarnation that ran them has been fenced, and before
// another one runs them.
type Rollback struct {
	Boot uint64 `json:"boot"` // as for Commit
	Runs []Run  `json:"runs"`
}

// Settled answers Commit and Rollback. The other runs of the command are settled.
type Settled struct {
	// Refused are the runs that do not count any more: the blade has changes of another
	// run of the execution, or has obeyed a later command about it.
	Refused []Run `json:"refused,omitempty"`
}

// Executions asks for the executions that a memory blade has something of to
// commit or to roll back, from an id on, some at a time.
type Executions struct {
	From ExecutionID `json:"from,omitzero"`
	Max  int         `json:"max,omitempty"` // 0: as many as fit
}

// ExecutionList is a part of them in the order of their ids, each with the latest run
// that the blade knows of; Next is zero at the end.
type ExecutionList struct {
	Runs []Run       `json:"runs"`
	Next ExecutionID `json:"next,omitzero"`
}

// String returns the id in hexadecimal.
func (e ExecutionID) String() string { return hex.EncodeToString(e[:]) }

// MarshalText implements encoding.TextMarshaler.
func (e ExecutionID) MarshalText() ([]byte, error) { return hex.AppendEncode(nil, e[:]), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (e *ExecutionID) UnmarshalText(b []byte) error {
	if len(b) != hex.EncodedLen(len(e)) {
		return fmt.Errorf("execution id %q: %d digits, want %d", b, len(b), hex.EncodedLen(len(e)))
	}
	if _, err := hex.Decode(e[:], b); err != nil {
		return fmt.Errorf("execution id %q: %w", b, err)
	}
	return nil
}
