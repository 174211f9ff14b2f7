package dsmpacket

import (
	"encoding/binary"
	"fmt"
	"math"

	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/p4switch/shared/wirefmt"
)

// LedgerOp is what is asked of a ledger: the argument of an OpLedger address.
type LedgerOp uint8

// The ledger operations. What the Gatekeeper asks of ledgers (grant, end, delete, and the
// seal that is part of a fence) are control commands.
const (
	// LedgerOpen makes a run the one that may append. It is answered with the ledger's
	// first and next chunk.
	LedgerOpen LedgerOp = 1
	// LedgerAppend stores one chunk behind its predecessor.
	LedgerAppend LedgerOp = 2
	// LedgerRead asks for one chunk, or for several with More; each is answered with a
	// datagram of its own.
	LedgerRead LedgerOp = 3
	// LedgerCommit makes final what a run of an execution has done to the machine's regions,
	// as the node's ledger says that it is done; LedgerRollback takes it back. Their Ledger is
	// the execution's id, and their Run the incarnation of the node that has made the changes. Of a
	// durable main, Main and Checkpoint say which of its runs, and which checkpoint (control.Run). The answer to a rollback
	// tells what the execution has allocated, for its next run.
	LedgerCommit   LedgerOp = 4
	LedgerRollback LedgerOp = 5

	// LastLedgerOp is the highest operation.
	LastLedgerOp = LedgerRollback
)

// Word reports whether the operation is a node's word about one of its executions.
func (o LedgerOp) Word() bool { return o == LedgerCommit || o == LedgerRollback }

// String returns the operation's name.
func (o LedgerOp) String() string {
	switch o {
	case LedgerOpen:
		return "open"
	case LedgerAppend:
		return "append"
	case LedgerRead:
		return "read"
	case LedgerCommit:
		return "commit"
	case LedgerRollback:
		return "rollback"
	}
	return fmt.Sprintf("ledger op %d", uint8(o))
}

// LedgerAddress is where requests about the ledgers of a machine go.
func LedgerAddress(prefix, machine uint8, op LedgerOp) Pointer {
	return Make(prefix, machine, 0).WithLedger(op)
}

// Flags of the headers of ledger operations.
const (
	// FlagContinues (in an append, and in the answer to a read): the chunk's record goes
	// on in the next chunk.
	FlagContinues uint8 = 1 << 0
	// FlagSealed (in an answer): the ledger's run has ended.
	FlagSealed uint8 = 1 << 1
)

// LedgerRequest is a request about a ledger.
type LedgerRequest struct {
	Op LedgerOp
	// Ledger is the name within the machine: a node's address, or the hash of the name of
	// a durable main; of a commit or rollback the execution's id.
	Ledger [16]byte
	// Run is the run that opens or appends; of a commit or rollback the incarnation whose
	// changes it is about. Incarnation is that of the node that asks.
	Run, Incarnation uint32
	// Main and Checkpoint are of a word about a durable main; see control.Run.
	Main       uint64
	Checkpoint uint32
	// From is, in a rollback, the id from which on the answer is to tell of regions.
	From RegionID
	// Birth is the machine's birth number as the writer knows it, 0 if it does not; a word has none.
	Birth uint64
	// Chunk is what is appended; its Number is what is to be read.
	Chunk Chunk
	// Keep is, in an append, the first chunk that is still needed.
	Keep uint64
	// Size is how many bytes of answers a read asks for at most, and More how many chunks
	// it asks for beside the first.
	Size uint64
	More uint8
}

// Append appends the wire form to b: the header, and behind it a chunk's data.
func (q *LedgerRequest) Append(b []byte) []byte {
	h := Header{
		Kind: Request, Request: q.Chunk.Number, Execution: q.Ledger, Branch: q.Birth, Index: q.Run, Incarnation: q.Incarnation,
	}
	switch q.Op {
	case LedgerAppend:
		h.Floor, h.Length = q.Keep, uint64(len(q.Chunk.Data))
		if q.Chunk.Continues {
			h.Flags = FlagContinues
		}
		return append(h.Append(b), q.Chunk.Data...)
	case LedgerRead:
		h.Length, h.More = q.Size, q.More
	case LedgerCommit, LedgerRollback:
		h.Branch, h.Length, h.Request = q.Main, uint64(q.Checkpoint), uint64(q.From)
	default: // opening a ledger needs no more
	}
	return h.Append(b)
}

