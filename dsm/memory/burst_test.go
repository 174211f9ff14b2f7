package memory

import (
	"bytes"
	"testing"

	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
	"github.com/bifrost-rack/bifrost/internal/fault"
)

// burst asks for several pieces from p on by one packet.
func (b *bench) burst(p dsmpacket.Pointer, length uint64, more uint8) dsmpacket.Header {
	b.t.Helper()
	b.next++
	h := dsmpacket.Header{Kind: dsmpacket.Request, Request: b.next, Floor: b.next, Incarnation: 1, Length: length, More: more}
	b.next += uint64(more)
	b.raw(p.With(dsmpacket.OpRead), h.Append(nil))
	return h
}

// One packet asks for several reads, and each is answered as if it had come alone.
func TestBurstOfReads(t *testing.T) {
	b := newBench(t, 1<<20)
	reg := b.alloc(1 << 12)
	data := make([]byte, 1<<12)
	for i := range data {
		data[i] = byte(i >> 6)
	}
	b.send(reg.Base.With(dsmpacket.OpWrite), uint64(len(data)), data)
	b.receive()
	for _, more := range []uint8{1, dsmpacket.MaxMore} {
		h := b.burst(reg.Base.Add(256), 200, more)
		for i := range uint64(more) + 1 {
			from, got, piece := b.receive()
			want := data[256+200*i:][:200]
			if got.Request != h.Request+i || got.More != 0 || got.Status != fault.OK || from.Bare() != reg.Base.Add(int64(256+200*i)) || !bytes.Equal(piece, want) {
				t.Errorf("answer %d of %d comes from %s: %+v", i, more+1, from, got)
			}
		}
	}
	if n := b.server.Metrics().BytesRead; n != 18*200 {
		t.Errorf("%d bytes read, says the server", n)
	}
}

// A burst is refused whole if it leaves its region: the switch has judged its first
// pointer only. Nothing but reads comes in bursts.
func TestBurstsStayInTheirRegion(t *testing.T) {
	b := newBench(t, 1<<20)
	reg := b.alloc(1 << 12)
	b.alloc(1 << 12)
	for _, c := range []struct {
		length uint64
		more   uint8
	}{{1 << 10, 4}, {1 << 12, 1}, {1 << 11, dsmpacket.MaxMore}, {1 << 20, 1}} {
		h := b.burst(reg.Base, c.length, c.more)
		if _, got, data := b.receive(); got.Status != fault.BadRequest || got.Request != h.Request || got.More != c.more || len(data) != 0 {
			t.Errorf("%d more of %d bytes: %+v with %d bytes", c.more, c.length, got, len(data))
		}
	}
	b.next++
	h := dsmpacket.Header{Kind: dsmpacket.Request, Request: b.next, Floor: b.next, Incarnation: 1, Length: 64, More: 1}
	b.raw(reg.Base.With(dsmpacket.OpWrite), append(h.Append(nil), make([]byte, 64)...))
	if _, got, _ := b.receive(); got.Status != fault.BadRequest {
		t.Errorf("a burst of writes: %+v", got)
	}
}
