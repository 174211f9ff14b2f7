// Package pool keeps a node's freed regions for its next allocations: an allocation
// and a free are a round trip each, reusing a region waits for nobody. It is
// a pure core: no I/O, no lock, no clock.
//
//	       Fresh, Came                  Free
//	blade ────────────▶ held by program ─────▶ idle ──Trim──▶ blade
//	                      │     ▲  ▲             │
//	           Lend, Back │     │  └────Take─────┘
//	                      ▼     │
//	                     out ───┘        Gone ──▶ forgotten
//
// The node owns a region all the time, so nothing changes in the switch
// and nobody else can reach it. What the pool may keep is therefore what the
// node surely controls alone: a region that it has allocated itself, on behalf of no
// execution, that no operation is under way on and that no call has out. A call whose
// answer never came has it out for ever. All other regions are the memory blade's to
// judge, as if there were no pool.
//
// Whoever takes a region finds it zero, as if it were new: the pool remembers which
// bytes have been written (Region.Stale), and those are zeroed before somebody could
// see them, unless they are written over first.
package pool