// ParseLedgerRequest reads a request that was sent to an address, from its header and
// what stands behind that, which the request aliases. It refuses what is no ledger
// operation, or does not have the length that it says, with an error that wraps
// wirefmt.ErrFormat.
func ParseLedgerRequest(to Pointer, h *Header, data []byte) (LedgerRequest, error) {
	q := LedgerRequest{
		Op: LedgerOp(to.Arg()), Ledger: h.Execution, Run: h.Index, Incarnation: h.Incarnation, Birth: h.Branch,
		Chunk: Chunk{Number: h.Request},
	}
	if to.Op() != OpLedger || h.Kind != Request {
		return q, wirefmt.Errorf("ledger: kind %d, operation %s", h.Kind, to.Op())
	}
	carried := uint64(0)
	switch q.Op {
	case LedgerOpen:
	case LedgerCommit, LedgerRollback:
		if h.Length > math.MaxUint32 {
			return q, wirefmt.Errorf("ledger: %s of checkpoint %d", q.Op, h.Length)
		}
		q.Main, q.Checkpoint, q.From, q.Birth, q.Chunk.Number = h.Branch, uint32(h.Length), RegionID(h.Request), 0, 0
	case LedgerAppend:
		carried, q.Keep = h.Length, h.Floor
		q.Chunk.Continues, q.Chunk.Data = h.Flags&FlagContinues != 0, data
	case LedgerRead:
		q.Size, q.More = h.Length, h.More
	default:
		return q, wirefmt.Errorf("ledger: %s", q.Op)
	}
	if uint64(len(data)) != carried {
		return q, wirefmt.Errorf("ledger: %s of %d bytes carries %d", q.Op, carried, len(data))
	}
	return q, nil
}

// Left is a region that a run of an execution has allocated which was taken back: as which allocation (Header.Branch and Index), under which
// id, and of which size class it is.
type Left struct {
	Branch uint64
	Index  uint32
	ID     RegionID
	Class  uint8
}

// MaxLeft is how many of them one answer has: they fit the smallest packet of IPv6.
const MaxLeft = 48

// leftSize is how many bytes a Left has.
const leftSize = 8 + 4 + 8 + 1

// LedgerAnswer is the answer to a LedgerRequest.
type LedgerAnswer struct {
	Op     LedgerOp
	Ledger [16]byte
	Status fault.Code
	// Birth is the machine's birth number; the answer to a word has none.
	Birth uint64
	// Run is the run that opened the ledger last, and Sealed says that it has ended.
	Run    uint32
	Sealed bool
	// Incarnation is that of the request, and so are Main, Checkpoint and From.
	Incarnation uint32
	Main        uint64
	Checkpoint  uint32
	From        RegionID
	// Left is what the execution's next run may find, from From on, in the order of their ids; of the answer to a rollback. More says that there
	// is more.
	Left []Left
	More bool
	// Chunk is what was read; its Number is that of the request. To an open it is the
	// number of the ledger's first chunk.
	Chunk Chunk
	// Next is the ledger's next chunk: all below it are there.
	Next uint64
	// Room is how many bytes may still be appended, with ChunkCost for each chunk, but for an eighth of the
	// ledger's space.
	Room uint64
	// Space is how many bytes of records a ledger may take. Only the answer to an open that succeeds has it, behind the header.
	Space uint64
	// Mirror is which copy answers.
	Mirror Mirror
}

