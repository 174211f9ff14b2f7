package store

import (
	"encoding/binary"
	"testing"

	"github.com/bifrost-rack/bifrost/dsm/packet"
	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
)

// FuzzHandle gives a store any sequence of requests: 16 bytes of address and one
// datagram each, behind a length byte. It must answer or drop each, and keep its
// books.
func FuzzHandle(f *testing.F) {
	machine := packet.Make(rackaddr.DefaultDSMPrefix, testMachine, 0)
	script := func(rs ...Request) (b []byte) {
		for _, r := range rs {
			d := append(r.Header.Append(append([]byte(nil), r.To[:]...)), r.Data...)
			b = append(append(b, byte(len(d))), d...)
		}
		return b
	}
	h := func(id, length uint64) packet.Header {
		return packet.Header{Kind: packet.Request, Request: id, Floor: 1, Incarnation: 1, Length: length}
	}
	at := packet.Make(rackaddr.DefaultDSMPrefix, testMachine, 1<<superblock)
	f.Add(script(
		Request{To: machine.With(packet.OpAlloc, 6), Header: h(1, 64)},
		Request{To: at.With(packet.OpWrite, 0), Header: h(2, 3), Data: []byte("abc")},
		Request{To: at.With(packet.OpRead, 0), Header: h(3, 64)},
		Request{To: machine.With(packet.OpSettle, 0), Header: h(4, 2)},
		Request{To: at.With(packet.OpFree, 0), Header: h(5, 0)},
	))
	f.Fuzz(func(t *testing.T, b []byte) {
		s := newTestStore(1 << 16)
		for len(b) > 0 {
			n := min(int(b[0]), len(b)-1)
			d := b[1 : 1+n]
			b = b[1+n:]
			if len(d) < 16 {
				continue
			}
			h, data, err := packet.Parse(d[16:])
			if err != nil {
				continue
			}
			r := Request{Node: rackaddr.Node(h.Branch % 4), To: packet.Pointer(d[:16]), Header: h, Data: data}
			a, drop := s.Handle(&r)
			check(t, s, &r, &a, drop)
		}
	})
}

func check(t *testing.T, s *Store, r *Request, a *Answer, drop Drop) {
	if drop != NotDropped {
		return
	}
	if a.Header.Kind != packet.Reply || a.Header.Request != r.Header.Request || a.Header.Incarnation != r.Header.Incarnation {
		t.Fatalf("%+v answers %+v", a.Header, r.Header)
	}
	if r.To.Op() == packet.OpRead && a.Header.Status == fault.OK && uint64(len(a.Data)) != r.Header.Length {
		t.Fatalf("read of %d bytes has %d", r.Header.Length, len(a.Data))
	}
	used := uint64(0)
	for _, reg := range s.regions.byBase {
		used += 1 << reg.class
	}
	if used != s.Used() || used > uint64(len(s.arena.mem)) {
		t.Fatalf("%d bytes in regions, %d counted", used, s.Used())
	}
}

// BenchmarkWrite64 is what the store itself costs a small write.
func BenchmarkWrite64(b *testing.B) {
	s := newTestStore(1 << 20)
	r := Request{Node: rackaddr.Node(1), Data: make([]byte, 64)}
	r.Header = packet.Header{Kind: packet.Request, Request: 1, Floor: 1, Incarnation: 1, Length: 64}
	r.To = packet.Make(rackaddr.DefaultDSMPrefix, testMachine, 0).With(packet.OpAlloc, 6)
	a, _ := s.Handle(&r)
	r.To = a.From.Bare().With(packet.OpWrite, 0)
	b.ReportAllocs()
	for b.Loop() {
		r.Header.Request++
		r.Header.Floor = r.Header.Request
		binary.BigEndian.PutUint64(r.Data, r.Header.Request)
		if a, drop := s.Handle(&r); drop != NotDropped || a.Header.Status != fault.OK {
			b.Fatal(a.Header.Status, drop)
		}
	}
}
