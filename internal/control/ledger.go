package control

import (
	"net/netip"

	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/internal/share"
)

// LedgerName names a ledger within a memory machine: the address of a node, or the hash of
// the name of a durable main. In JSON it is hexadecimal.
type LedgerName [16]byte

// LedgerOf is the name of a node's own ledger.
func LedgerOf(node netip.Addr) LedgerName { return node.As16() }

// String returns the name in hexadecimal.
func (n LedgerName) String() string { return ExecutionID(n).String() }

// MarshalText implements encoding.TextMarshaler.
func (n LedgerName) MarshalText() ([]byte, error) { return ExecutionID(n).MarshalText() }

// UnmarshalText implements encoding.TextUnmarshaler.
func (n *LedgerName) UnmarshalText(b []byte) error { return (*ExecutionID)(n).UnmarshalText(b) }

// Ledger is how a ledger stands at one copy of a memory machine.
type Ledger struct {
	Name LedgerName `json:"name"`
	// Run is the run that opened it last, 0 if none has; Sealed says that it has ended.
	Run    uint32 `json:"run"`
	Sealed bool   `json:"sealed,omitempty"`
	// First and Next bound its chunks: those from First up to, but without, Next are there.
	First uint64 `json:"first"`
	Next  uint64 `json:"next"`
	// Used is how many bytes it takes.
	Used uint64 `json:"used"`
}

// LedgerGrant makes a ledger if there is none, and says which incarnation may open it
// next. LedgerAnswer answers it, and LedgerDelete.
type LedgerGrant struct {
	// Birth is the machine's birth number (Hello.Birth). A machine with another one does
	// not have the ledger that is meant: it refuses the command as NotFound.
	Birth       uint64     `json:"birth"`
	Name        LedgerName `json:"name"`
	Node        netip.Addr `json:"node"`
	Incarnation uint32     `json:"incarnation"`
	// Owner is who is charged for the ledger from now on.
	Owner share.Owner `json:"owner,omitzero"`
}

// LedgerDelete drops a ledger that nobody will ask for any more. One that is not there is
// no error.
type LedgerDelete struct {
	Birth uint64     `json:"birth"` // as in LedgerGrant
	Name  LedgerName `json:"name"`
}

// MaxLedgers is how many ledgers a LedgerList names at most: some 600 kB of JSON.
const MaxLedgers = 4096

// Ledgers asks for the ledgers that a memory blade keeps, from a name on, some at a time.
type Ledgers struct {
	From LedgerName `json:"from,omitzero"`
}

// LedgerList is a part of them in the order of their names; Next is zero at the end.
type LedgerList struct {
	Birth   uint64     `json:"birth"` // of the machine
	Ledgers []Ledger   `json:"ledgers"`
	Next    LedgerName `json:"next,omitzero"`
}

// LedgerAnswer is the ledger after the command. A command that is refused is not to be
// asked for again as it is.
type LedgerAnswer struct {
	Outcome
	Birth  uint64 `json:"birth"`
	Ledger Ledger `json:"ledger"`
}

// LedgerPlace says where a node keeps its ledger.
type LedgerPlace struct {
	Machine uint8  `json:"machine"` // the memory machine
	Birth   uint64 `json:"birth"`   // its birth number when the ledger was granted
	// ByHand says that nobody starts the node's program again, unless a person does. The ledger then stays only if it
	// keeps a state or a main.
	ByHand bool `json:"by_hand,omitempty"`
	// Since is the first incarnation of the node that has this ledger: what earlier ones wrote
	// down is lost.
	Since uint32 `json:"since,omitempty"`
}

// LedgerSpace is what a memory blade's ledgers take.
type LedgerSpace struct {
	// Used and Total are the bytes taken and those that there are for all ledgers, Space
	// those for one.
	Used  uint64 `json:"used"`
	Total uint64 `json:"total"`
	Space uint64 `json:"space"`
	// Count is how many ledgers there are.
	Count int `json:"count"`
	// Refused counts requests and commands about ledgers that were refused.
	Refused uint64 `json:"refused,omitempty"`
	// Birth is as in Hello.
	Birth uint64 `json:"birth"`
}

// LedgerRefused returns the answer to a command about a ledger that cannot be carried out.
func LedgerRefused(birth uint64, name LedgerName, code fault.Code, message string) LedgerAnswer {
	return LedgerAnswer{Outcome: Outcome{Code: code, Message: message}, Birth: birth, Ledger: Ledger{Name: name}}
}
