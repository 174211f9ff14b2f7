package transport

import (
	"encoding/binary"
	"testing"
	"time"

	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
)

// FuzzReceive gives an endpoint with all kinds of transfers under way any
// sequence of datagrams and moments: a length byte, 16 bytes of source address
// and a datagram each; a length of 0 lets 15 ms pass, of 1 cancels a transfer.
// Whatever comes, its books must stay right, and nothing may be done twice.
func FuzzReceive(f *testing.F) {
	var seed []byte
	e, _ := busyEndpoint()
	for _, p := range e.Ready().Send {
		h := p.Header
		h.Kind = dsmpacket.Reply
		d := h.Append(append([]byte(nil), p.To[:]...))
		if p.To.Op() == dsmpacket.OpRead {
			d = append(d, make([]byte, h.Length)...)
		}
		seed = append(append(seed, byte(len(d))), d...)
		h.Kind, h.Status = dsmpacket.Nack, fault.PermissionDenied
		d = h.Append(append([]byte(nil), p.To[:]...))
		seed = append(append(append(seed, byte(len(d))), d...), 0, 1)
	}
	f.Add(seed)
	f.Fuzz(func(t *testing.T, b []byte) {
		e, transfers := busyEndpoint()
		done := map[*Transfer]bool{}
		now := time.Duration(0)
		for steps := 0; len(b) > 0 && steps < 200; steps++ {
			n := int(b[0])
			b = b[1:]
			switch {
			case n == 0:
				now += 15 * time.Millisecond
				e.Tick(now)
			case n == 1 && len(transfers) > 0:
				if x := transfers[0]; e.Cancel(now, x, fault.Canceled) == done[x] {
					t.Fatalf("done %v, but Cancel says otherwise", done[x])
				}
				done[transfers[0]] = true
				transfers = transfers[1:]
			case n > 16 && n <= len(b):
				if h, data, err := dsmpacket.Parse(b[16:n]); err == nil {
					e.Receive(now, dsmpacket.Pointer(b[:16]), &h, data)
				}
				b = b[n:]
			}
			for _, x := range e.Ready().Done {
				if done[x] || x.open != 0 || x.N > len(x.Buf) {
					t.Fatalf("done again, or not at all: %+v", x)
				}
				done[x] = true
			}
			e.Clear()
			e.audit(t)
		}
	})
}

// busyEndpoint returns an endpoint with transfers under way, whose requests
// stand in Ready.
func busyEndpoint() (*Endpoint, []*Transfer) {
	e := New(Config{Incarnation: 1, MaxData: 32, Window: 8 << 10})
	at := dsmpacket.Make(rackaddr.DefaultDSMPrefix, 1, dsmpacket.IDOf(1, 1))
	transfers := []*Transfer{
		{Op: dsmpacket.OpRead, Pointer: at, Buf: make([]byte, 40)},
		{Op: dsmpacket.OpWrite, Pointer: at, Buf: make([]byte, 40)},
		{Op: dsmpacket.OpAlloc, Pointer: at, Size: 64},
		{Op: dsmpacket.OpFree, Pointer: at},
		{Op: dsmpacket.OpWrite, Pointer: dsmpacket.Make(rackaddr.DefaultDSMPrefix, 2, dsmpacket.IDOf(0, 1)), Buf: make([]byte, 900)},
	}
	for _, t := range transfers {
		e.Start(0, t)
	}
	return e, transfers
}

// audit checks that the endpoint's sums are those of its requests.
func (e *Endpoint) audit(t *testing.T) {
	reading, waiting := 0, 0
	for _, p := range e.active {
		inflight, listed := 0, 0
		if p.waits {
			waiting++
		}
		p.each(func(r *request) {
			inflight += r.cost
			if r.charged {
				reading += r.cost
			}
			if r.lane == nil && r.settler == nil {
				t.Fatalf("request %d will neither be sent nor resolved", r.id)
			}
			if r.lane != nil && r.deadline < e.wake {
				t.Fatalf("request %d is due at %v, the endpoint wakes at %v", r.id, r.deadline, e.wake)
			}
			if r.lane != nil {
				listed++
			}
		})
		if inflight != p.inflight || p.floor > p.next || p.next-p.floor > uint64(len(p.ring)) {
			t.Fatalf("machine %d: %d bytes charged, sum %d; floor %d, next %d", p.machine, p.inflight, inflight, p.floor, p.next)
		}
		for _, l := range []*lane{&p.plain, &p.held} {
			for r := l.oldest; r != nil; r = r.next {
				listed--
			}
		}
		if listed != 0 {
			t.Fatalf("machine %d: %d requests on no list", p.machine, listed)
		}
	}
	for _, p := range e.reads.waiting {
		if !p.waits {
			t.Fatalf("machine %d is listed, but does not wait", p.machine)
		}
	}
	if reading != e.reads.used || waiting != len(e.reads.waiting) {
		t.Fatalf("%d bytes of reads charged, sum %d; %d machines wait, %d listed", e.reads.used, reading, waiting, len(e.reads.waiting))
	}
}

// BenchmarkRead64 is what the endpoint itself costs a small read, both ways.
func BenchmarkRead64(b *testing.B) {
	e := New(Config{Incarnation: 1, MaxData: 4096})
	t := &Transfer{}
	data := make([]byte, 64)
	b.ReportAllocs()
	for b.Loop() {
		*t = Transfer{Op: dsmpacket.OpRead, Pointer: dsmpacket.Make(rackaddr.DefaultDSMPrefix, 1, dsmpacket.IDOf(1, 1)), Buf: data}
		e.Start(0, t)
		p := e.Ready().Send[0]
		e.Clear()
		p.Header.Kind = dsmpacket.Reply
		binary.BigEndian.PutUint64(data, p.Header.Request)
		e.Receive(1000, p.To, &p.Header, data)
		if len(e.Ready().Done) != 1 || t.Status != fault.OK {
			b.Fatal(t.Status)
		}
		e.Clear()
	}
}
