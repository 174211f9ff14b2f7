package interp_test

import (
	"encoding/binary"
	"fmt"
	"testing"

	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
	"github.com/bifrost-rack/bifrost/p4"
	"github.com/bifrost-rack/bifrost/p4/datapath"
	"github.com/bifrost-rack/bifrost/p4/interp"
	"github.com/bifrost-rack/bifrost/p4/v1model"
)

// rack is a switch with Bifröst's own program: a compute blade at port 1, a
// memory blade at port 2, and so many access rules.
type rack struct {
	*interp.Executor
	tb testing.TB
}

func newRack(tb testing.TB, rules int) rack {
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
		r.add("identity", "known", p4.Known([]p4.Sender{p4.Node, p4.MemoryServer}[port-1], 0, 0), exact(0, port), prefix(address(port), 128))
		r.add("l3", "to_hop", [][]byte{{0, port}}, prefix(address(port), 128))
		r.add("next_hop", "forward", [][]byte{{0, port}, mac(port), mac(9)}, exact(0, port))
	}
	r.add("dsm_home", "to_hop", [][]byte{{0, 2}}, exact(pointer(0, 0)[:6]...))
	for i := range rules {
		r.add("dsm_access", "permit", nil, exact(address(1)...), exact(2), exact(7), exact(regionOf(i)...))
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

func exact(v ...byte) datapath.Match        { return datapath.Match{Value: v} }
func prefix(v []byte, n int) datapath.Match { return datapath.Match{Value: v, PrefixLen: n} }
func mac(n byte) []byte                     { return []byte{2, 0, 0, 0, 0, n} }
func address(n byte) []byte                 { return []byte{0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, n} }

// regionOf is the key of slot i's first region.
func regionOf(i int) []byte {
	return binary.BigEndian.AppendUint64(nil, uint64(dsmpacket.IDOf(uint32(i), 1)))[2:]
}

func pointer(op dsmpacket.Op, id dsmpacket.RegionID) []byte {
	p := dsmpacket.Make(0xdd, 7, id).With(op)
	return p[:]
}

// packet is Ethernet, IPv6 and UDP with a payload.
func packet(src, dst []byte, port uint16, payload []byte) []byte {
	b := append(append(mac(9), mac(1)...), 0x86, 0xdd, 0x60, 0, 0, 0)
	b = binary.BigEndian.AppendUint16(b, uint16(8+len(payload)))
	b = append(append(append(b, 17, 64), src...), dst...)
	b = binary.BigEndian.AppendUint16(b, 4000)
	b = binary.BigEndian.AppendUint16(b, port)
	b = binary.BigEndian.AppendUint16(b, uint16(8+len(payload)))
	return append(append(b, 0, 0), payload...)
}

// read is a memory read of the region of a rule.
func read(rule int) []byte {
	dsm := make([]byte, 68)
	copy(dsm, []byte{0xb1, 0xfd, dsmpacket.Version, 0, 1, 0})
	return packet(address(1), pointer(dsmpacket.OpRead, dsmpacket.IDOf(uint32(rule), 1)), 45101, dsm)
}

func BenchmarkBifrost(b *testing.B) {
	const rules = 10000
	l3 := packet(address(1), address(2), 9, make([]byte, 64))
	big := packet(address(1), address(2), 9, make([]byte, 60000))
	denied := read(rules)
	for _, c := range []struct {
		name  string
		frame []byte
		out   datapath.Port
	}{{"l3", l3, 2}, {"l3-60kB", big, 2}, {"read", read(rules / 2), 2}, {"denied", denied, 1}} {
		b.Run(c.name, func(b *testing.B) {
			r := newRack(b, rules)
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
		r.add("dsm_access", "permit", nil, exact(address(1)...), exact(2), exact(7), exact(regionOf(i)...))
		i++
	}
	if got := r.Stats(); got.In != 0 {
		b.Fatal(fmt.Sprint(got))
	}
}
