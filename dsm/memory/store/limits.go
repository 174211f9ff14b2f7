package store

import "cmp"

// MaxSpan is how far a client's newest request may lie above its floor. Package
// transport keeps to half of it for its operations and leaves the rest to the
// settle requests that move the floor. One record has 32 bytes, so a client
// costs at most 512 KiB.
const MaxSpan = 1 << 14

// Limits bound what a store remembers of its clients, and say what it does at once. A field
// that is 0 stands for its default.
type Limits struct {
	// Records bounds the windows of all clients together: what does not fit is answered
	// Overloaded, and sent again. Default: 2^22, which are 128 MiB.
	Records int
	// Clients bounds the nodes that the store knows, fenced ones included. Past it, the
	// node fenced longest ago is forgotten; the switch has long stopped carrying its
	// packets. Default: 2^18 of some 200 bytes.
	Clients int
	// Marks bounds the durable mains whose last word is remembered. Past it, a word
	// about the oldest one that is late by that much is not recognised by its run, but by
	// its incarnation alone. Default: 2^14 of some 200 bytes.
	Marks int
	// Regions bounds the regions of the machine: each takes some 200 bytes beside its content. Default: 2^20.
	Regions int
	// Undo bounds the bytes that are kept to take executions back; a request beyond it is
	// answered Overloaded, and sent again. Default: what KeepUndo says.
	Undo int
	// Shadow is the smallest region, in bytes, whose second block takes large writes of
	// executions. Default: 64 KiB.
	Shadow int
	// IdleShadows is how many bytes of such blocks are kept for the next execution though
	// none needs them; a single one may be larger. A region that needs the memory gets it.
	// Default: 16 MiB.
	IdleShadows int
	// Zero is how many bytes of a freed region are zeroed at once, at some 100 µs a MiB;
	// more is left to Clean. A page is, in any case: others share it. Default: 256 KiB.
	Zero int
}

// withDefaults fills in what is left out.
func (l Limits) withDefaults() Limits {
	return Limits{
		Records: cmp.Or(l.Records, 1<<22), Clients: cmp.Or(l.Clients, 1<<18), Marks: cmp.Or(l.Marks, 1<<14), Regions: cmp.Or(l.Regions, 1<<20), Undo: l.Undo,
		Shadow: cmp.Or(l.Shadow, 64<<10), IdleShadows: cmp.Or(l.IdleShadows, 16<<20), Zero: cmp.Or(l.Zero, 256<<10),
	}
}

const (
	// minRing is the length of a fresh window's ring.
	minRing = 16

	// Up to zeroAndKeep, freed memory that is zeroed by and by stays: a page that the
	// kernel has to give again costs ten times as much.
	zeroAndKeep = 32 << 20

	pageShift = 12
	pageSize  = 1 << pageShift

	// What the undo of an execution, of a region and of a page is charged with,
	// beside the page's copy: about what they take.
	executionCost = 512
	regionCost    = 256
	pageCost      = 48
	// sparePages is how many free pages are kept to be used again: 4 MiB, two
	// large writes. A page used lately is in the cache, so it costs half as much.
	sparePages = 1 << 10

	// leastWhole is how many whole pages a write must bring to go into a second block: for
	// less, copying costs as little.
	leastWhole = 8
)
