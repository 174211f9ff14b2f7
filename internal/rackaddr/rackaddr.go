// Package rackaddr is a rack's address plan and the port numbers of its
// protocols: the one place that says who has which IPv6 address.
//
//	fd00:b1f0::1                  the Gatekeeper (behind the switch's CPU port)
//	fd00:b1f0:0:1::/64            blades
//	fd00:b1f0:0:2::/64            nodes; an address stays with its node when it moves
//	fd00:b1f0:0:3::/64            services: the last 64 bits are a hash of the name
//	0000:0000:PPMM:OOAA:pointer   distributed shared memory (package dsm/dsmpacket)
package rackaddr

import (
	"crypto/sha256"
	"encoding/binary"
	"net/netip"
)

// UDP ports. Both ends of a flow use the same one, so that the switch can tell
// a protocol by the destination port alone.
const (
	PortRPC     = 45100
	PortDSM     = 45101
	PortControl = 45102
	PortBulk    = 45103
	PortFill    = 45104
	PortDirect  = 45105
)

// NodePorts are the ports of nodes: for answers and what the switch holds, memory, large messages, and other calls. A node has all four at its
// own address. Nobody but the blade's daemon binds them; that has PortRPC at the addresses of services, too.
var NodePorts = []uint16{PortRPC, PortDSM, PortBulk, PortDirect}

// OfCalls reports whether calls and answers come to a port of a node. At PortBulk parts of large ones come, too.
func OfCalls(port uint16) bool { return port == PortRPC || port == PortDirect || port == PortBulk }

// The sockets of nodes, which the blade's daemon makes, are marked (SO_MARK): so the daemon's guard knows whose a packet is.
// MarkMask has the bits that say that a mark is a node's, and Marks is how many there are.
const (
	MarkMask = 0xfff00000
	MarkTag  = 0xb1f00000
	Marks    = 1 << 20
)

// Mark returns the n-th mark.
func Mark(n uint32) uint32 { return MarkTag | n%Marks }

// DefaultDSMPrefix is byte 4 of every global pointer.
const DefaultDSMPrefix = 0x10

// DefaultMTU is the largest IPv6 packet in bytes in emulation; on hardware 9000.
const DefaultMTU = 65535

// Gatekeeper is the control plane's address.
var Gatekeeper = netip.MustParseAddr("fd00:b1f0::1")

// The prefixes of the plan.
var (
	RackPrefix    = netip.MustParsePrefix("fd00:b1f0::/48")
	BladePrefix   = netip.MustParsePrefix("fd00:b1f0:0:1::/64")
	NodePrefix    = netip.MustParsePrefix("fd00:b1f0:0:2::/64")
	ServicePrefix = netip.MustParsePrefix("fd00:b1f0:0:3::/64")
)

// Blade returns the address of the n-th blade, counting from 1.
func Blade(n uint64) netip.Addr { return at(BladePrefix, n) }

// Node returns the address of the n-th node, counting from 1.
func Node(n uint64) netip.Addr { return at(NodePrefix, n) }

// Service returns the address of a service: the first 64 bits of the SHA-256 of
// its name under the service prefix. Callers and callees derive it alike.
func Service(name string) netip.Addr {
	sum := sha256.Sum256([]byte(name))
	return at(ServicePrefix, binary.BigEndian.Uint64(sum[:8]))
}

// ServiceOf is the address of the service with a hash: the low half of the address,
// as call headers have it.
func ServiceOf(hash uint64) netip.Addr { return at(ServicePrefix, hash) }

func at(p netip.Prefix, low uint64) netip.Addr {
	b := p.Addr().As16()
	binary.BigEndian.PutUint64(b[8:], low)
	return netip.AddrFrom16(b)
}
