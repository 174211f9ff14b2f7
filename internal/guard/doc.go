// Package guard gives each address of a blade to one user: programs of different users
// on one blade can neither speak for each other nor for the blade's daemon.
//
// A program sends by its own sockets, so only the kernel can tell who it is. The daemon
// installs rules for nftables in its network namespace; each packet that this machine
// sends towards the switch passes them:
//
//	a node's socket (marked), UDP from or to the port of control ▶ drop (control)
//	a node's socket, source address is that node's or a service's▶ send, without the mark
//	a node's socket, any other source address ───────────────────▶ drop (address)
//	sender is root or the daemon's user ─────────────────────────▶ send
//	UDP from or to the port of control ──────────────────────────▶ drop (control)
//	source address belongs to the sender's user ─────────────────▶ send
//	source is an address of nodes or services ───────────────────▶ drop (address)
//	UDP from or to a port of calls or memory ────────────────────▶ drop (port)
//	else ────────────────────────────────────────────────────────▶ send
//
// The daemon makes the sockets of nodes, so the kernel takes these for its own: they bear a mark for each node
// (rackaddr.Mark), which only CAP_NET_ADMIN and CAP_NET_RAW can change. What a program sends by sockets that it has made itself goes
// by its user.
//
// A second chain drops what arrives by the loopback interface for the rack's addresses or
// ports: it would pass by the switch (loopback).
//
// The rules outlive a daemon that dies, so that nobody takes its place; the next daemon
// replaces them. They do not hold against root, nor against a program with CAP_NET_RAW
// or CAP_NET_ADMIN in the blade's network namespace: those are the blade.
package guard
