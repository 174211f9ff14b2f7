package store

import (
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
	at := dsmpacket.Make(rackaddr.DefaultDSMPrefix, testMachine, 1<<superblock)
	f.Add(script(
		Request{To: machine.With(dsmpacket.OpAlloc, 6), Header: h(1, 64)},
		Request{To: at.With(dsmpacket.OpWrite, 0), Header: h(2, 3), Data: []byte("abc")},
		Request{To: at.With(dsmpacket.OpRead, 0), Header: h(3, 64)},
		Request{To: machine.With(dsmpacket.OpSettle, 0), Header: h(4, 2)},
		Request{To: at.With(dsmpacket.OpFree, 0), Header: h(5, 0)},
	))
	e := func(id, length uint64) dsmpacket.Header {
		h := h(id, length)
		h.Execution = control.ExecutionID{15: 7}
		return h
	}
	for command := range byte(4) {
		f.Add(append(script(
			Request{To: machine.With(dsmpacket.OpAlloc, 6), Header: h(1, 64)},
			Request{To: at.With(dsmpacket.OpWrite, 0), Header: e(2, 3), Data: []byte("abc")},
			Request{To: machine.With(dsmpacket.OpAlloc, 6), Header: e(3, 64)},
			Request{To: at.With(dsmpacket.OpFree, 0), Header: e(4, 0)},
		), 5, command, 7, 0, 2, 0))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		s := newTestStore(1 << 16)
		s.KeepUndo(1 << 14)
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
			a, drop := handle(s, &r)
			check(t, s, &r, &a, drop)
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

func check(t *testing.T, s *Store, r *Request, a *Answer, drop Drop) {
	if drop != NotDropped {
		return
	}
	if a.Header.Kind != dsmpacket.Reply || a.Header.Request != r.Header.Request || a.Header.Incarnation != r.Header.Incarnation {
		t.Fatalf("%+v answers %+v", a.Header, r.Header)
	}
	if r.To.Op() == dsmpacket.OpRead && a.Header.Status == fault.OK && uint64(len(a.Data)) != r.Header.Length {
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
