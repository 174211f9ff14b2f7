// Package gatekeeper is the rack's control plane (thesis sections 5.3 and 6.4):
// it registers blades, nodes and services. For each packet that the switch holds it
// changes the switch's rules, and then releases the packet.
//
//	   switch                        Gatekeeper.Run
//	┌──────────┐ PacketIn, digests ┌─────────────────────────────────────┐
//	│          ├──────────────────▶│ turn: one input after the other     │
//	│          │     PacketOut     │   controller ─▶ lease.Machine       │
//	│          │◀──────────────────┤       │              control.Peer   │
//	│  tables  │                   │     plans           ...             │
//	│          │ told, or Write    │       ▼                             │
//	│          │◀──────────────────┤ writer: revokes │ grants, in batches│
//	└──────────┘                   └─────────────────────────────────────┘
//
// The controller is sequential and does no I/O: an input goes in, and what is to
// be done (plans of table updates, packets, events) is collected and handed on
// before the next one. Whoever brings an input takes the turn for it (controller.go), and
// never waits for the switch or the log meanwhile.
//
// A plan is a row of phases, revokes before grants, with a continuation. A held packet
// is released in the continuation. There are two ways to the switch:
//
//   - Told: our own switches take access rules on the stream that carries the packets
//     (package p4rt, stream writes). A packet that is sent later finds the rules in
//     force, so the continuation follows at once, within the same input.
//   - Asked: any other switch; and our own about all other tables, or when it might have
//     no room. The writer begins a phase when the switch has answered the phase before.
//     Plans share batches, but a batch never has both revokes and grants. The
//     continuation is an input of its own.
//
// With a log, each input also has a batch of records (journal.go). Its packets wait until
// this batch and those of all earlier inputs are logged. So a Gatekeeper that starts from
// the log (restore.go) knows at least what anybody was told.
//
// When the connection to the switch was lost and is there again, the Gatekeeper reads the
// tables back and repairs them, before the plans go on.
package gatekeeper
