// Package p4 holds Bifröst's data plane: bifrost.p4, and what p4c made of it,
// which any v1model target takes through P4Runtime (bmv2's simple_switch_grpc,
// or the project's own software switch, module p4switch).
// `make p4` recompiles; bifrost.stamp ties the compiled files to their source.
package p4

import (
	_ "embed"
	"encoding/binary"
)

// CPUPort is the switch port behind which the Gatekeeper sits; bifrost.p4
// names the same number.
const CPUPort = 510

// JSON is the compiled program: P4Runtime's device config for v1model targets.
//
//go:embed bifrost.json
var JSON []byte

// Info is the program's P4Info in protobuf text format.
//
//go:embed bifrost.p4info.txt
var Info []byte

// source is bifrost.p4, rightsSource and rightsHeaders what it includes.
var (
	//go:embed bifrost.p4
	source []byte
	//go:embed rights.p4
	rightsSource []byte
	//go:embed rights_headers.p4
	rightsHeaders []byte
)

//go:embed bifrost.stamp
var stamp []byte

// Sender is what a source is that identity knows: enum Sender of rights_headers.p4.
type Sender uint8

// The senders. A node has a row if the switch judges its rights, else 0.
const (
	Node Sender = iota + 1
	Daemon
	MemoryServer
)

// Known are the parameters of an entry of the table identity, as wide as they are there: who lives there, its row (12 bits), and its
// incarnation or boot.
func Known(s Sender, row uint16, incarnation uint32) [][]byte {
	be := binary.BigEndian
	return [][]byte{{byte(s)}, be.AppendUint16(nil, row), be.AppendUint32(nil, incarnation)}
}

// Verdict is what became of a packet: enum Verdict of bifrost.p4.
type Verdict uint8

// The verdicts.
const (
	Forwarded   Verdict = iota
	Held                // for the Gatekeeper
	Denied              // no permission: answered with a NACK
	NoIdentity          // the source does not live at this port
	NoRoute             // nobody has the destination
	Malformed           // truncated, or wrong magic, version, type or operation
	Forged              // speaks in the Gatekeeper's name, or from a port that is not its protocol's
	Unsupported         // not IPv6, or an extension header that could hide one
	HopLimit            // went around too often
	Unlisted            // TCP between ports that may not have it
	Late                // late, or of another call than the slot's
	Lent                // what it wants is lent: turned around, to be sent again
	Gone                // its destination is gone: turned around
)

// verdictBits is how many low bits of the index of the counter verdicts are a verdict.
const verdictBits = 4

var verdictNames = [1 << verdictBits]string{
	"forwarded", "held", "denied", "no identity", "no route", "malformed", "forged", "unsupported", "hop limit", "unlisted TCP",
	"late", "lent", "gone", "13", "14", "15",
}

// String returns the verdict as people read it, like "no identity".
func (v Verdict) String() string { return verdictNames[v&(1<<verdictBits-1)] }

// Dropped tells whether a packet with this verdict goes nowhere, and nobody is told.
func (v Verdict) Dropped() bool { return v > Denied && v != Lent && v != Gone }

// Cell is the index in the counter verdicts for packets that came in by a port.
func (v Verdict) Cell(port uint16) int { return int(port)<<verdictBits | int(v) }

// VerdictOf tells which port and verdict a cell of the counter verdicts is for.
func VerdictOf(cell int64) (port uint16, v Verdict) {
	return uint16(cell >> verdictBits), Verdict(cell & (1<<verdictBits - 1)) //nolint:gosec // 9 bits and 4
}
