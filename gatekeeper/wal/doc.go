// Package wal is the Gatekeeper's write-ahead log of what it has let happen
// (ARCHITECTURE.md): rights, calls and replies of policy none before they are released, who runs
// which durable main, and whatever else must outlive it. What Append or a Submit's callback has
// confirmed is logged: it is read back after the Gatekeeper's own crash.
//
//	Submit(batch) ─▶ queue (bounded) ─▶ committer ─▶ store ─▶ callbacks, in order
//	  one owner or many   │                │ one commit for all that waits
//	                      └─ ErrBusy       └─ group commit
//
// A Record says what it is about by its Kind and ID; there is at most one for
// each such pair, and a later one takes the place of an earlier one. Records
// have an order, that of Submit, in which Records reads them back. A Batch puts
// and deletes records as a whole: all of it is logged, or nothing.
//
// The log keeps what it is told to keep until it is told otherwise: whoever
// knows that a record is not needed any more deletes it. A limit on the bytes
// kept (ErrFull) and on what waits (ErrBusy) makes pressure felt where calls come
// in, before memory or disk run out.
//
// # What "logged" means
//
// By default a record is logged when the operating system has it (page cache):
// it survives a crash of the Gatekeeper at any instant, but not the loss of
// power, which takes the last records and leaves the rest. With Options.Sync it
// is logged when the disk has it. One process at a time has a log open; the
// kernel ends its lock with it.
//
// # The store
//
// Files are kept by Pebble, an LSM tree with a write-ahead log. BenchmarkAppend
// compares it with bbolt in the way the Gatekeeper uses it, one record added and
// an older one deleted: to log 300 bytes took 8 µs against 30 µs at the median,
// 60 kB 90 µs against 480 µs, and 280 µs against 480 µs with Sync, because
// Pebble appends where bbolt rewrites the pages of a B+ tree. Pebble also checks
// what it reads. A write-ahead log, however, ends where its checksums end, so the last
// commit that was acknowledged is noted beside it (package internal/disk): a log that ends before that
// is refused (ErrCorrupt), with what an operator can do. A write that fails is final: the log then
// fails as a whole (ErrFailed), and so must a Gatekeeper that cannot log.
//
// OpenMemory has the same log on a Disk in memory, for simulated racks: a Disk
// survives the crash of a Gatekeeper, and can lose power.
package wal