// Header returns the header of the answer. Data goes behind it.
func (a *LedgerAnswer) Header() Header {
	h := Header{
		Kind: Reply, Status: a.Status, Request: a.Chunk.Number, Execution: a.Ledger, Branch: a.Birth, Index: a.Run,
		Incarnation: a.Incarnation, Length: a.Next, Floor: a.Room, Mirror: a.Mirror,
	}
	if a.Op.Word() {
		h.Branch, h.Length, h.Request = a.Main, uint64(a.Checkpoint), uint64(a.From)
	}
	if a.Sealed {
		h.Flags |= FlagSealed
	}
	if a.Chunk.Continues || a.More {
		h.Flags |= FlagContinues
	}
	return h
}

// spaceSize is how many bytes LedgerAnswer.Space has behind the header.
const spaceSize = 8

// Data is what goes behind the header.
func (a *LedgerAnswer) Data() []byte {
	if a.Op == LedgerOpen && a.Status == fault.OK {
		return binary.BigEndian.AppendUint64(nil, a.Space)
	}
	if a.Op == LedgerRollback {
		b := make([]byte, 0, leftSize*len(a.Left))
		for _, l := range a.Left {
			b = binary.BigEndian.AppendUint64(b, l.Branch)
			b = binary.BigEndian.AppendUint32(b, l.Index)
			b = append(binary.BigEndian.AppendUint64(b, uint64(l.ID)), l.Class)
		}
		return b
	}
	return a.Chunk.Data
}

// parseLeft reads what the answer to a rollback carries.
func (a *LedgerAnswer) parseLeft(data []byte) error {
	if a.Op != LedgerRollback {
		return nil
	}
	if len(data)%leftSize != 0 {
		return wirefmt.Errorf("ledger: the answer to %s carries %d bytes", a.Op, len(data))
	}
	for b := data; len(b) > 0; b = b[leftSize:] {
		a.Left = append(a.Left, Left{
			Branch: binary.BigEndian.Uint64(b), Index: binary.BigEndian.Uint32(b[8:]), ID: RegionID(binary.BigEndian.Uint64(b[12:])), Class: b[20],
		})
	}
	return nil
}

// ParseLedgerAnswer reads the answer that came from an address. It refuses what is no
// answer to a ledger operation with an error that wraps wirefmt.ErrFormat.
func ParseLedgerAnswer(from Pointer, h *Header, data []byte) (LedgerAnswer, error) {
	a := LedgerAnswer{
		Op: LedgerOp(from.Arg()), Ledger: h.Execution, Status: h.Status, Birth: h.Branch, Run: h.Index, Sealed: h.Flags&FlagSealed != 0,
		Incarnation: h.Incarnation, Chunk: Chunk{Number: h.Request, Continues: h.Flags&FlagContinues != 0, Data: data}, Next: h.Length, Room: h.Floor, Mirror: h.Mirror,
	}
	if from.Op() != OpLedger || h.Kind != Reply || a.Op < LedgerOpen || a.Op > LastLedgerOp {
		return a, wirefmt.Errorf("ledger: kind %d, operation %s, argument %d", h.Kind, from.Op(), from.Arg())
	}
	if opened := a.Op == LedgerOpen && a.Status == fault.OK; opened && len(data) == spaceSize {
		a.Space, a.Chunk.Data = binary.BigEndian.Uint64(data), data[:0]
	} else if a.Op != LedgerRead && a.Op != LedgerRollback && len(data) > 0 || opened {
		return a, wirefmt.Errorf("ledger: the answer to %s carries %d bytes", a.Op, len(data))
	}
	if a.Op.Word() {
		if h.Length > math.MaxUint32 {
			return a, wirefmt.Errorf("ledger: the answer to %s of checkpoint %d", a.Op, h.Length)
		}
		a.Main, a.Checkpoint, a.From, a.Birth, a.Next = h.Branch, uint32(h.Length), RegionID(h.Request), 0, 0
		a.More, a.Chunk = a.Chunk.Continues, Chunk{Data: data[:0]}
	}
	return a, a.parseLeft(data)
}
