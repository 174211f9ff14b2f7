// Package trace remembers what became of the latest calls: when each was sent,
// received, finished and answered (the checkpoints a1, b1, b2, a2 of the thesis's
// figure 5.3), on whose behalf, by whom, and what failed and was run again
// meanwhile. It is a pure core: the Gatekeeper's loop tells it one step at a time.
//
//	step ─▶ Recorder.Note ─▶ ring of the last N calls ─▶ Call, Tree, Recent
//	                          └─ children of each, by parent
//
// A call stays when it is over, until N others have begun. One takes 500 bytes, and
// 128 for each step; with the default of 8192 calls, that is some 8 MiB, and 32 MiB if each has as many steps, and as
// long texts and headers, as are kept.
package trace
