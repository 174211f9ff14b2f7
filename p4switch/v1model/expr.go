package v1model

import "math/big"

// Kind is what an expression yields.
type Kind uint8

// The kinds of expressions. Data are integers of unlimited precision, as bmv2
// computes them: the compiler puts masks and casts where a width matters.
const (
	KindData Kind = iota + 1
	KindBool
	KindHeader
	KindStack
	KindUnion
	KindUnionStack
)

func (k Kind) String() string {
	return [...]string{"nothing", "number", "boolean", "header", "header stack", "header union", "header union stack"}[k]
}

// Expr is a node of an expression tree; KindOf tells what it yields.
type Expr interface{ expr() }

// Leaves.
type (
	// Const is a number; it may be negative.
	Const struct{ Value *big.Int }
	// BoolConst is true or false.
	BoolConst struct{ Value bool }
	// FieldValue reads (or, as a destination, writes) a field.
	FieldValue struct{ Ref FieldRef }
	// Param is an action's parameter: an unsigned number of Width bits.
	Param struct{ Index, Width int }
	// Lookahead reads Width bits of the packet, Offset bits ahead of the
	// parser's position.
	Lookahead struct{ Offset, Width int }
	// HeaderValue is a header instance.
	HeaderValue struct{ Header *Header }
	// StackValue is a header stack.
	StackValue struct{ Stack *Stack }
	// UnionValue is a header union.
	UnionValue struct{ Union *Union }
	// UnionStackValue is a stack of header unions.
	UnionStackValue struct{ Stack *UnionStack }
)

// Inner nodes.
type (
	// Unary applies Op to X.
	Unary struct {
		Op Op
		X  Expr
	}
	// Binary applies Op to X and Y.
	Binary struct {
		Op   Op
		X, Y Expr
	}
	// Select is Cond ? Then : Else; both sides are numbers, booleans, or
	// headers of one type.
	Select struct{ Cond, Then, Else Expr }
	// Element is the header or union of a stack at a computed index.
	Element struct{ Stack, Index Expr }
	// Last is the header or union of a stack that was extracted last.
	Last struct{ Stack Expr }
	// Member is the header of a union that has this place in its type.
	Member struct {
		Union  Expr
		Member int
	}
	// FieldOf is a field of a computed header; Field may be ValidField.
	FieldOf struct {
		Header Expr
		Type   *HeaderType
		Field  int
	}
)

func (Const) expr()           {}
func (BoolConst) expr()       {}
func (FieldValue) expr()      {}
func (Param) expr()           {}
func (Lookahead) expr()       {}
func (HeaderValue) expr()     {}
func (StackValue) expr()      {}
func (UnionValue) expr()      {}
func (UnionStackValue) expr() {}
func (Unary) expr()           {}
func (Binary) expr()          {}
func (Select) expr()          {}
func (Element) expr()         {}
func (Last) expr()            {}
func (Member) expr()          {}
func (FieldOf) expr()         {}

// KindOf is what an expression yields.
func KindOf(e Expr) Kind {
	switch e := e.(type) {
	case BoolConst:
		return KindBool
	case HeaderValue, Member:
		return KindHeader
	case StackValue:
		return KindStack
	case UnionValue:
		return KindUnion
	case UnionStackValue:
		return KindUnionStack
	case Unary:
		return unaryOps[e.Op].result
	case Binary:
		return binaryOps[e.Op].result
	case Select:
		return KindOf(e.Then)
	case Element:
		return elementKind(e.Stack)
	case Last:
		return elementKind(e.Stack)
	}
	return KindData
}

func elementKind(stack Expr) Kind {
	if KindOf(stack) == KindUnionStack {
		return KindUnion
	}
	return KindHeader
}

// typeOf is the layout of an expression that yields a header.
func typeOf(e Expr) *HeaderType {
	switch e := e.(type) {
	case HeaderValue:
		return e.Header.Type
	case Element:
		return elementType(e.Stack)
	case Last:
		return elementType(e.Stack)
	case Member:
		return unionTypeOf(e.Union).Members[e.Member].Type
	case Select:
		return typeOf(e.Then)
	}
	return nil
}

func elementType(stack Expr) *HeaderType {
	if s, ok := stack.(StackValue); ok {
		return s.Stack.Type
	}
	return nil
}

// unionTypeOf is the type of an expression that yields a union or a stack of
// unions.
func unionTypeOf(e Expr) *UnionType {
	switch e := e.(type) {
	case UnionValue:
		return e.Union.Type
	case UnionStackValue:
		return e.Stack.Type
	case Element:
		return unionTypeOf(e.Stack)
	case Last:
		return unionTypeOf(e.Stack)
	}
	return nil
}
