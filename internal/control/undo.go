package control

import (
	"encoding/hex"
	"fmt"
)

// MaxExecutions is how many executions a Commit, a Rollback or an ExecutionList names
// at most: some 350 kB of JSON.
const MaxExecutions = 10_000

// MaxRegions is how many regions a Reclaim, a RegionList or a Fenced names at most:
// some 600 kB of JSON.
const MaxRegions = 4096

// ExecutionID is an execution's id as rpc/packet.ID has it; in JSON it is
// hexadecimal. Zero is none.
type ExecutionID [16]byte

// Commit makes what executions have done to a memory blade's regions final:
// copies of old content go, regions that they freed are freed. An execution of
// which the blade knows nothing is no error, so the command may be repeated.
//
// It is given when the execution's outcome has been logged, and before control of
// any region leaves it. Its node must not have requests on its behalf under way:
// see dsm.Client.Finish.
type Commit struct {
	Executions []ExecutionID `json:"executions"`
}

// Rollback takes back what executions have done to a memory blade's regions: old
// content comes back, frees are forgotten, and regions that they allocated are
// zero again and wait for the re-run, whose allocations find them. An execution
// of which the blade knows nothing is no error, so the command may be repeated.
//
// It is given after the incarnation that ran them has been fenced, and before
// another one runs them.
type Rollback struct {
	Executions []ExecutionID `json:"executions"`
}

// Executions asks for the executions that a memory blade has something of to
// commit or to roll back, from an id on, some at a time.
type Executions struct {
	From ExecutionID `json:"from,omitzero"`
	Max  int         `json:"max,omitempty"` // 0: as many as fit
}

// ExecutionList is a part of them in the order of their ids; Next is zero at the
// end.
type ExecutionList struct {
	Executions []ExecutionID `json:"executions"`
	Next       ExecutionID   `json:"next,omitzero"`
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
