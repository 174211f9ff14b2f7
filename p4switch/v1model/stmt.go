package v1model

// Stmt is a statement of an action, a parser state or the deparser.
type Stmt interface{ stmt() }

// Statements on fields and headers.
type (
	// Assign writes a number to a field, wrapped to its width.
	Assign struct{ Dst, Src Expr }
	// AssignVarbit copies a variable-length field with its length.
	AssignVarbit struct{ Dst, Src Expr }
	// Copy copies a header, union, stack or stack of unions, validity included.
	Copy struct{ Dst, Src Expr }
	// SetValid makes a header valid, its fields zero if it was not, or invalid.
	SetValid struct {
		Header Expr
		Valid  bool
	}
	// Push makes Count invalid elements at a stack's front, dropping what falls
	// out at its end.
	Push struct{ Stack, Count Expr }
	// Pop removes Count elements from a stack's front.
	Pop struct{ Stack, Count Expr }
)

// Statements on the program's objects.
type (
	// CountPacket counts the packet in a counter's cell.
	CountPacket struct {
		Counter *Counter
		Index   Expr
	}
	// ExecuteMeter meters the packet and writes the colour: 0 green, 1 yellow,
	// 2 red.
	ExecuteMeter struct {
		Meter      *Meter
		Index, Dst Expr
	}
	// ReadRegister reads a register's cell.
	ReadRegister struct {
		Register   *Register
		Index, Dst Expr
	}
	// WriteRegister writes a register's cell, wrapped to its width.
	WriteRegister struct {
		Register     *Register
		Index, Value Expr
	}
	// Hash writes Base + hash % Max, or Base if Max is 0.
	Hash struct {
		Calculation    *Calculation
		Dst, Base, Max Expr
	}
	// Random writes a random number of Low to High, both inclusive.
	Random struct{ Dst, Low, High Expr }
)

// Statements on the packet's fate. Of each kind the last one executed counts.
type (
	// Drop marks the packet to be dropped, in standard metadata or in a copy of
	// it: Spec becomes the drop port, and Group, if Valid, 0.
	Drop struct{ Spec, Group FieldRef }
	// SendDigest sends a digest when ingress ends.
	SendDigest struct{ Digest *Digest }
	// Clone clones the packet when the pipeline that it is called in ends.
	Clone struct {
		Session Expr
		Fields  *FieldList
	}
	// Resubmit sends the packet, as it came, to the parser again.
	Resubmit struct{ Fields *FieldList }
	// Recirculate sends the packet, as it leaves, to the parser again.
	Recirculate struct{ Fields *FieldList }
	// Truncate bounds the packet's length in bytes.
	Truncate struct{ Length Expr }
	// Exit ends the pipeline after this action.
	Exit struct{}
)

// Statements of control and debugging.
type (
	// Jump goes to a statement of the action; a target of len(Body) ends it. A
	// jump back makes a loop, which need not end.
	Jump struct{ Target int }
	// JumpIfZero jumps if Cond is 0.
	JumpIfZero struct {
		Cond   Expr
		Target int
	}
	// Assert is an assertion or assumption of the program; Text is its source.
	Assert struct {
		Cond Expr
		Text string
	}
	// Log writes a message; each {} in Format stands for one of Args.
	Log struct {
		Format string
		Args   []Expr
	}
)

// Statements of the parser.
type (
	// Extract fills a header from the packet and makes it valid. Next is set
	// instead of Header to extract to the next element of a stack; for a stack
	// of unions Member says to which of the union's headers.
	Extract struct {
		Header *Header
		Next   Expr
		Member int
		// VarbitBits is the length of the variable-length field in bits, or nil
		// if the header has none.
		VarbitBits Expr
	}
	// Verify ends the parser with an error code unless Cond holds.
	Verify struct{ Cond, Code Expr }
	// Advance skips bits of the packet.
	Advance struct{ Bits Expr }
)

func (Assign) stmt()        {}
func (AssignVarbit) stmt()  {}
func (Copy) stmt()          {}
func (SetValid) stmt()      {}
func (Push) stmt()          {}
func (Pop) stmt()           {}
func (CountPacket) stmt()   {}
func (ExecuteMeter) stmt()  {}
func (ReadRegister) stmt()  {}
func (WriteRegister) stmt() {}
func (Hash) stmt()          {}
func (Random) stmt()        {}
func (Drop) stmt()          {}
func (SendDigest) stmt()    {}
func (Clone) stmt()         {}
func (Resubmit) stmt()      {}
func (Recirculate) stmt()   {}
func (Truncate) stmt()      {}
func (Exit) stmt()          {}
func (Jump) stmt()          {}
func (JumpIfZero) stmt()    {}
func (Assert) stmt()        {}
func (Log) stmt()           {}
func (Extract) stmt()       {}
func (Verify) stmt()        {}
func (Advance) stmt()       {}

// JumpTarget is where a statement may jump to; ok is false if it does not jump.
func JumpTarget(s Stmt) (to int, ok bool) {
	switch s := s.(type) {
	case Jump:
		return s.Target, true
	case JumpIfZero:
		return s.Target, true
	}
	return 0, false
}
