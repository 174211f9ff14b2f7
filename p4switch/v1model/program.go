package v1model

// Program is a compiled P4 program, resolved and checked.
type Program struct {
	// Source is the file that was compiled, as the compiler recorded it.
	Source string

	HeaderTypes []*HeaderType
	Headers     []*Header
	Stacks      []*Stack
	UnionTypes  []*UnionType
	Unions      []*Union
	UnionStacks []*UnionStack

	// Errors are the program's error codes, the core library's included.
	Errors []NamedCode
	Enums  []Enum

	Parser    *Parser
	Deparser  *Deparser
	Ingress   *Pipeline
	Egress    *Pipeline
	ValueSets []*ValueSet

	Actions      []*Action
	Tables       []*Table
	Profiles     []*ActionProfile
	Calculations []*Calculation
	Checksums    []*Checksum
	Counters     []*Counter
	Meters       []*Meter
	Registers    []*Register
	Digests      []*Digest
	FieldLists   []*FieldList

	// Std are the fields that the architecture itself reads and writes.
	Std StandardMetadata
}

// StandardMetadata are the architecture's fields, found by their names or, as
// p4c compiles them, by alias. Fields that the program lacks are not Valid, the
// first five excepted.
type StandardMetadata struct {
	IngressPort, EgressSpec, EgressPort FieldRef
	InstanceType, PacketLength          FieldRef

	ParserError, ChecksumError          FieldRef
	MulticastGroup, EgressRID           FieldRef
	IngressTimestamp, EgressTimestamp   FieldRef
	EnqueueTimestamp, EnqueueDepth      FieldRef
	DequeueTimeDelta, DequeueDepth, QID FieldRef
}

// Uses tells whether the program itself refers to a field, by name or through its
// whole header; to extract and emit a header is not to use it. Metadata that is not
// used need not be kept up to date. Elements of stacks and members of unions may be
// used under those names instead.
func (p *Program) Uses(r FieldRef) bool {
	return r.Valid() && r.Field != ValidField && r.Header.used[r.Field]
}

// UsesQueues tells whether the program itself refers to how many packets wait at a port, as Uses has it.
func (p *Program) UsesQueues() bool { return p.Uses(p.Std.EnqueueDepth) || p.Uses(p.Std.DequeueDepth) }

// ErrorCode is the code of an error by name, or false.
func (p *Program) ErrorCode(name string) (int, bool) {
	for _, e := range p.Errors {
		if e.Name == name {
			return e.Code, true
		}
	}
	return 0, false
}

// ErrorName is the name of an error code, or "".
func (p *Program) ErrorName(code int) string {
	for _, e := range p.Errors {
		if e.Code == code {
			return e.Name
		}
	}
	return ""
}

// Table returns a table by its name, or nil.
func (p *Program) Table(name string) *Table {
	for _, t := range p.Tables {
		if t.Name == name {
			return t
		}
	}
	return nil
}
