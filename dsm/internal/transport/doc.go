// Package transport is the client's half of the memory protocol without its
// network: it cuts transfers into requests, sends each until it is answered, and
// keeps what was sent within what the receivers can buffer. It does no I/O,
// starts no goroutine and reads no clock: calls come in with the time, and what
// is to be sent and who is done stands in Ready afterwards.
//
//	Start ──▶ queue ──▶ requests ──▶ Ready.Send ──▶ switch ──▶ memory server
//	            ▲          │  ▲                                      │
//	            └── pump ──┘  └── Tick: late? send it again          │
//	                ▲                                                │
//	Ready.Done ◀── Receive ◀─────────────────────────────────────────┘
//
// Each memory machine is a peer with request ids, a window and a round-trip
// estimate of its own, so that a slow machine delays only what uses it.
//
// A request's fate must be known before its id is settled: the server drops
// whatever comes below the floor, so nothing can be applied after that. Reads
// have no fate; their callers just stop listening. A write that was given up
// is resolved by a settle request, which either tells what it did or stops it for ever.
// So is a write or free that was denied, or whose region is lent now, since another copy of it may have got through. The
// caller of what is lent asks again (Transfer.Lent). An alloc or free that was given up goes on until it
// is answered; a region that nobody waits for any more is then freed.
// Later operations on the bytes of a write that was given up wait until it is
// resolved, so they are never overtaken by it.
package transport
