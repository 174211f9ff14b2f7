package v1model

// Bounds on what a program may declare. They are far above anything p4c
// compiles for a real switch, and keep a hostile file from costing memory that
// its length does not justify.
const (
	// MaxFieldBits bounds a field's width; p4c's own default bound is 2048.
	MaxFieldBits = 1 << 16
	// MaxHeaders bounds the header instances, stack elements included.
	MaxHeaders = 1 << 14
	// MaxCells bounds the cells of one counter, meter or register array.
	MaxCells = 1 << 24
	// MaxRegisterBits bounds the size of one register array.
	MaxRegisterBits = 1 << 31
	// MaxDepth bounds the nesting of an expression.
	MaxDepth = 256
)

// The version of the bmv2 JSON format that is understood.
const (
	formatMajor = 2
	formatMinor = 23
	// Format is the newest one, as simple_switch_grpc --json-version prints it.
	Format = "2.23"
)
