// Package p4rt is a P4Runtime server (specification 1.5)
// for one device. It knows nothing of packets or interfaces: a datapath.Datapath
// runs the program, the server checks, remembers and translates.
//
//	controller ══ gRPC ══╗
//	                     ▼
//	  StreamChannel ── arbiter (who is primary, per role)
//	     │    ▲          sender (per stream: bounded, never blocks the wire)
//	     │    └─────────── packet-in codec, digests ◄── datapath.Sink ◄─┐
//	     └── packet-out codec ──────────────────────► Datapath.PacketOut│
//	  Write, Read ── checks (package p4info) ── store ──► Datapath.Apply ┘
//	  SetForwardingPipelineConfig ── Config.Load, Config.Commit
//
// A pipeline is one loaded program: its P4Info, its Datapath, the store of what
// was written to it and its digest state. Reads and writes refer to the newest
// pipeline, packets run through the committed one; the two differ only between
// VERIFY_AND_SAVE and COMMIT.
//
// Port status is an extension, which P4Runtime has no message for. A controller
// asks for it with a StreamMessageRequest.other that holds a google.protobuf.Struct
// {"port_status": true}. From then on StreamMessageResponse.other on the same stream
// holds {"port": 3, "name": "eth3", "up": false}: first for each port that is
// there, then for each change. Capabilities announces it: experimental has
// "port_status": true.
//
// Registers that outlive a program are another one: a VERIFY_AND_COMMIT with KeepRegisters in
// its gRPC metadata clears all but registers. Capabilities does not announce it: registers are
// empty where it is not known.
//
// Locking. Server.mu is held for writing by Writes and by configuration changes,
// for reading by Read. A program is loaded, and verified by the kernel, before the
// lock is taken. The packet path (datapath.Sink) never takes it: a
// Datapath may wait, inside Apply, for packets in flight to drain. What the
// packet path needs is immutable (the codec) or has a lock of its own that is
// held for microseconds (digests, senders).
//
// Deviations and choices, where the specification leaves room or contradicts
// itself: a byte string that does not fit is INVALID_ARGUMENT in match fields,
// action parameters, packet metadata and register data (their own sections say
// so, and so does bmv2), OUT_OF_RANGE elsewhere; ROLLBACK_ON_ERROR is supported
// for every batch (batch.go), DATAPLANE_ATOMIC only where one step of the data
// plane does it; the scheme of role configurations is our own (type scope).
package p4rt
