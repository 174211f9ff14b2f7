// Package softswitch puts the parts of the software switch together: ports, an
// executor that runs the P4 program, and a P4Runtime server that controls it.
//
//	              ┌──────────────── Switch ────────────────┐
//	controller ══►│ p4rt.Server ──► Datapath  (tables)      │
//	              │      ▲              │                   │
//	              │      └── Sink ── Executor ◄── PacketOut │
//	              │                 ▲      │                │
//	frame ──► port ──── Input ──────┘      └─ emit ──► port ──► frame
//	              └─────────────────────────────────────────┘
//
// A frame runs to its end on the goroutine that brought it: the one that reads
// an interface (AttachInterface), or whoever calls Input for a port in the same
// process (Attach). There is no queue inside the switch, so with ports in the
// same process it does exactly the same thing each time.
//
// Ports come and go at run time. A frame that cannot go on is dropped and
// counted at its port, with the reason.
package softswitch
