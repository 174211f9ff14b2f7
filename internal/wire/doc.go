// Package wire is an Ethernet in one process: hosts, each on a port of one
// switch, and real frames between them. A host is a netio.Stack, so daemons and
// nodes run on it unchanged; the switch is whatever takes frames and gives
// frames: the software switch with Bifröst's program, or Router in unit tests.
//
//	Host c1 ── link, port 1 ──┐            ┌── port 3, link ── Host m1
//	          (to switch ▶)   ├─ switch ─▶─┤   (◀ to host)
//	Host s1 ── link, port 2 ──┘  Connect,  └── ...
//	                              Output
//
// The wire has two ways to run:
//
//   - Direct: a frame is handed over in the sender's goroutine, through the
//     switch into the receiver's queue. Lowest latency, no impairment.
//   - Scheduled (Config.Schedule): each direction of each link delays, loses,
//     duplicates and reorders as told, by a seed. Every arrival has an instant of
//     its own, and the rack settles before the next: in a testing/synctest bubble,
//     with Quiesce being synctest.Wait, a seed replays exactly. The test itself
//     must then not call synctest.Wait, of which there can be one at a time.
//
// A link can go down and up, and a host can crash. Config.OnFrame sees every
// frame before and after it arrives, which is where tests record and crash.
package wire
