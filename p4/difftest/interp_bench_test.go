package difftest_test

import (
	"encoding/binary"
	"fmt"
	"testing"

	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
	"github.com/bifrost-rack/bifrost/p4"
	"github.com/bifrost-rack/bifrost/p4switch/datapath"
	"github.com/bifrost-rack/bifrost/p4switch/interp"
	"github.com/bifrost-rack/bifrost/p4switch/v1model"
)

// rack is a switch with Bifröst's own program: a compute blade at port 1, a
// memory blade at port 2, and so many access rules.
type rack struct {
	*interp.Executor
	tb testing.TB
}

// newRack is a rack where the node at port 1 has some regions.
func newRack(tb testing.TB, regions int) rack {
	tb.Helper()
	prog, err := v1model.Load(p4.JSON)
	if err != nil {
		tb.Fatal(err)
	}
	x, err := interp.New(prog, interp.Config{CPUPort: p4.CPUPort})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = x.Close() })
	r := rack{x, tb}
	for port := byte(1); port <= 2; port++ {
		r.add("identity", "known", p4.Known([]p4.Sender{p4.Node, p4.MemoryServer}[port-1], []uint16{1, 0}[port-1], 0), exact(0, port), prefix(address(port), 128))
		r.add("l3", "to_hop", [][]byte{{0, port}}, prefix(address(port), 128))
		r.add("next_hop", "forward", [][]byte{{0, port}, mac(port), mac(9)}, exact(0, port))
	}
	r.add("dsm_home", "to_hop", [][]byte{{0, 2}}, exact(pointer(0, 0)[:6]...))
	r.set("switch_state", 1, 1) // registers are as they should be
	for i := range regions {
		r.set("words", i, 1<<32|1<<20)
	}
	return r
}

func (r rack) add(table, action string, params [][]byte, match ...datapath.Match) {
	r.tb.Helper()
	a := datapath.Action{Name: "BifrostIngress." + action, Params: params}
	e := datapath.Entry{Table: "BifrostIngress." + table, Match: match, Action: &a}
	if err := r.Apply(datapath.Insert, e); err != nil {
		r.tb.Fatal(err)
	}
}

func (r rack) set(register string, i int, v uint64) {
	r.tb.Helper()
	b := binary.BigEndian.AppendUint64(nil, v)
	if register == "words" {
		b = b[1:] // 54 bits
	}
	if err := r.SetRegister("BifrostIngress.rights."+register, i, b); err != nil {
		r.tb.Fatal(err)
	}
}

func exact(v ...byte) datapath.Match        { return datapath.Match{Value: v} }
func prefix(v []byte, n int) datapath.Match { return datapath.Match{Value: v, PrefixLen: n} }
func mac(n byte) []byte                     { return []byte{2, 0, 0, 0, 0, n} }
func address(n byte) []byte                 { return []byte{0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, n} }

func pointer(op dsmpacket.Op, id dsmpacket.RegionID) []byte {
	p := dsmpacket.Make(0xdd, 7, id).With(op)
	return p[:]
}

// packet is Ethernet, IPv6 and UDP with a payload.
func packet(src, dst []byte, port uint16, payload []byte) []byte {
	b := append(append(mac(9), mac(1)...), 0x86, 0xdd, 0x60, 0, 0, 0)
	b = binary.BigEndian.AppendUint16(b, uint16(8+len(payload)))
	b = append(append(append(b, 17, 64), src...), dst...)
	b = binary.BigEndian.AppendUint16(b, port)
	b = binary.BigEndian.AppendUint16(b, port)
	b = binary.BigEndian.AppendUint16(b, uint16(8+len(payload)))
	return append(append(b, 0, 0), payload...)
}

// read is a memory read of a region.
func read(slot int) []byte {
	dsm := make([]byte, dsmpacket.HeaderSize)
	copy(dsm, []byte{0xb1, 0xfd, dsmpacket.Version, 0, 1, 0})
	return packet(address(1), pointer(dsmpacket.OpRead, dsmpacket.IDOf(uint32(slot), 1)), 45101, dsm)
}

func BenchmarkBifrost(b *testing.B) {
	const regions = 10000
	l3 := packet(address(1), address(2), 9, make([]byte, 64))
	big := packet(address(1), address(2), 9, make([]byte, 60000))
	denied := read(regions)
	for _, c := range []struct {
		name  string
		frame []byte
		out   datapath.Port
	}{{"l3", l3, 2}, {"l3-60kB", big, 2}, {"read", read(regions / 2), 2}, {"denied", denied, 1}} {
		b.Run(c.name, func(b *testing.B) {
			r := newRack(b, regions)
			var out datapath.Port
			frame := make([]byte, len(c.frame))
			emit := func(p datapath.Port, _ []byte) { out = p }
			b.ReportAllocs()
			for b.Loop() {
				copy(frame, c.frame[:min(len(c.frame), 256)]) // the switch rewrites headers in place
				r.Process(1, frame, emit)
			}
			if out != c.out {
				b.Fatalf("went to port %d, not %d", out, c.out)
			}
		})
	}
}

func BenchmarkBifrostParallel(b *testing.B) {
	r := newRack(b, 10000)
	b.RunParallel(func(pb *testing.PB) {
		want, frame := read(5000), read(5000)
		for pb.Next() {
			copy(frame, want)
			r.Process(1, frame, nil)
		}
	})
}

func BenchmarkApply(b *testing.B) {
	r := newRack(b, 0)
	i := 0
	for b.Loop() {
		r.add("rights.control_rule", "rights.allocates", [][]byte{{1}}, exact(byte(i>>22&15), byte(i>>14)), exact(7), exact(byte(i>>8&63), byte(i)))
		if i++; i%(1<<15) == 0 {
			b.StopTimer()
			r = newRack(b, 0) // the table is not full
			b.StartTimer()
		}
	}
	if got := r.Stats(); got.In != 0 {
		b.Fatal(fmt.Sprint(got))
	}
}
