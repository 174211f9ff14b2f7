package store

import (
	"bytes"
	"net/netip"
	"testing"

	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
)

// FuzzHandle gives a store any sequence of requests: 16 bytes of address and one
// datagram each, behind a length byte; what is shorter is a word about an
// execution. It must answer or drop each, and keep its books.
func FuzzHandle(f *testing.F) {
	machine := dsmpacket.Make(rackaddr.DefaultDSMPrefix, testMachine, 0)
	script := func(rs ...Request) (b []byte) {
		for _, r := range rs {
			d := append(r.Header.Append(append([]byte(nil), r.To[:]...)), r.Data...)
			b = append(append(b, byte(len(d))), d...)
		}
		return b
	}
	h := func(id, length uint64) dsmpacket.Header {
		return dsmpacket.Header{Kind: dsmpacket.Request, Request: id, Floor: 1, Incarnation: 1, Length: length}
	}
	slot := func(n uint32) dsmpacket.Pointer {
		return dsmpacket.Make(rackaddr.DefaultDSMPrefix, testMachine, dsmpacket.IDOf(dsmpacket.BatchSlots+n, 1))
	}
	at := slot(0)
	f.Add(script(
		Request{To: slot(0).With(dsmpacket.OpAlloc), Header: h(1, 64)},
		Request{To: at.With(dsmpacket.OpWrite), Header: h(2, 3), Data: []byte("abc")},
		Request{To: at.With(dsmpacket.OpRead), Header: h(3, 64)},
		Request{To: machine.With(dsmpacket.OpSettle), Header: h(4, 2)},
		Request{To: at.With(dsmpacket.OpFree), Header: h(5, 0)},
	))
	more := func(id, length uint64) dsmpacket.Header {
		h := h(id, length)
		h.More = 3
		return h
	}
	f.Add(script( // 64 KiB, of which an owner may have seven ninths
		Request{To: slot(0).With(dsmpacket.OpAlloc), Header: h(1, 1<<15)},
		Request{To: slot(1).With(dsmpacket.OpAlloc), Header: h(2, 1<<14)},
		Request{To: slot(2).With(dsmpacket.OpAlloc), Header: h(3, 1<<13)},
	))
	f.Add(script(
		Request{To: slot(0).With(dsmpacket.OpAlloc), Header: h(1, 64)},
		Request{To: at.With(dsmpacket.OpWrite), Header: h(2, 3), Data: []byte("abc")},
		Request{To: at.With(dsmpacket.OpRead), Header: more(3, 16)},
		Request{To: at.With(dsmpacket.OpRead), Header: more(3, 0)},
		Request{To: at.With(dsmpacket.OpRead), Header: more(3, 17)},
		Request{To: at.With(dsmpacket.OpWrite), Header: more(2, 3), Data: []byte("abc")},
		Request{To: at.With(dsmpacket.OpWrite), Header: h(2, 3), Data: []byte("abd")},
		Request{To: machine.With(dsmpacket.OpSettle), Header: h(4, 2)},
	))
	e := func(id, length uint64) dsmpacket.Header {
		h := h(id, length)
		h.Execution = control.ExecutionID{15: 7}
		return h
	}
	for command := range byte(4) {
		f.Add(append(script(
			Request{To: slot(0).With(dsmpacket.OpAlloc), Header: h(1, 64)},
			Request{To: at.With(dsmpacket.OpWrite), Header: e(2, 3), Data: []byte("abc")},
			Request{To: slot(1).With(dsmpacket.OpAlloc), Header: e(3, 64)},
			Request{To: at.With(dsmpacket.OpFree), Header: e(4, 0)},
		), 5, command, 7, 0, 2, 0))
	}
	f.Add(script(
		Request{To: at.With(dsmpacket.OpSlots), Header: h(1, dsmpacket.SlotsSize)},
		Request{To: at.With(dsmpacket.OpSlots), Header: h(2, 64)},
		Request{To: at.With(dsmpacket.OpSlots), Header: more(3, dsmpacket.SlotsSize)},
		Request{To: machine.With(dsmpacket.OpSlots), Header: h(4, dsmpacket.SlotsSize)},
	))
	f.Fuzz(func(t *testing.T, b []byte) {
		s := sharedStore(1<<16, 1000)
		s.KeepUndo(1 << 14)
		for i := range uint32(4) {
			if err := s.Grant(control.Grant{Batches: []control.BatchOf{{Batch: i + 1, Node: rackaddr.Node(uint64(i))}}}); err != nil {
				t.Fatal(err)
			}
		}
		for len(b) > 0 {
			n := min(int(b[0]), len(b)-1)
			d := b[1 : 1+n]
			b = b[1+n:]
			if len(d) < 16 {
				command(s, d)
				checkUndo(t, s)
				continue
			}
			h, data, err := dsmpacket.Parse(d[16:])
			if err != nil {
				continue
			}
			r := Request{Node: rackaddr.Node(h.Branch % 4), To: dsmpacket.Pointer(d[:16]), Header: h, Data: data}
			again := s.record(&r, h.Request) != nil
			a, drop := handle(s, &r)
			check(t, s, &r, &a, drop, again)
			checkUndo(t, s)
		}
	})
}

