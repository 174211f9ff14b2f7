// Package bulk moves the part of a call or answer that exceeds one packet, between
// the two nodes, without the Gatekeeper. It does no I/O and reads no clock.
//
// The receiver asks (pulls), and the sender obeys: it keeps nothing but the message.
// The first packet of the message is an ordinary call or answer (packet.FlagMore). It
// carries the message's length and as many of its bytes as fit. The rest is cut into
// parts of one size:
//
//	sender                                     receiver
//	  │── first packet ─────────────────────────▶│ Begin
//	  │── the first parts, not asked for ───────▶│ Receive
//	  │◀──────────────────────── pull: 4 to 9 ───│
//	  │── parts 4 to 9 ─────────────────────────▶│ whole
//	  │◀──────────────────────── done ───────────│ (answers: the sender may forget it)
//
// The receiver bounds what is on its way by a window: of each transfer (package stream), and of
// all transfers together, which is a share of its socket's buffer. Only what is lost is asked for again. A pull says how large the
// window is: behind its next first packets the sender may send so much without being asked.
//
// The receiver bounds the memory that each sender and all of them make it use: four times what has come, and
// some megabytes in all beyond that, so that most messages have memory for all of them at once. A
// sender that is silent for too long, or says that it does not have the message, ends
// the transfer. The first packet is sent again like any call, and begins a new one.
package bulk
