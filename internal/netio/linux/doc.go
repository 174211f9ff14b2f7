//go:build linux

// Package linux is a netio.Stack on the kernel: UDP sockets that see and choose
// addresses, and the addresses of a blade's interface.
//
//	daemon  ─▶ Open ─▶ AddAddress, ...      the interface, by netlink: CAP_NET_ADMIN
//	                ├▶ SendOwnTrafficOut    nodes of one blade meet at the switch
//	                ├▶ HoldPorts            nobody else binds the ports of nodes
//	                └▶ ListenNode           a node's socket; to end it: CAP_NET_RAW
//	program ─▶ Adopt                        uses a socket that the daemon has made: needs no privilege
//
// Datagrams move in batches (recvmmsg, sendmmsg) without allocation. A reader asks
// again for some 100 µs before it sleeps, as long as that pays. What stands
// around the interface (its routes, and the switch's MAC as a static neighbour)
// is the work of whoever builds the rack.
package linux
