// Package ebpf is the kernel executor of compiled v1model programs: it generates
// eBPF from a v1model.Program, without a compiler, and attaches it to the
// ingress of each port's interface. It does what package interp does, and is
// tested against it packet by packet.
//
//	               ┌─────────────── kernel, one softirq ────────────────┐
//	port's         │  stub ──tail call──▶ load ▶ parse ▶ ingress ▶ egress │
//	interface ────▶│ (port number)         │      tables: LPM tries        │
//	               │                       ▼                              │
//	               │   drop ◀── deparse: in place, or grown and shrunk     │
//	               └────────────┬──────────────┬────────────────┬─────────┘
//	                   redirect ▼     redirect ▼                ▼ ring
//	                other port's interface    TAP ──▶ PacketIn   digests
//	                                           ▲
//	                                           └──── PacketOut
//
// A packet's state (state.go) lies in a per-CPU map: the first bytes of the
// frame, every header as it is on the wire, and metadata in words. Nothing of
// it is on the 512 bytes of stack, and the verifier need not follow it.
//
// # Tables
//
// Every entry is a node of an LPM trie, also in tables without a prefix: a trie
// replaces a node in one step and frees it only after a grace period. A hash map hands a
// deleted element to the next insertion at once, so that a lookup may end up with another
// entry's value. The default action is the
// trie's root.
//
// A table with ternary, range or optional fields, or with several of longest prefix, is a tuple space (tuples.go): a packet looks into a tuple for
// each mask that its entries have, of which a filter spares it nearly all that have nothing for it. A range is in two tuples, so an entry is in
// 2, 4, 8 or 16 with as many range fields as 1, 2, 3, or more. Masks take 512 KiB at most: 9,000 for a key of 20 bytes.
//
// # Updates
//
// A packet that has found an entry may act on it after the entry has been
// removed. So every CPU counts the packets that come in and leave, in memory that
// this process shares, and Synchronize waits for those that were inside (barrier.go).
// P4Runtime's Write calls it once, whatever it has changed: also an insertion may
// hide what was there.
//
// # The control plane's packets
//
// Frames for the CPU port go to a TAP device, where the kernel finishes partial
// checksums. The deparsed packet may be longer than the frame that came, and
// frames are up to 64 KiB long, which only VLAN tags can be pushed onto: tags
// make the room, and a last one tells how much of it is padding (tap.go).
//
// With pinned links the packets also go to a pinned ring, from which the next process
// gives the controller those that this one has not (held.go).
//
// # Offload
//
// TCP super-packets pass whole. A super-packet of which the program has parsed
// more than its transport header is dropped and counted, since that part of the
// other segments would not be judged; so UDP super-packets of calls and memory
// requests are dropped. So is one that is a list of packets with headers of their own,
// which a device makes with ethtool -K DEV rx-gro-list on.
//
// A checksum that the sender has left to the card is written by the kernel when the
// packet leaves or arrives, wherever the sender has said. The packet passes if that
// makes no difference to what the program sees and does, and is dropped and counted
// otherwise (partial.go): a program that reads or writes UDP checksums needs senders
// with ethtool -K DEV tx off.
//
// # Copies
//
// A packet that is cloned, multicast, resubmitted, recirculated or truncated leaves
// the straight way: its copies are jobs on a stack, of which bpf_loop (Linux 5.17)
// takes one after the other, and the kernel clones the frame for each (jobs.go). A
// packet makes at most 2,048 steps, and has at most 1,024 replicas. What a truncated copy has cut off is missing to
// those behind it, so an original goes before its clones, and copies for which too
// little is left are dropped and counted.
//
// # Stacks, lengths and loops
//
// The parser is generated once for every position in the packet and every number
// of elements in the stacks, so a loop is as many pieces of code. Of a parser that
// loops, a packet that would get further than 512 of them, or 1,024 bytes, is dropped
// and counted. A parser without a loop that needs more than 2,048 is refused. Behind
// a field of variable length, or an advance by what the packet says, positions are
// relative to one that is found when the packet comes (varbit.go), and a loop is a loop.
// A parser that has one ends behind 4,096 states with a timeout, and needs Linux 6.9.
//
// A packet whose action has loops of more than 65,536 statements is dropped and
// counted. Programs with such loops need Linux 6.9.
//
// # What is missing
//
// New refuses a program that uses more, with an *UnsupportedError that names
// every place. Of an expression at most 64 values may wait for others.
// Signed numbers and arithmetic have 64 bits at most, and a hash has no payload. Neither can counters, meters, random
// numbers, log messages and assertions lie between two accesses to registers in one
// action, which is atomic from its first access to its last (registers.go).
//
// A frame of more than 16 KiB is dropped and counted if its headers become longer or shorter
// by other than a multiple of four bytes. So is one that is not IP and becomes shorter by more than 64 bytes, or
// as short as an Ethernet header alone, and a super-packet whose headers change their
// length, or that is for the CPU port. On a device
// without Ethernet header only IP packets can become longer or shorter.
package ebpf
