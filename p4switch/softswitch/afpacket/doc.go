// Package afpacket reads and writes whole Ethernet frames on a Linux interface,
// in batches, through a packet socket.
//
//	interface ─▶ recvmmsg ─▶ [vnet header | MACs | (VLAN tag) | rest] ─▶ Frame
//	interface ◀─ sendmmsg ◀─ [vnet header | frame]                    ◀─ Frame
//
// The vnet header (PACKET_VNET_HDR) carries what a frame alone does not tell: on
// one machine, senders leave checksums and segmentation to hardware that never
// comes. Package offload makes sense of it. Frames that the interface itself
// sends are not read back (PACKET_IGNORE_OUTGOING), except by OpenTap, and a VLAN
// tag that the kernel has taken off is put back.
//
// Calls block in the kernel, not in Go's poller, which is some 5 µs faster; a
// receive gives up after Timeout, so that its goroutine can look around. TPACKET
// rings are no use here: version 3 adds up to a millisecond, and the copy that
// they save is small beside the rest.
package afpacket
