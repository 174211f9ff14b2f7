package v1model

// Parser is a graph of states. It may loop (over a header stack, say), and an
// executor must bound how often.
type Parser struct {
	Name   string
	Start  *State // nil if the parser does nothing
	States []*State
}

// State is one parser state: statements, then a choice by a key.
type State struct {
	Name  string
	Index int // in Parser.States
	Body  []Stmt
	// Key's parts are numbers of fixed width: FieldValue, FieldOf or Lookahead.
	Key []KeyPart
	// Cases are tried in order.
	Cases []Case
	// Default comes if no case matches; nil accepts.
	Default *State
}

// KeyPart is a part of a state's key.
type KeyPart struct {
	Value Expr
	Width int // in bits
}

// Case is a transition. Without a Set it matches if every part of the key,
// masked, equals the value; with one, if the key is in the set.
type Case struct {
	// Values and Masks have one entry for each part of the key, as many bytes
	// long as the part is wide. Masks is nil to match exactly.
	Values, Masks [][]byte
	Set           *ValueSet
	Next          *State // nil accepts
}

// Deparser emits headers in order, those that are valid, and then the payload.
type Deparser struct {
	Name string
	// Body runs before.
	Body  []Stmt
	Order []*Header
}
