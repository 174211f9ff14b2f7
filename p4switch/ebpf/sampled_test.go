//go:build linux

package ebpf

import (
	"encoding/binary"
	"net/netip"
	"testing"

	"github.com/bifrost-rack/bifrost/p4switch/compare"
	"github.com/bifrost-rack/bifrost/p4switch/datapath"
	"github.com/bifrost-rack/bifrost/p4switch/internal/sample"
	"github.com/bifrost-rack/bifrost/p4switch/shared/frame"
)

// sampleNode is one of few nodes.
func sampleNode(m maker) netip.Addr { return node(byte(m.IntN(3))) }

// sampleRegion is one of few regions.
func sampleRegion(m maker) sample.Region {
	return sample.Region{Slot: uint32(m.Pick(0, 1, 1<<20-1)), Generation: uint32(m.Pick(1, 1, 2))}
}

// sampleEntry is an entry of one of the sample's tables.
func sampleEntry(m maker) datapath.Entry {
	exact := func(v uint64, n int) datapath.Match {
		return datapath.Match{Value: binary.BigEndian.AppendUint64(nil, v)[8-n:]}
	}
	e := func(table, action string, params [][]byte, match ...datapath.Match) datapath.Entry {
		return datapath.Entry{Table: sample.Prefix + table, Match: match, Action: &datapath.Action{Name: sample.Prefix + action, Params: params}}
	}
	port, hop := m.Pick(1, 2, 3, 4), m.Pick(1, 2, 3)
	switch m.IntN(6) {
	case 0:
		return e("identity", "known", sample.Row(uint16(m.Pick(0, 1, 2))), exact(port, 2), whole(sampleNode(m)))
	case 1:
		return e("l3", "to_hop", [][]byte{{0, byte(hop)}}, whole(sampleNode(m)))
	case 2:
		home := e("home", "to_hop", [][]byte{{0, byte(hop)}}, exact(m.Pick(1, 2), 6))
		if m.IntN(4) == 0 {
			home.Action = &datapath.Action{Name: "NoAction"}
		}
		return home
	case 3:
		return e("next_hop", "forward", [][]byte{{0, byte(port)}, {5: byte(m.Uint64())}, {5: 9}}, exact(hop, 2))
	case 4:
		return e("tcp_allowed", "permit", nil, exact(port, 2), exact(m.Pick(0, 1, 2, 3), 2))
	}
	return e("writer", "permit", nil, exact(m.Pick(0, 1, 2), 2), exact(uint64(sampleRegion(m).Slot), 3))
}

// samplePacket is a packet for the sample, mostly sensible.
func samplePacket(m maker) (in datapath.Port, b []byte) {
	u := frame.UDP6{DstMAC: frame.MAC{5: 1}, SrcMAC: frame.MAC{5: byte(m.Uint64())}}
	port := uint16(m.Pick(7, sample.PortControl, sample.PortCall, sample.PortMemory, sample.PortMemory, sample.PortMemory))
	to := sampleNode(m)
	switch u.Payload = []byte("anything"); port {
	case sample.PortCall:
		u.Payload = sample.Call(uint16(m.Pick(0, 1, 0xffff)), uint32(m.Uint64()))
	case sample.PortMemory:
		u.Payload, to = sample.Request(m.Uint64(), m.IntN(9)), sampleRegion(m).Address(byte(m.Pick(sample.Read, sample.Write, 1)))
		if u.Payload[4] = byte(m.Pick(1, 1, 1, 1, 2)); m.IntN(8) == 0 {
			to = netip.AddrFrom16([16]byte{5: 2})
		}
	}
	if m.IntN(8) == 0 {
		u.Payload[0]++ // of the magic
	}
	u.Src, u.Dst = netip.AddrPortFrom(sampleNode(m), 1000), netip.AddrPortFrom(to, port)
	b = u.Append(nil)
	switch m.IntN(12) {
	case 0, 1:
		b[20] = 6 // TCP
	case 2:
		b[21] = byte(m.Pick(0, 1)) // hops
	case 3:
		b[12] = byte(m.Pick(0x86, 0x08))
	case 4:
		b[14] = 0x40 // version
	case 5:
		b = b[:58]
	}
	if m.IntN(6) == 0 {
		return sample.CPUPort, append([]byte{0, byte(m.Pick(0, 1, 2, 3, 9)), 0, 0}, b...)
	}
	return datapath.Port(m.Pick(1, 2, 3, 4)), b
}

// feedSample has regions whose words are known.
func feedSample(t *testing.T, p *pair, m maker) compare.Packet {
	for range 60 {
		p.Update(t, datapath.Insert, sampleEntry(m))
	}
	return func() (datapath.Port, []byte) {
		p.Update(t, []datapath.Op{datapath.Insert, datapath.Insert, datapath.Delete}[m.IntN(3)], sampleEntry(m))
		region := sampleRegion(m)
		word := region.Word(uint16(m.Pick(0, 1, 2)), uint32(m.Pick(0, 0, 1)))
		p.Both(t, func(x datapath.Datapath) error { return x.SetRegister(sample.Prefix+"words", int(region.Slot), word) })
		return samplePacket(m)
	}
}
