package v1model

import "math/big"

// Pipeline is a control: an acyclic graph of nodes.
type Pipeline struct {
	Name  string
	Start Node // nil if it does nothing
	// Tables, Conditions and Calls are the graph's nodes.
	Tables     []*Table
	Conditions []*Condition
	Calls      []*Call
}

// Node is a *Table, a *Condition or a *Call.
type Node interface {
	// NodeName is the node's name in the program.
	NodeName() string
}

// Condition chooses the next node; nil ends the pipeline.
type Condition struct {
	Name        string
	Expr        Expr // of KindBool
	True, False Node
	Source      string // the condition as it was written, or empty
}

// Call runs an action without parameters.
type Call struct {
	Name   string
	Action *Action
	Next   Node
}

// NodeName implements Node.
func (t *Table) NodeName() string { return t.Name }

// NodeName implements Node.
func (c *Condition) NodeName() string { return c.Name }

// NodeName implements Node.
func (c *Call) NodeName() string { return c.Name }

// MatchKind is how a key field is matched.
type MatchKind uint8

// The match kinds. P4's optional is a MatchTernary here, as p4c writes it.
const (
	MatchExact MatchKind = iota + 1
	MatchLPM
	MatchTernary
	MatchRange
)

// Key is one field of a table's key. In a header that is not valid it is zero.
type Key struct {
	Name  string
	Field FieldRef
	Kind  MatchKind
	// Mask, if not nil, is a constant that the field is masked with first.
	Mask []byte
}

// Table is a match-action table.
type Table struct {
	Name  string
	Index int // in Program.Tables
	Key   []Key
	// Kind decides between several matching entries: MatchExact (there is but
	// one), MatchLPM (the longest), or MatchTernary and MatchRange (priority).
	Kind    MatchKind
	MaxSize int
	Actions []*Action
	// Profile, if not nil, holds the actions instead of the entries.
	Profile *ActionProfile
	// Counters: every entry counts. Timeout: entries may ask for an idle
	// timeout.
	Counters, Timeout bool
	Meter             *Meter // direct, or nil

	// Default is the program's own default action, or nil for none.
	Default *ActionCall
	// ConstAction: the default's action, ConstEntry: also its arguments are
	// the program's to choose.
	ConstAction, ConstEntry bool
	// Entries are the program's entries; Const: nobody may change them.
	Entries []Entry
	Const   bool

	// Where to go: by hit or miss if ByHit, else by action (Next is parallel to
	// Actions), or to BaseNext if no action ran.
	ByHit     bool
	Hit, Miss Node
	Next      []Node
	BaseNext  Node
}

// IsCall tells whether the table is but a call of its default action: without a key, and with nothing that a controller may write or read. Executors run it
// as a call, and traces tell of it as one.
func (t *Table) IsCall() bool {
	return len(t.Key) == 0 && t.ConstEntry && t.Profile == nil && !t.Counters && t.Meter == nil
}

// Action finds the place in Actions of an action by name, or false.
func (t *Table) Action(name string) (int, bool) {
	for i, a := range t.Actions {
		if a.Name == name {
			return i, true
		}
	}
	return 0, false
}

// EntryPriority is the priority of one of the program's entries as P4Runtime
// counts, where the highest wins: the last entry's is 1. It is 0 in tables
// without priorities.
func (t *Table) EntryPriority(i int) int32 {
	if t.Kind != MatchTernary && t.Kind != MatchRange {
		return 0
	}
	last := 0
	for _, e := range t.Entries {
		last = max(last, e.Priority)
	}
	return int32(last + 1 - t.Entries[i].Priority)
}

// Entry is one of a program's own entries.
type Entry struct {
	Match []Match // parallel to the table's key
	// Priority: the lowest wins. Only for ternary and range tables.
	Priority int
	Call     ActionCall
}

// Match is what an entry wants of one key field. Value, Mask and High are
// as many bytes long as the field is wide.
type Match struct {
	Value     []byte // exact, LPM, ternary; range: the low end
	Mask      []byte // ternary
	High      []byte // range
	PrefixLen int    // LPM
}

// Action is an action.
type Action struct {
	Name   string
	Index  int // in Program.Actions; several may have the same name
	Params []ActionParam
	Body   []Stmt
	// Registers are those that the body touches; it does so atomically.
	Registers []*Register
}

// ActionParam is a parameter of an action.
type ActionParam struct {
	Name  string
	Width int // in bits
}

// ActionCall is an action with arguments, each within its parameter's width.
type ActionCall struct {
	Action *Action
	Args   []*big.Int
}

// ActionProfile holds actions that the entries of its tables refer to.
type ActionProfile struct {
	Name    string
	Index   int // in Program.Profiles
	MaxSize int
	// Selector, if not nil, chooses a group's member by hash.
	Selector *Calculation
	// Tables are those that use the profile.
	Tables []*Table
}
