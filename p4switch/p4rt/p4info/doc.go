// Package p4info is the checked view of a P4Info message: everything a
// P4Runtime server (or client) looks up by id, with the widths, kinds and
// limits that a value must respect, and the conversions between P4Runtime's
// messages and the data plane's words.
//
//	config.v1.P4Info ──Parse──► Info ── Tables, Actions, Profiles, Counters, …
//	v1.FieldMatch    ◄────────► datapath.Match     (Table.Match, MatchFields)
//	v1.Action        ◄────────► datapath.Action    (Info.Action, ActionMessage)
//	v1.PacketIn/Out  ◄────────► frame with header  (Header.Decode, Encode)
//	v1.P4Data        ◄────────► []byte per field   (Type.Decode, Encode)
//
// It is pure: no I/O, no clock, no goroutine. An Info never changes after Parse
// and may be used concurrently. Conversions from the controller's messages
// bring the byte strings in those messages into canonical form, in place, so
// that what is stored reads back as the specification wants it
// (section "Read-Write Symmetry"). Errors are gRPC status errors with the code
// that the specification asks for.
package p4info
