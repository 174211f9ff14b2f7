// Package dsmclient is the memory client of a node, with all that the runtime (package
// rpc) needs of it: clients for executions, regions that calls pass on, ledgers.
// Applications see the part of it that is dsm.Client.
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
// A client that keeps regions (Config.Keep) gives out again what the program has freed, as
// long as nobody else can have a right to it, so that neither an allocation nor a free waits
// for the Gatekeeper (cache.go, dsm/internal/pool; docs/by-reference.md says why that is
// safe).
package dsmclient
