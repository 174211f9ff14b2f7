package p4info

import (
	"sync/atomic"

	configv1 "github.com/p4lang/p4runtime/go/p4/config/v1"
)

// Kind is how a key field matches.
type Kind uint8

// The match kinds of P4Runtime.
const (
	Exact Kind = iota + 1
	LPM
	Ternary
	Range
	Optional
)

// Scope says where a table may use an action.
type Scope = configv1.ActionRef_Scope

// Object is what all P4 objects have: their id and fully qualified name.
type Object struct {
	ID   uint32
	Name string
}

// Field is one field of a table's key or of a value set.
type Field struct {
	ID    uint32
	Name  string
	Width int // bits; 0 if only the program tells
	Kind  Kind
	// Strings is the type if it is translated to strings, else nil.
	Strings *Strings
}

// Param is a parameter of an action.
type Param struct {
	ID    uint32
	Name  string
	Width int // bits; 0 if only the program tells
	// Strings is the type if it is translated to strings, else nil.
	Strings *Strings
}

// Action is an action with its parameters in declaration order.
type Action struct {
	Object
	Params []Param
}

// Table is a match-action table.
type Table struct {
	Object
	Fields []Field
	// Actions maps the ids of the actions that the table may use to where.
	Actions map[uint32]Scope
	// ConstDefault is the id of a default action that cannot be changed, or 0.
	ConstDefault uint32
	// InitialDefault is the program's default action as P4Info tells it, or nil.
	InitialDefault *configv1.TableActionCall
	// Profile is the action profile or selector that holds the actions, or nil.
	Profile *Profile
	// Counter and Meter are the direct resources, or nil.
	Counter *Counter
	Meter   *Meter
	// Size is the number of entries to be supported; 0 if the program leaves it open.
	Size int64
	// NotifyIdle is set if the table supports idle timeouts.
	NotifyIdle bool
	// Const is set if the program fixes the entries.
	Const bool
	// NeedsPriority is set if a field is ternary, range or optional.
	NeedsPriority bool
}

// Profile is an action profile, or a selector if Selector is set.
type Profile struct {
	Object
	Tables          []uint32
	Selector        bool
	Size            int64
	MaxGroupSize    int32
	SumOfMembers    bool  // Size and MaxGroupSize count members, not weights
	MaxMemberWeight int32 // only with SumOfMembers; 0 is no limit
	NoWeights       bool
}

// Counter is an indirect counter array, or a direct counter with Size 0.
type Counter struct {
	Object
	Size int64
}

// MeterType restricts a meter's configuration.
type MeterType = configv1.MeterSpec_Type

// Meter is an indirect meter array, or a direct meter with Size 0.
type Meter struct {
	Object
	Size int64
	Type MeterType
}

// Register is a register array of cells of one type.
type Register struct {
	Object
	Size int64
	Cell *Type
}

// ValueSet is a parser value set.
type ValueSet struct {
	Object
	Fields []Field
	Size   int32
}

// Digest is a digest with the type of its samples.
type Digest struct {
	Object
	Sample *Type
}

// Info is a whole program. The maps are keyed by id; the slices are in P4Info's
// order, which is what wildcard reads follow.
type Info struct {
	Tables    map[uint32]*Table
	Actions   map[uint32]*Action
	Profiles  map[uint32]*Profile
	Counters  map[uint32]*Counter
	Meters    map[uint32]*Meter
	Registers map[uint32]*Register
	ValueSets map[uint32]*ValueSet
	Digests   map[uint32]*Digest

	TableOrder    []*Table
	ProfileOrder  []*Profile
	CounterOrder  []*Counter
	MeterOrder    []*Meter
	RegisterOrder []*Register
	ValueSetOrder []*ValueSet
	DigestOrder   []*Digest

	// PacketIn and PacketOut are the controller headers; a program without one
	// has a header without fields there.
	PacketIn, PacketOut *Header

	names       map[uint32]string
	tableNames  map[string]*Table
	actionNames map[string]*Action
	digestNames map[string]*Digest

	strings map[string]*Strings // by the type's name
	turn    atomic.Uint64       // counts Updates
}

// Name is the fully qualified name of the object with an id; "" if there is none.
func (in *Info) Name(id uint32) string { return in.names[id] }

// Each calls f for every object, in no particular order.
func (in *Info) Each(f func(id uint32, name string)) {
	for id, name := range in.names {
		f(id, name)
	}
}

// TableByName finds a table by its fully qualified name; nil if there is none.
func (in *Info) TableByName(name string) *Table { return in.tableNames[name] }

// DigestByName finds a digest by its name; nil if there is none.
func (in *Info) DigestByName(name string) *Digest { return in.digestNames[name] }
