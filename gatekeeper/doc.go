// Package gatekeeper is the rack's control plane (thesis sections 5.3 and 6.4): it
// registers blades, nodes and services, places programs, and ends what has failed. It has
// no part in calls, allocations and frees: rights are in the switch's registers, which
// packets change as they pass (docs/rights.md).
//
//	   switch                        Gatekeeper.Run
//	┌──────────┐ PacketIn, digests ┌─────────────────────────────────────┐
//	│          ├──────────────────▶│ turn: one input after the other     │
//	│          │     PacketOut     │   controller ─▶ control.Peer        │
//	│          │◀──────────────────┤       │              hand           │
//	│  tables  │                   │     plans           ...             │
//	│ registers│      Write        │       ▼                             │
//	│          │◀──────────────────┤ writer: revokes │ grants, in batches│
//	└──────────┘                   └─────────────────────────────────────┘
//
// The controller is sequential and does no I/O: an input goes in, and what is to
// be done (plans of table updates, packets, events) is collected and handed on
// before the next one. What it decides by is in types that do not know it: estate, population,
// catalog, tables, journal, told, hearing, leases. Whoever brings an input takes the turn for it (controller.go), and
// never waits for the switch or the log meanwhile.
//
// A plan is a row of phases, revokes before grants, with a continuation. The writer begins a
// phase when the switch has answered the phase before. Plans share batches, but a batch never
// has both revokes and grants. The continuation is an input of its own.
//
// Registers are read and changed by the hand (hand.go): packets with an operation, which the
// switch answers, and which may be repeated. Who owns which region, and which calls are open,
// is read when somebody has to know: when a node joins again (holdings.go), when one is gone for
// good (ending.go), and for people (survey.go). If the registers are lost, they are rebuilt from what nodes
// know (rebuild.go).
//
// With a log, each input also has a batch of records (journal.go). Its packets wait until
// this batch and those of all earlier inputs are logged. So a Gatekeeper that starts from
// the log (restore.go) knows at least what anybody was told.
//
// When the connection to the switch was lost and is there again, the Gatekeeper reads the
// tables back and repairs them, before the plans go on.
package gatekeeper
