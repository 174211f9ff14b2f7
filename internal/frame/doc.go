// Package frame builds and takes apart the Ethernet frames of Bifröst: IPv6 in
// Ethernet, UDP and ICMPv6 echo in IPv6, with their checksums. The virtual wire
// speaks it, and so does the Gatekeeper, which gets and gives whole frames.
//
//	| Ethernet 14 | IPv6 40 | UDP 8 | payload |
//	  dst src type  ........  ports length sum
//
// It does no I/O and keeps no state; everything parsed aliases the frame it was
// parsed from. Every error about the form of a frame wraps wirefmt.ErrFormat.
package frame
