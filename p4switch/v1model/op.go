package v1model

// Op is an operator of an expression.
type Op uint8

// The operators. Arithmetic is exact; comparisons are of numbers, except
// OpEqual and OpNotEqual, which also compare booleans, headers (valid on both
// sides and equal) and unions.
const (
	OpAdd Op = iota + 1
	OpSub
	OpMul
	OpDiv
	OpMod
	OpShl
	OpShr
	OpAnd
	OpOr
	OpXor
	OpNot // ~x
	OpNeg // -x

	OpEqual
	OpNotEqual
	OpLess
	OpLessEqual
	OpGreater
	OpGreaterEqual

	OpLogicalAnd
	OpLogicalOr
	OpLogicalNot

	// OpWrap reads X's low bits as a two's complement number of Y bits.
	OpWrap
	// OpSaturate and OpSaturateUnsigned bring X to the nearest number that Y
	// bits can hold.
	OpSaturate
	OpSaturateUnsigned

	OpToBool // number to boolean
	OpToData // boolean to number
	// OpValid tells whether a header or union is valid.
	OpValid
	// OpLastIndex and OpSize are of a stack: size is how many headers are in
	// it, the last index one less.
	OpLastIndex
	OpSize
)

// signature is what an operator takes and yields. An operand of kind 0 is
// checked by the loader itself.
type signature struct {
	operand, result Kind
}

var unaryOps = map[Op]signature{
	OpNot: {KindData, KindData}, OpNeg: {KindData, KindData},
	OpLogicalNot: {KindBool, KindBool},
	OpToBool:     {KindData, KindBool}, OpToData: {KindBool, KindData},
	OpValid: {0, KindBool}, OpLastIndex: {0, KindData}, OpSize: {0, KindData},
}

var binaryOps = map[Op]signature{
	OpAdd: {KindData, KindData}, OpSub: {KindData, KindData}, OpMul: {KindData, KindData},
	OpDiv: {KindData, KindData}, OpMod: {KindData, KindData},
	OpShl: {KindData, KindData}, OpShr: {KindData, KindData},
	OpAnd: {KindData, KindData}, OpOr: {KindData, KindData}, OpXor: {KindData, KindData},
	OpEqual: {0, KindBool}, OpNotEqual: {0, KindBool},
	OpLess: {KindData, KindBool}, OpLessEqual: {KindData, KindBool},
	OpGreater: {KindData, KindBool}, OpGreaterEqual: {KindData, KindBool},
	OpLogicalAnd: {KindBool, KindBool}, OpLogicalOr: {KindBool, KindBool},
	OpWrap: {KindData, KindData}, OpSaturate: {KindData, KindData}, OpSaturateUnsigned: {KindData, KindData},
}

// The operators' names in the JSON.
var unaryNames = map[string]Op{
	"~": OpNot, "-": OpNeg, "not": OpLogicalNot, "d2b": OpToBool, "b2d": OpToData,
	"valid": OpValid, "valid_union": OpValid,
	"last_stack_index": OpLastIndex, "size_stack": OpSize,
}

var binaryNames = map[string]Op{
	"+": OpAdd, "-": OpSub, "*": OpMul, "/": OpDiv, "%": OpMod, "<<": OpShl, ">>": OpShr,
	"&": OpAnd, "|": OpOr, "^": OpXor,
	"==": OpEqual, "!=": OpNotEqual, "<": OpLess, "<=": OpLessEqual, ">": OpGreater, ">=": OpGreaterEqual,
	"and": OpLogicalAnd, "or": OpLogicalOr,
	"two_comp_mod": OpWrap, "sat_cast": OpSaturate, "usat_cast": OpSaturateUnsigned,
}
