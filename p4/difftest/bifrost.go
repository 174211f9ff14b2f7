package difftest

import (
	"encoding/binary"
	"math/rand/v2"

	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
	"github.com/bifrost-rack/bifrost/p4"
	"github.com/bifrost-rack/bifrost/p4switch/datapath"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// Bifrost makes packets and entries of Bifröst's program. Values come from small
// sets, so that packets and entries meet.
type Bifrost struct{ *rand.Rand }

// Pick is one of some values.
func (m Bifrost) Pick(vs ...uint64) uint64 { return vs[m.IntN(len(vs))] }

// address is one of few nodes, blades, services and pointers.
func (m Bifrost) address() []byte {
	b := make([]byte, 16)
	switch m.IntN(9) {
	case 0: // of no machine
		b[15] = byte(m.IntN(2))
		return b
	case 1, 2, 3:
		p := dsmpacket.Make(1, byte(m.IntN(2)), m.region()).Add(int64(m.Pick(0, 0, 1, 0x1fff, 1<<29))).With(dsmpacket.Op(m.IntN(7))) //nolint:gosec // small
		copy(b, p[:])
		return b
	}
	copy(b, []byte{0xfd, 0, 0xb1, 0xf0, 0, 0, 0, byte(m.IntN(4))})
	b[15] = byte(m.IntN(4))
	return b
}

// region is one of few regions, the highest included.
func (m Bifrost) region() dsmpacket.RegionID {
	return dsmpacket.RegionID(m.Pick(0, 1, 2, 1<<dsmpacket.GenerationBits|1, 1<<(dsmpacket.SlotBits+dsmpacket.GenerationBits)-1))
}

// Port is a port, 1 to 4.
func (m Bifrost) Port() byte { return byte(1 + m.IntN(4)) }

// Packet is a frame, mostly sensible.
func (m Bifrost) Packet(in datapath.Port) []byte {
	var b []byte
	put := func(v uint64, n int) {
		for i := n - 1; i >= 0; i-- {
			b = append(b, byte(v>>(8*i)))
		}
	}
	if in == p4.CPUPort {
		put(m.Pick(0, 0, 1, 2, 9), 2)
		put(m.Uint64(), 2)
	}
	put(m.Uint64(), 6)
	put(m.Uint64(), 6)
	put(m.Pick(0x86dd, 0x86dd, 0x86dd, 0x86dd, 0x86dd, 0x86dd, 0x0800, 0x8100), 2)
	put(m.Pick(6, 6, 6, 6, 6, 6, 4)<<28|m.Uint64()&0xfffffff, 4)
	put(m.Uint64(), 2)
	put(m.Pick(17, 17, 17, 17, 6, 58, 44, 0), 1)
	put(m.Pick(64, 64, 64, 2, 1, 0), 1)
	b = append(b, m.address()...)
	b = append(b, m.address()...)
	port := m.Pick(45100, 45100, 45101, 45101, 45101, 45102, 45103, 45105, 45105, 7)
	put(m.Pick(1000, 45100, 45101, port), 2)
	put(port, 2)
	put(m.Uint64(), 4)
	switch port {
	case 45100, 45103, 45105:
		put(m.Pick(0xb1fc, 0xb1fc, 0xb1fc, 0xb1fc, 0xb1fd), 2)
		put(m.Pick(rpcpacket.Version, rpcpacket.Version, rpcpacket.Version, rpcpacket.Version, 2), 1)
		put(m.Pick(1, 1, 2, 3, 4, 5, 6, 7, 0), 1)
		put(m.Pick(0, 0, 0, 4, 0x10, 0x20, 0xffff), 2)
		put(m.Uint64(), 2)
		put(0, 8)
		put(m.Pick(1, 2), 8)
		for range (rpcpacket.HeaderSize - 24) / 8 {
			put(m.Uint64(), 8)
		}
		header := b[len(b)-rpcpacket.HeaderSize:]
		binary.BigEndian.PutUint64(header[56:], m.Pick(0, 1<<36|1, 1<<36|2, m.Uint64()))
		binary.BigEndian.PutUint32(header[64:], uint32(m.Pick(1, 1, 1, 0)))             //nolint:gosec // small
		binary.BigEndian.PutUint32(header[68:], uint32(m.Pick(1, 1, 1, 0)))             //nolint:gosec // small
		binary.BigEndian.PutUint32(header[72:], uint32(m.Pick(0, 16, 17, 31, 1<<20+1))) //nolint:gosec // small
		binary.BigEndian.PutUint32(header[76:], uint32(m.Pick(0xffff, 0xffff, 0xffff, 0x1fffe)))
		header[94] = byte(m.Pick(0, 0, 0, 1, 2, 4, 5))
		binary.BigEndian.PutUint32(header[112:], uint32(m.Pick(0xffff, 0xffff, 0xffff, 0x1fffe)))
		for range header[94] {
			put(m.Pick(0, 0, 1<<36|1), 8)
			put(m.Pick(0, 0, 16, 17), 4)
			put(m.Pick(0, 1, 2, 4, 5), 1)
			put(0, 3)
			for range rpcpacket.ListRegions {
				put(1<<42|uint64(m.region()), 8)
			}
		}
	case 45101:
		put(m.Pick(0xb1fd, 0xb1fd, 0xb1fd, 0xb1fd, 0xb1fc), 2)
		put(m.Pick(dsmpacket.Version, dsmpacket.Version, dsmpacket.Version, dsmpacket.Version, 3), 1)
		put(m.Uint64(), 1)
		put(m.Pick(0x0100, 0x0100, 0x0100, 0x0200, 0x0300), 2)
		for range (dsmpacket.HeaderSize - 8) / 8 {
			put(m.Uint64(), 8)
		}
		header := b[len(b)-dsmpacket.HeaderSize:]
		for _, at := range []int{52, 68} { // incarnations
			binary.BigEndian.PutUint32(header[at:], uint32(m.Pick(1, 1, 1, 0))) //nolint:gosec // small
		}
		binary.BigEndian.PutUint64(header[72:], m.Pick(0, 0, 1<<36|1))
		binary.BigEndian.PutUint32(header[80:], uint32(m.Pick(0, 0, 16, 17))) //nolint:gosec // small
	}
	for range m.IntN(40) {
		b = append(b, byte(m.Uint64()))
	}
	// The kernel refuses to test frames that are shorter than their IP header;
	// the tests on real interfaces send those.
	if least := 18 + 40; m.IntN(8) == 0 {
		b = b[:least+m.IntN(len(b)-least)]
	}
	return b
}

// Entry is an entry of one of the program's tables.
func (m Bifrost) Entry() datapath.Entry {
	num := func(v uint64, n int) []byte {
		b := make([]byte, 8)
		binary.BigEndian.PutUint64(b, v)
		return b[8-n:]
	}
	hop := func() *datapath.Action {
		return &datapath.Action{Name: "BifrostIngress.to_hop", Params: [][]byte{num(m.Pick(0, 1, 2, 3, 4, 9), 2)}}
	}
	exact := func(b []byte) datapath.Match { return datapath.Match{Value: b} }
	lpm := func(b []byte, n ...uint64) datapath.Match {
		return datapath.Match{Value: b, PrefixLen: int(m.Pick(n...))}
	}
	e := datapath.Entry{}
	switch m.IntN(9) {
	case 0:
		e.Table = "BifrostIngress.identity"
		e.Match = []datapath.Match{exact([]byte{0, m.Port()}), lpm(m.address(), 128, 128, 64, 48, 0)}
		e.Action = &datapath.Action{Name: "BifrostIngress.known", Params: p4.Known(p4.Sender(m.Pick(1, 1, 2, 3)), uint16(m.Pick(0, 0, 1, 2, 4095)), uint32(m.Pick(1, 1, 0)))}
	case 1:
		e.Table, e.Action = "BifrostIngress.l3", hop()
		if m.IntN(2) == 0 {
			e.Action = &datapath.Action{Name: "BifrostIngress.to_node", Params: [][]byte{num(m.Pick(0, 1, 2, 3, 4, 9), 2), num(m.Pick(0, 1, 2, 4095), 2), {byte(m.IntN(4) / 3)}}}
		}
		e.Match = []datapath.Match{lpm(m.address(), 128, 64, 48, 0)}
	case 2:
		e.Table, e.Action = "BifrostIngress.dsm_home", hop()
		if m.IntN(2) == 0 {
			e.Action = &datapath.Action{Name: "BifrostIngress.to_copies", Params: [][]byte{num(m.Pick(0, 1, 2, 3), 2), num(m.Pick(0, 1, 2), 2)}}
		}
		e.Match = []datapath.Match{exact(m.address()[:6])}
	case 3:
		e.Table, e.Action = "BifrostIngress.rpc_route", hop()
		e.Match = []datapath.Match{exact(m.address()), exact(append(make([]byte, 15), byte(1+m.IntN(2)))),
			lpm([]byte{byte(m.Uint64())}, 0, 1, 2, 8)}
	case 4:
		e.Table, e.Action = "BifrostIngress.tcp_allowed", &datapath.Action{Name: "BifrostIngress.permit"}
		e.Match = []datapath.Match{exact([]byte{0, m.Port()}), exact(num(m.Pick(0, 1, 2, 3, 4), 2))}
	case 5:
		e.Table, e.Action = "BifrostIngress.rights.control_rule", &datapath.Action{Name: "BifrostIngress.rights.allocates", Params: [][]byte{{byte(m.IntN(2))}}}
		e.Match = []datapath.Match{exact(num(m.Pick(1, 2, 4095), 2)), exact([]byte{byte(m.IntN(2))}), exact(num(m.Pick(0, 1, 1<<14-1), 2))}
	case 6:
		e.Table, e.Action = "BifrostIngress.rights.block_rule", &datapath.Action{Name: "BifrostIngress.rights.may"}
		e.Match = []datapath.Match{exact(num(m.Pick(1, 2, 4095), 2)), exact(num(m.Pick(0, 1), 4))}
	case 7:
		e.Table = "BifrostEgress.replica"
		e.Match = []datapath.Match{exact(num(m.Pick(1, 2, 9), 2))}
		if e.Action = (&datapath.Action{Name: "NoAction"}); m.IntN(2) == 0 {
			e.Action = &datapath.Action{Name: "BifrostEgress.readdress", Params: [][]byte{num(m.Uint64()>>16, 6), num(m.Uint64()>>16, 6)}}
		}
	default:
		e.Table = "BifrostIngress.next_hop"
		e.Match = []datapath.Match{exact(num(m.Pick(0, 1, 2, 3, 4), 2))}
		e.Action = &datapath.Action{Name: "BifrostIngress.forward",
			Params: [][]byte{num(m.Pick(1, 2, 3, 4, 510, 511), 2), num(m.Uint64()>>16, 6), num(m.Uint64()>>16, 6)}}
	}
	return e
}
