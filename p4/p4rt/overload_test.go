package p4rt

import (
	"bytes"
	"testing"
	"testing/synctest"
	"time"

	p4v1 "github.com/p4lang/p4runtime/go/p4/v1"
	"google.golang.org/protobuf/proto"
)

// A controller that stops reading its stream holds up nobody: what finds no room
// is dropped and counted, and nothing is reordered.
func TestControllerThatStopsReading(t *testing.T) {
	b := newBench(t)
	c := b.dial()
	c.send(arbitration(1))
	select {
	case <-c.in:
	case <-time.After(10 * time.Second):
		t.Fatal("no arbitration update")
	}
	c.election = id128(1)
	c.commit(testInfo(t))
	frame := func(i int) []byte {
		return append([]byte{0, 0, byte(i >> 16), byte(i >> 8), byte(i)}, bytes.Repeat([]byte{1}, 1<<14)...)
	}
	c.pause()
	sink := b.fakes.last(t).sink
	const n = 6000
	start := time.Now()
	for i := range n {
		sink.PacketIn(frame(i))
	}
	if d := time.Since(start); d > 20*time.Second {
		t.Errorf("the packet path took %v", d)
	}
	drops := b.srv.Stats().PacketInDrops
	if drops == 0 || drops > n-100 {
		t.Fatalf("%d of %d packets dropped", drops, n)
	}
	c.resume()
	last := -1
	for range n - drops {
		select {
		case m := <-c.in:
			p := m.GetPacket().GetPayload()
			if i := int(p[0])<<16 | int(p[1])<<8 | int(p[2]); i <= last {
				t.Fatalf("packet %d after packet %d", i, last)
			} else {
				last = i
			}
		case <-time.After(10 * time.Second):
			t.Fatalf("packet after %d is missing", last)
		}
	}
}

// A stream message may be lost for want of room, an arbitration notice may not.
func TestSender_NoticesAreNeverDropped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var sent []*p4v1.StreamMessageResponse
		s := newSender(func(m *tracked) error {
			m.sender.inflight.Add(int64(proto.Size(m.msg)))
			sent = append(sent, m.msg)
			return nil
		})
		ctx := t.Context()
		go s.drain(ctx)
		big := &p4v1.StreamMessageResponse{Update: &p4v1.StreamMessageResponse_Packet{Packet: &p4v1.PacketIn{Payload: make([]byte, 1<<16)}}}
		if !s.offer(big, 1<<16) || len(sent) != 1 {
			t.Fatal("the first message has not gone out at once")
		}
		taken := 0
		for s.offer(big, 1<<16) {
			taken++
		}
		if taken != maxBacklogBytes>>16 || s.dropped.Load() != 1 {
			t.Errorf("%d messages queued, %d dropped", taken, s.dropped.Load())
		}
		for i := range 3 {
			s.notify(&p4v1.MasterArbitrationUpdate{DeviceId: uint64(i)})
		}
		synctest.Wait()
		if len(sent) != 1 {
			t.Fatalf("%d messages sent into a full window", len(sent))
		}
		for len(sent) < taken+2 {
			s.written(int(s.inflight.Load()))
			synctest.Wait()
		}
		s.written(int(s.inflight.Load()))
		synctest.Wait()
		if n := len(sent); n != taken+2 || sent[n-1].GetArbitration().GetDeviceId() != 2 {
			t.Errorf("%d messages, the last is %v", n, sent[n-1])
		}
		if s.bytes != 0 || len(s.backlog) != 0 || s.waiting.Load() {
			t.Errorf("%d bytes, %d messages left", s.bytes, len(s.backlog))
		}
	})
}

// The bytes of a message are given back when gRPC has written it: the count that
// the sender relies on.
func TestSender_CountsBytesUnderWay(t *testing.T) {
	configured(t, func(b *bench, c *controller) {
		for range 100 {
			b.fakes.last(t).sink.PacketIn(make([]byte, 1000))
		}
		for range 100 {
			c.next()
		}
		synctest.Wait()
		for _, p := range b.srv.arb.primaries() {
			if n := p.out.inflight.Load(); n != 0 {
				t.Errorf("%d bytes are under way for ever", n)
			}
		}
	})
}