// command commits a run of an execution, rolls it back, forsakes a node, or limits the undo.
func command(s *Store, d []byte) {
	if len(d) < 2 {
		return
	}
	run := control.Run{Execution: control.ExecutionID{15: d[1]}}
	says := uint32(0)
	if len(d) > 4 {
		run.Node, run.Incarnation, run.Main, run.Checkpoint = rackaddr.Node(uint64(d[2]%4)), uint32(d[3]/2), uint64(d[4]%4), uint32(d[4]/4)
		says = run.Incarnation + uint32(d[3]%2)
	}
	switch d[0] % 4 {
	case 0:
		s.Commit(run, says)
	case 1:
		s.Rollback(run, says)
	case 2:
		s.KeepUndo(uint64(d[1]) << 8)
	case 3:
		s.Fence(control.Fence{Node: run.Node, Incarnation: run.Incarnation, Forsaken: d[1]%2 == 0})
	}
}

// check says what is wrong with the answer to a request: every field of its header, the
// datagrams that it takes, and the store's books. A request that came again has its answer
// from the client's window.
func check(t *testing.T, s *Store, r *Request, a *Answer, drop Drop, again bool) {
	used := uint64(0)
	for _, reg := range s.regions.byID {
		used += 1 << reg.class
	}
	if used != s.Used() || used > uint64(len(s.arena.mem)) {
		t.Fatalf("%d bytes in regions, %d counted", used, s.Used())
	}
	checkCharges(t, s)
	if drop != NotDropped {
		return
	}
	want := r.Header
	want.Kind, want.Mirror = dsmpacket.Reply, s.mirror
	want.Status, want.Length = a.Header.Status, 0
	if want.Flags = 0; a.Header.Status == fault.NoSpace && s.record(r, r.Header.Request) != nil {
		want.Flags = s.record(r, r.Header.Request).why
	}
	from, done, op := r.To, a.Header.Status == fault.OK, r.To.Op()
	switch {
	case op == dsmpacket.OpSettle:
		want.Flags, want.Length = a.Header.Flags&(dsmpacket.FlagApplied|dsmpacket.FlagFinal|dsmpacket.FlagNoted), a.Header.Length
		valid := r.Header.More == 0 && !again && r.Header.Length < r.Header.Request
		if about := s.record(r, r.Header.Length); valid && about != nil && !about.dead &&
			(want.Flags&dsmpacket.FlagApplied == 0 || want.Length != about.length || want.Status != about.status) {
			t.Fatalf("%+v says of %+v", a.Header, *about)
		}
	case (op == dsmpacket.OpRead || op == dsmpacket.OpSlots) && done:
		want.Length = r.Header.Length
	case done:
		rec := s.record(r, r.Header.Request)
		if rec == nil || rec.status != fault.OK || rec.op != op {
			t.Fatalf("%+v has the record %+v", a.Header, rec)
		}
		want.Length = rec.length
		if op == dsmpacket.OpFree && rec.length != 0 || op != dsmpacket.OpFree && !again && rec.length != r.Header.Length {
			t.Fatalf("%+v has the record %+v", r.Header, *rec)
		}
	}
	if a.Header != want || a.From != from {
		t.Fatalf("%+v is answered with\n%+v, want\n%+v\nfrom %v, want %v", r.Header, a.Header, want, a.From, from)
	}
	if op == dsmpacket.OpWrite && done && !again {
		if reg, at, _ := s.find(from, want.Length); reg == nil || !bytes.Equal(reg.view(at, want.Length), r.Data) {
			t.Fatalf("%q is not where %+v wrote it", r.Data, r.Header)
		}
	}
	checkDatagrams(t, s, r, a)
}

