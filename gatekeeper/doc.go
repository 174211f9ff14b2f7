// Package gatekeeper is the rack's control plane (thesis sections 5.3 and 6.4):
// it registers blades, nodes and services, and turns every packet that the
// switch holds into rules before it lets it go on.
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
// A plan is a row of phases, revokes before grants, with a continuation: that is where
// a held packet is released. Our own switches are told of access rules on the stream
// that carries the packets (package p4rt, stream writes): what is sent later finds the
// rules in force, so the continuation follows at once, within the same input. Any other
// switch, and ours for all other tables or when it might have no room, is asked: the
// writer begins a phase when the switch has answered the one before, and shares
// batches between plans, but never revokes and grants in one; the continuation is an
// input of its own.
//
// With a log, each input also has a batch of records (journal.go), and packets wait
// until the batches of their own and all earlier inputs are logged (journal.go). So
// a Gatekeeper that begins with the log (restore.go, resume.go) knows at least
// what anybody was told.
//
// When the connection to the switch is lost and found again, its tables are read
// back and made what they should be before the plans go on.
package gatekeeper
