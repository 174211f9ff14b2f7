// Package ledger is the memory server's half of ledgers (design section 3): the
// write-ahead logs of nodes and durable mains, kept by memory machines. It does no
// I/O, starts no goroutine and reads no clock.
//
// A ledger is a sequence of chunks with consecutive numbers. One writer at a time,
// a run, may append: the run that opened the ledger last. A run has ended when the
// ledger is sealed for it, which is part of the fence of its node. Nothing appends
// to a sealed ledger; the next run opens it again.
//
//	grant ─▶ open(run 1) ─▶ append… ─▶ fence ─▶ end(run 1) ─▶ open(run 2) ─▶ append…
//	Gatekeeper    writer              Gatekeeper  Gatekeeper       successor
//
// Both copies of a mirrored machine are sealed before either is read. They may then
// differ by the last chunks, which only one of them has got. Nobody can have acted
// upon such a chunk, since an append counts only when every copy has acknowledged
// it. The Gatekeeper therefore ends both copies at the shorter one's end. They may also
// differ by their first chunks, which only one of them was told to drop; the Gatekeeper
// lets the other drop them too.
//
// What a chunk contains is the writer's business (dsmpacket.Chunk). The store knows only
// whether a chunk continues: whether its record goes on in the next
// chunk. A sealed ledger never ends in the middle of a record.
//
// A Store has one owner: its methods must not be called concurrently.
package ledger
