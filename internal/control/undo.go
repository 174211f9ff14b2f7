package control

import (
	"encoding/hex"
	"fmt"
	"net/netip"
)

// MaxRegions is how many regions a Reclaim, a RegionList or a Fenced names at most:
// some 700 kB of JSON.
const MaxRegions = 4096

// ExecutionID is an execution's id as rpc/rpcpacket.ID has it; in JSON it is
// hexadecimal. Zero is none.
type ExecutionID [16]byte

// Run names one run of an execution: the run whose changes a node has a memory machine commit or take
// back. A machine that has changes of a later run refuses that, so that a late copy
// cannot destroy or reveal what a later run has done.
type Run struct {
	Execution ExecutionID
	// Node and Incarnation are who runs the execution, or ran it.
	Node        netip.Addr
	Incarnation uint32
	// Main and Checkpoint are of a durable main, which several runs of one incarnation
	// may execute, each with several commits. Main tells these runs apart; a later run
	// has a higher number, and 0 means that the execution is a call's. Checkpoint is, of
	// a commit, the checkpoint that commits all changes before it, and of a rollback the
	// one after which all changes are taken back.
	Main       uint64
	Checkpoint uint32
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
