// Package frame builds and takes apart Ethernet frames: IPv6 in Ethernet, UDP and
// ICMPv6 echo in IPv6, with their checksums. Bifröst's virtual wire and Gatekeeper
// use it, and so do tests of the switch.
//
//	| Ethernet 14 | IPv6 40 | UDP 8 | payload |
//	  dst src type  ........  ports length sum
//
// It does no I/O and keeps no state; everything parsed aliases the frame it was
// parsed from. Every error about the form of a frame wraps wirefmt.ErrFormat.
package frame
