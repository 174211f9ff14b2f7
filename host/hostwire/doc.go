// Package hostwire has what a host and its child say to each other: frames over a stream, each with a kind, a call and a body. The host
// is `bifrost host`, a node of the rack; the child is a process in another language, which has the handlers.
//
//	length (4 bytes) | kind (1) | call (4) | body
//
// All integers are in network byte order. The length counts what follows it. docs/wire.md has the protocol. The package is pure: it
// reads and writes bytes and keeps nothing.
package hostwire
