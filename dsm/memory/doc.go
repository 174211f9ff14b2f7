// Package memory is a memory server: the regions of one memory blade, served to
// clients (package dsm) over the network. The daemon of a memory blade (package
// daemon) announces it and passes the Gatekeeper's commands on.
//
//	ReadBatch ─▶ parse ─▶ store.Handle ─▶ reply ─▶ WriteBatch      one goroutine
//	                       ▲
//	Fence, Reclaim, ... ───┘  under the mutex                      the daemon's
//
// Large writes that wait are received into their regions: Peek shows the header, the store
// says where the data goes when it may, and ReadBatch puts it there (Server.receiveInto).
//
// One endpoint receives for every address of the machine, and a reply's source
// is the address that its request was sent to; the reply to an alloc comes from
// the new pointer's address, so that the switch sees the region in the header.
package memory
