// Package dsm is the client of the distributed shared memory: memory on memory
// blades, named by global pointers and reached over the network. What a node may
// do with a region is for the switch to decide; see package rpc for how a call
// passes regions on.
//
//	Client.Read, Write, …        the caller's goroutine sends, and while it
//	   │ Start          ▲ done   waits, it reads for everybody (leader)
//	   ▼                │
//	┌─ transport.Endpoint ─┐     the protocol, under the link's mutex
//	└──────────────────────┘
//	   │ Send           ▲ Receive, Tick (one timer)
//	   ▼                │
//	      netio.Conn
//
// A pointer is a byte's address, and arithmetic within its region is allowed. A
// region's size is its request rounded up to a power of two, at least 64 bytes.
// Memory is zero when it is allocated.
//
// Reads and writes of up to one datagram's data (about 64 KB in emulation) are
// atomic; larger ones are cut. A read returns what the last completed write left.
//
// A client that Keeps regions gives out again what the program has freed, as long as
// nobody else can have a right to it, so that neither an allocation nor a free waits for
// the Gatekeeper (keeper.go, internal/pool; docs/by-reference.md says why that is safe).
//
// What is done on behalf of an execution (Client.With) can be taken back by the
// memory blades until it is committed, and a re-run gets the same pointers.
package dsm
