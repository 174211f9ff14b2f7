//go:build linux

package ebpf

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"os"
	"testing"

	"github.com/bifrost-rack/bifrost/p4switch/datapath"
	"github.com/bifrost-rack/bifrost/p4switch/v1model"
)

// load loads one of the test programs.
func load(t testing.TB, path string) *v1model.Program {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	p, err := v1model.Load(data)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// routed is a frame for the router.
func routed(m maker) []byte {
	var b []byte
	put := func(v uint64, n int) {
		for i := n - 1; i >= 0; i-- {
			b = append(b, byte(v>>(8*i)))
		}
	}
	put(m.Pick(1, 2, 3), 6)
	put(m.Uint64(), 6)
	kind := m.Pick(0x0800, 0x0800, 0x0800, 0x1234, 0x1234, 0x1235, 0x88b5)
	if m.IntN(3) == 0 {
		put(0x8100, 2)
		put(m.Pick(0, 1)<<13|m.Pick(0, 5, 100, 0xfff), 2)
	}
	put(kind, 2)
	switch kind {
	case 0x0800:
		b = append(b, ipv4(m)...)
	case 0x1234, 0x1235:
		for range 4 {
			put(m.Pick(0, 1, m.Uint64()), 8)
		}
		put(m.Pick(0, 100, 5000, 0x8000, 0xfff0), 2)
		put(m.Uint64(), 2)
		put(m.Uint64(), 8)
		put(m.Uint64(), 1)
		put(m.Uint64(), 4)
		put(m.Pick(0xffff, m.Uint64()), 2)
	}
	for range m.IntN(60) {
		b = append(b, byte(m.Uint64()))
	}
	if m.IntN(6) == 0 && len(b) > 40 {
		b = b[:40+m.IntN(len(b)-40)]
	}
	for len(b) < 40 {
		b = append(b, 0)
	}
	return b
}

// ipv4 is a packet, its checksum mostly right.
func ipv4(m maker) []byte {
	b := make([]byte, 24)
	for i := range b {
		b[i] = byte(m.Uint64())
	}
	b[0] = byte(m.Pick(0x45, 0x45, 0x45, 0x45, 0x46, 0x65))
	b[8] = byte(m.Pick(0, 1, 64, 255))
	b[9] = byte(m.Pick(17, 6, 0xfd, 0xfd))
	copy(b[12:], []byte{10, 0, 0, 1, 10, byte(m.IntN(3)), 0, byte(m.IntN(3))})
	b[10], b[11] = 0, 0
	if m.IntN(5) > 0 {
		sum := 0
		for i := 0; i < 20; i += 2 {
			sum += int(binary.BigEndian.Uint16(b[i:]))
		}
		sum = sum>>16 + sum&0xffff
		sum = sum>>16 + sum&0xffff
		binary.BigEndian.PutUint16(b[10:], uint16(^sum))
	}
	return b
}

func routerEntry(m maker) datapath.Entry {
	num := func(v uint64, n int) []byte { return binary.BigEndian.AppendUint64(nil, v)[8-n:] }
	act := func(name string, params ...[]byte) *datapath.Action {
		return &datapath.Action{Name: name, Params: params}
	}
	port := func() []byte { return num(m.Pick(1, 2, 3, 4, 511), 2) }
	switch m.IntN(4) {
	case 0:
		do := []*datapath.Action{act("I.allow", num(uint64(m.IntN(4)), 1)), act("I.allow", num(1, 1)), act("I.drop")}[m.IntN(3)]
		return datapath.Entry{Table: "I.port_vlan", Action: do, Match: []datapath.Match{
			{Value: num(m.Pick(1, 2, 3), 2)}, {Value: num(m.Pick(0, 1), 1)}, {Value: num(m.Pick(0, 5, 100, 0xfff), 2), PrefixLen: m.IntN(13)},
		}}
	case 1:
		do := []*datapath.Action{
			act("I.hop", num(m.Uint64()>>16, 6), port()), act("I.encap", num(m.Uint64(), 2), port()), act("I.decap", port()), act("I.drop"),
		}[m.IntN(4)]
		return datapath.Entry{Table: "I.route", Action: do, Match: []datapath.Match{
			{Value: []byte{10, byte(m.IntN(3)), 0, byte(m.IntN(3))}, PrefixLen: int(m.Pick(0, 8, 15, 16, 32))},
		}}
	case 2:
		return datapath.Entry{
			Table: "I.sums", Action: act("I.compute", num(m.Uint64(), 1), append(num(m.Uint64(), 8), num(m.Uint64(), 8)...)),
			Match: []datapath.Match{{Value: append(num(m.Pick(0, 1), 8), num(m.Pick(0, 1), 8)...)}, {Value: num(m.Uint64()&0x7ff, 2), PrefixLen: m.IntN(4)}},
		}
	default:
		do := []*datapath.Action{act("E.rewrite", num(m.Uint64()>>16, 6)), act("E.drop")}[m.IntN(2)]
		return datapath.Entry{Table: "E.leave", Match: []datapath.Match{{Value: num(m.Pick(2, 3, 4), 2)}}, Action: do}
	}
}

func TestDifferential_Router(t *testing.T) {
	prog := load(t, "testdata/router.json")
	for n := range *rounds {
		s := *seed + uint64(n)
		replay := fmt.Sprintf("go test ./p4switch/ebpf -run TestDifferential_Router -seed %d -rounds 1", s)
		p := newPair(t, prog, 0)
		m := maker{Rand: rand.New(rand.NewPCG(s, 1))}
		var entries []datapath.Entry
		for range 60 {
			e := routerEntry(m)
			if p.Update(t, datapath.Insert, e) {
				entries = append(entries, e)
			} else {
				p.Update(t, datapath.Modify, e)
			}
		}
		for range 300 {
			p.Check(t, datapath.Port(m.Pick(1, 2, 3)), routed(m), replay)
		}
		p.Counters(t, append(entries, datapath.Entry{Table: "I.route"}), replay)
	}
}
