//go:build linux

package guard

import (
	"encoding/binary"
	"net/netip"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/bifrost-rack/bifrost/internal/rackaddr"
)

// rule is conditions and what follows if all of them hold. A condition about something
// that a packet does not have, like the user of a packet that the kernel itself sends,
// does not hold.
type rule = []expr.Any

// sentRules are the rules of what leaves by an interface.
func sentRules(iface string, daemon uint32, owners, nodes *nftables.Set) []rule {
	rules := []rule{when(outIsNot(iface), accept())}
	for _, offset := range []uint32{srcPort, dstPort} {
		rules = append(rules, when(ofNode(), udp(), port(offset, rackaddr.PortControl, rackaddr.PortControl), drop(Control)))
	}
	rules = append(rules,
		when(sourceAnd(expr.MetaKeyMARK, nodes), clearMark(), accept()),
		when(ofNode(), drop(Address)),
		when(user(0), accept()),
		when(user(daemon), accept()))
	for _, offset := range []uint32{srcPort, dstPort} {
		rules = append(rules, when(udp(), port(offset, rackaddr.PortControl, rackaddr.PortControl), drop(Control)))
	}
	rules = append(rules, when(sourceAnd(expr.MetaKeySKUID, owners), accept()))
	for _, p := range []netip.Prefix{rackaddr.NodePrefix, rackaddr.ServicePrefix} {
		rules = append(rules,
			when(address(source, p), udp(), drop(Address)),
			// The kernel itself answers neighbours and pings, and ends connections.
			when(address(source, p), userIsNot(0), drop(Address)))
	}
	for _, offset := range []uint32{srcPort, dstPort} {
		rules = append(rules, when(udp(), port(offset, rackaddr.PortRPC, rackaddr.PortFill), drop(Port)))
	}
	return rules
}

// receivedRules are the rules of what arrives.
func receivedRules() []rule {
	return []rule{
		when(fromLoopback(), address(destination, rackaddr.RackPrefix), drop(Loopback)),
		when(fromLoopback(), udp(), port(dstPort, rackaddr.PortRPC, rackaddr.PortFill), drop(Loopback)),
	}
}

func when(parts ...rule) rule { return slices.Concat(parts...) }

func accept() rule { return rule{&expr.Verdict{Kind: expr.VerdictAccept}} }

// drop drops and counts.
func drop(r Reason) rule {
	return rule{&expr.Objref{Type: unix.NFT_OBJECT_COUNTER, Name: string(r)}, &expr.Verdict{Kind: expr.VerdictDrop}}
}

// Where things are in IPv6 and UDP headers, in bytes.
const (
	source      = 8
	destination = 24
	srcPort     = 0
	dstPort     = 2
)

// meta compares what the kernel knows of a packet.
func meta(key expr.MetaKey, op expr.CmpOp, value []byte) rule {
	return rule{&expr.Meta{Key: key, Register: 1}, &expr.Cmp{Op: op, Register: 1, Data: value}}
}

func user(uid uint32) rule      { return meta(expr.MetaKeySKUID, expr.CmpOpEq, native(uid)) }
func userIsNot(uid uint32) rule { return meta(expr.MetaKeySKUID, expr.CmpOpNeq, native(uid)) }
func udp() rule                 { return meta(expr.MetaKeyL4PROTO, expr.CmpOpEq, []byte{unix.IPPROTO_UDP}) }
func fromLoopback() rule        { return meta(expr.MetaKeyIIFNAME, expr.CmpOpEq, name("lo")) }

func outIsNot(iface string) rule { return meta(expr.MetaKeyOIFNAME, expr.CmpOpNeq, name(iface)) }

// name is an interface's name as the kernel keeps it.
func name(iface string) []byte {
	b := make([]byte, unix.IFNAMSIZ)
	copy(b, iface)
	return b
}

// native is a number as the kernel keeps it.
func native(n uint32) []byte { return binary.NativeEndian.AppendUint32(nil, n) }

// address compares an address with a prefix of whole bytes.
func address(offset uint32, p netip.Prefix) rule {
	n := p.Bits() / 8
	return rule{
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: uint32(n)},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: p.Addr().AsSlice()[:n]},
	}
}

// port asks whether a port lies between two, both included.
func port(offset uint32, first, last uint16) rule {
	return rule{
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: offset, Len: 2},
		&expr.Cmp{Op: expr.CmpOpGte, Register: 1, Data: binary.BigEndian.AppendUint16(nil, first)},
		&expr.Cmp{Op: expr.CmpOpLte, Register: 1, Data: binary.BigEndian.AppendUint16(nil, last)},
	}
}

// ofNode asks whether a socket that a daemon has made for a node has sent.
func ofNode() rule {
	return rule{
		&expr.Meta{Key: expr.MetaKeyMARK, Register: 1},
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 4, Mask: native(rackaddr.MarkMask), Xor: native(0)},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: native(rackaddr.MarkTag)},
	}
}

// clearMark hides a mark from what else looks at the packet, which may know others' marks.
func clearMark() rule {
	return rule{&expr.Immediate{Register: 1, Data: native(0)}, &expr.Meta{Key: expr.MetaKeyMARK, SourceRegister: true, Register: 1}}
}

// sourceAnd asks whether a set has the source address together with what the kernel knows of the sender.
// Both lie in one row of the kernel's registers of 32 bits.
func sourceAnd(key expr.MetaKey, in *nftables.Set) rule {
	return rule{
		&expr.Payload{DestRegister: unix.NFT_REG32_00, Base: expr.PayloadBaseNetworkHeader, Offset: source, Len: 16},
		&expr.Meta{Key: key, Register: unix.NFT_REG32_04},
		&expr.Lookup{SourceRegister: unix.NFT_REG32_00, SetName: in.Name, SetID: in.ID},
	}
}

// element is an address in a set, with the number of who may send from it.
func element(a netip.Addr, who uint32) []nftables.SetElement {
	return []nftables.SetElement{{Key: append(a.AsSlice(), native(who)...)}}
}