// checkDatagrams: a read that was carried out has a datagram for each request that it stood
// for, with the bytes that lie there. Every other answer is one datagram without data, and
// no answer says that other requests were carried out.
func checkDatagrams(t *testing.T, s *Store, r *Request, a *Answer) {
	n := uint64(0)
	read := r.To.Op() == dsmpacket.OpRead && a.Header.Status == fault.OK
	for d := range a.Datagrams() {
		want, from, data := a.Header, a.From, []byte(nil)
		if read {
			want.Request, want.More, from = want.Request+n, 0, from.Add(int64(n*want.Length))
			reg, at, status := s.find(from, want.Length)
			if status != fault.OK {
				t.Fatalf("%+v reads %v: %v", r.Header, from, status)
			}
			data = reg.view(at, want.Length)
		}
		if r.To.Op() == dsmpacket.OpSlots && a.Header.Status == fault.OK {
			if data = a.Data; len(data) != dsmpacket.SlotsSize {
				t.Fatalf("%d bytes of slots", len(data))
			}
		}
		if d.Header != want || d.From != from || !bytes.Equal(d.Data, data) {
			t.Fatalf("datagram %d to %+v is\n%+v with %d bytes from %v, want\n%+v with %d from %v", n, r.Header, d.Header, len(d.Data), d.From, want, len(data), from)
		}
		n++
	}
	if want := uint64(r.Header.More) + 1; read && n != want || !read && n != 1 {
		t.Fatalf("%d datagrams answer %+v with %+v", n, r.Header, a.Header)
	}
	if !read && a.Header.More != 0 && a.Header.Status == fault.OK {
		t.Fatalf("%+v says that more was done than %+v", a.Header, r.Header)
	}
}

// record is that of a request of the client that asks, nil if there is none.
func (s *Store) record(r *Request, id uint64) *record {
	c := s.clients.byNode[r.Node]
	if c == nil || c.incarnation != r.Header.Incarnation {
		return nil
	}
	return c.window.find(id)
}

// checkCharges checks that each region is charged to its owner as long as that has the region's batch, and to nobody else.
func checkCharges(t interface{ Fatalf(string, ...any) }, s *Store) {
	bytes, regions := map[netip.Addr]uint64{}, map[netip.Addr]uint64{}
	sum := uint64(0)
	for _, reg := range s.regions.byID {
		if b := s.batches.of[reg.id.Batch()]; b != nil && b.node == reg.owner {
			bytes[reg.owner] += 1 << reg.class
			regions[reg.owner]++
			sum += 1 << reg.class
		}
	}
	for node, n := range bytes {
		if s.quotas.bytes.Held(node) != n || s.quotas.regions.Held(node) != regions[node] {
			t.Fatalf("%s is charged with %d bytes and %d regions, want %d and %d", node, s.quotas.bytes.Held(node), s.quotas.regions.Held(node), n, regions[node])
		}
	}
	if s.quotas.bytes.Used() != sum {
		t.Fatalf("%d bytes are charged, want %d", s.quotas.bytes.Used(), sum)
	}
}
