// Package store is a memory server without its network: the regions of one
// memory machine and the request windows of its clients. It does no I/O, starts
// no goroutine and reads no clock. Requests go in, answers come out.
//
//	Request ─▶ client (incarnation, fence) ─▶ window (late? seen? dead?) ─▶ operation ─▶ Answer
//	                                             │ seen: the recorded outcome        ▲
//	                                             └───────────────────────────────────┘
//
// Four parts hold what a machine has:
//
//   - space hands out addresses, each once for ever, so that a stale pointer
//     never names a new region;
//   - arena hands out the bytes behind them, which are used again;
//   - windows remember what became of each client's unsettled requests, so that
//     no request is applied twice and none after it was settled;
//   - undo remembers what executions have changed, until they are committed or
//     taken back: copies of pages or, where executions overwrite much of a region,
//     a second block for it (pages.go), so that nothing is copied.
//
// A Store has one owner: its methods must not be called concurrently.
package store
