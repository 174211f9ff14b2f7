package p4rt

import (
	"bytes"
	"testing"
	"testing/synctest"
	"time"
)

// A controller that stops reading its stream holds up nobody: what finds no room
// is dropped and counted, and nothing is reordered.
func TestControllerThatStopsReading(t *testing.T) {
	configured(t, func(b *bench, c *controller) {
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
		if d := time.Since(start); d > 0 {
			t.Errorf("the packet path took %v of virtual time", d)
		}
		drops := b.srv.Stats().PacketInDrops
		if drops == 0 || drops > n-100 {
			t.Fatalf("%d of %d packets dropped", drops, n)
		}
		c.resume()
		last := -1
		for range n - drops {
			p := c.next().GetPacket().GetPayload()
			if i := int(p[0])<<16 | int(p[1])<<8 | int(p[2]); i <= last {
				t.Fatalf("packet %d after packet %d", i, last)
			} else {
				last = i
			}
		}
		c.silent()
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
			if n := p.out.UnderWay(); n != 0 {
				t.Errorf("%d bytes are under way for ever", n)
			}
		}
	})
}
