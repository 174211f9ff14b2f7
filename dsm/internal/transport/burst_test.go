package transport

import (
	"testing"

	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
)

var burstAt = dsmpacket.Make(rackaddr.DefaultDSMPrefix, 1, dsmpacket.IDOf(1, 1))

// start begins a transfer of n bytes on an endpoint whose window has twelve datagrams
// of 100 bytes, and returns what is sent.
func startBurst(t *testing.T, op dsmpacket.Op, n int) (*Endpoint, *Transfer, []Packet) {
	t.Helper()
	e := New(Config{Incarnation: 1, MaxData: 100, Window: 12 * (100 + overhead)})
	x := &Transfer{Op: op, Pointer: burstAt, Buf: make([]byte, n)}
	e.Start(0, x)
	return e, x, sent(e)
}

// sent takes what an endpoint sends.
func sent(e *Endpoint) []Packet {
	p := append([]Packet(nil), e.Ready().Send...)
	e.Clear()
	return p
}

// reply makes the answer to the i-th read of a burst.
func reply(p Packet, i uint64) (dsmpacket.Pointer, dsmpacket.Header, []byte) {
	h := p.Header
	h.Kind, h.More = dsmpacket.Reply, 0
	h.Request += i
	return p.To.Add(int64(i * h.Length)), h, make([]byte, h.Length)
}

// Four reads are one packet, the window never has more than twelve, and the next four
// are asked for when there is room for all of them.
func TestBurst(t *testing.T) {
	e, x, packets := startBurst(t, dsmpacket.OpRead, 1950)
	if len(packets) != 3 {
		t.Fatalf("%d packets, want 3", len(packets))
	}
	answered := 0
	for len(packets) > 0 {
		p := packets[0]
		packets = packets[1:]
		if want := p.To.Offset() - burstAt.Offset(); uint64(p.Header.More)+1 != min(4, max(1, (1950-want)/100)) {
			t.Errorf("a packet at %d for %d reads of %d bytes", want, p.Header.More+1, p.Header.Length)
		}
		for i := range uint64(p.Header.More) + 1 {
			from, h, data := reply(p, i)
			e.Receive(1000, from, &h, data)
			e.audit(t)
			answered++
			if done := len(e.Ready().Done) == 1; done != (answered == 20) {
				t.Fatalf("done after %d answers: %v", answered, done)
			}
			packets = append(packets, sent(e)...)
		}
	}
	if answered != 20 || x.N != 1950 || x.Status != fault.OK {
		t.Errorf("%d answers, %d bytes, %v", answered, x.N, x.Status)
	}
}

// What the switch or the machine refuses is asked for one by one, once.
func TestRefusedBurst(t *testing.T) {
	for _, kind := range []dsmpacket.Kind{dsmpacket.Nack, dsmpacket.Reply} {
		e, x, packets := startBurst(t, dsmpacket.OpRead, 400)
		h := packets[0].Header
		h.Kind, h.Status = kind, fault.BadRequest
		e.Receive(1000, burstAt.With(dsmpacket.OpRead), &h, nil)
		e.audit(t)
		again := sent(e)
		if len(packets) != 1 || h.More != 3 || len(again) != 4 {
			t.Fatalf("%d packets, then %d", len(packets), len(again))
		}
		e.Receive(1000, burstAt.With(dsmpacket.OpRead), &h, nil) // a duplicate
		if len(sent(e)) != 0 {
			t.Error("a refusal that comes twice is answered twice")
		}
		for i, p := range again {
			if p.Header.More != 0 {
				t.Fatal("a burst again")
			}
			from, h, data := reply(p, 0)
			if i == 2 {
				h.Status, data = fault.BadRequest, nil
			}
			e.Receive(2000, from, &h, data)
		}
		if len(e.Ready().Done) != 1 || x.N != 200 || x.Status != fault.BadRequest {
			t.Errorf("%d bytes, %v", x.N, x.Status)
		}
	}
}

// One reply acknowledges several writes, and only those that it names.
func TestJoinedAcknowledgement(t *testing.T) {
	e, x, packets := startBurst(t, dsmpacket.OpWrite, 600)
	if len(packets) != 6 {
		t.Fatalf("%d packets, want 6", len(packets))
	}
	from, h, _ := reply(packets[1], 0)
	h.More = 3
	wrong := h
	wrong.Length--
	e.Receive(1000, from, &wrong, nil)
	if e.Stats.Answered != 0 {
		t.Error("an acknowledgement of other lengths counts")
	}
	e.Receive(1000, from, &h, nil)
	e.audit(t)
	if e.Stats.Answered != 4 || x.open != 2 {
		t.Fatalf("%d answered, %d open", e.Stats.Answered, x.open)
	}
	for _, i := range []int{5, 0} {
		from, h, _ := reply(packets[i], 0)
		e.Receive(1000, from, &h, nil)
	}
	if len(e.Ready().Done) != 1 || x.N != 600 || x.Status != fault.OK {
		t.Errorf("%d bytes, %v", x.N, x.Status)
	}
}
