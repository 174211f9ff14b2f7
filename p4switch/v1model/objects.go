package v1model

import "slices"

// Counter is an array of counters; each counts packets and bytes. A direct
// counter has one for every entry of its table and no cells.
type Counter struct {
	Name   string
	Index  int // in Program.Counters
	Size   int
	Direct bool
}

// Meter is an array of two-rate three-colour meters (RFC 2698). A direct meter
// has one for every entry of its table, and writes the colour to Result when an
// entry is hit.
type Meter struct {
	Name   string
	Index  int // in Program.Meters
	Size   int
	Bytes  bool // meters bytes, not packets
	Direct bool
	Result FieldRef
}

// Register is an array of unsigned numbers of Width bits.
type Register struct {
	Name  string
	Index int // in Program.Registers
	Size  int
	Width int
}

// SameRegisters reports whether two programs have the same registers, by name, size and width, in the same order.
func SameRegisters(a, b []*Register) bool {
	return slices.EqualFunc(a, b, func(x, y *Register) bool { return *x == *y })
}

// Algorithm is a hash or checksum.
type Algorithm uint8

// The algorithms of v1model. The custom ones have, like bmv2's, the parameters
// of the plain ones until somebody changes them.
const (
	HashCRC16 Algorithm = iota + 1
	HashCRC32
	HashCRC16Custom
	HashCRC32Custom
	HashCSum16
	HashXor16
	HashIdentity
	HashRandom
)

var algorithms = map[string]Algorithm{
	"crc16": HashCRC16, "crc32": HashCRC32,
	"crc16_custom": HashCRC16Custom, "crc32_custom": HashCRC32Custom,
	"csum16": HashCSum16, "xor16": HashXor16, "identity": HashIdentity, "random": HashRandom,
}

// Calculation is an algorithm over parts of a packet, concatenated bit by bit.
// Parts in headers that are not valid are left out.
type Calculation struct {
	Name      string
	Index     int // in Program.Calculations
	Algorithm Algorithm
	Input     []Input
	// Payload adds what the parser left unparsed.
	Payload bool
}

// Input is a field, a whole header, or a constant.
type Input struct {
	Field  FieldRef
	Header *Header
	Const  []byte // right-aligned
	Bits   int    // of Const
}

// Checksum is verified after parsing or updated before deparsing.
type Checksum struct {
	Name        string
	Target      FieldRef
	Calculation *Calculation
	Verify      bool
	Update      bool
	// Cond, if not nil, must hold for the checksum to be looked at.
	Cond Expr
}

// Digest is a list of values sent to the control plane.
type Digest struct {
	Name     string
	ID       int
	Elements []Input
}

// FieldList is metadata that a clone, resubmitted or recirculated packet keeps.
type FieldList struct {
	Name   string
	ID     int
	Fields []FieldRef
}

// ValueSet is a parser value set, filled at run time.
type ValueSet struct {
	Name  string
	Index int // in Program.ValueSets
	Width int // in bits, of all its fields
	Size  int
}

// NamedCode is an error or an enum's entry.
type NamedCode struct {
	Name string
	Code int
}

// Enum is an enum of the program.
type Enum struct {
	Name    string
	Entries []NamedCode
}
