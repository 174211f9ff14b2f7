// Package fill carries the content of a memory server to another one, which becomes the
// second copy of its machine (design section 2). It does no I/O, starts no goroutine and
// reads no clock.
//
// The content travels as items, in order, whole or not at all. What an item means is the
// stores' business (dsm/memory/store). A Sender keeps a window of items in flight, at a
// bounded rate, and sends them again until the Receiver acknowledges them. A Receiver takes
// an item only in its turn, so that a late copy of an old item never undoes a newer one.
//
//	source: store ─▶ Sender ── item 7, 8, 9 ──▶ Receiver ─▶ store: target
//	                     ◀── next is 9 ─────────
//
// A token names one attempt. Nothing of an earlier attempt counts in a later one.
package fill
