package fill

import (
	"bytes"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/bifrost-rack/bifrost/internal/fault"
)

// TestStream: over a network that loses, doubles and reorders, the target takes every item
// once and in order, whatever comes of earlier attempts.
func TestStream(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		count := rapid.IntRange(1, 40).Draw(t, "items")
		s, r := NewSender(SenderConfig{Token: 7, MaxItem: 60_000}), NewReceiver(7)
		now, sent, taken := time.Duration(0), 0, 0
		net := []Packet{{Kind: Item, Token: 6, Number: 1, Data: []byte("old")}, {Kind: Ack, Token: 6, Number: 9}}
		for !s.Taken(uint64(count)) { //nolint:gosec // few
			if open, _ := s.Open(now); open && sent < count {
				sent++
				s.Send(now, 0, []byte{byte(sent)}, sent == count)
			}
			s.Tick(now)
			net = append(net, s.Out()...)
			if at, ok := s.Wake(); len(net) == 0 && ok {
				now = at
				continue
			}
			if len(net) == 0 {
				continue
			}
			i := rapid.IntRange(0, len(net)-1).Draw(t, "packet")
			p := net[i]
			if rapid.IntRange(0, 3).Draw(t, "fate") > 0 { // else it comes again
				net = append(net[:i:i], net[i+1:]...)
			}
			if rapid.IntRange(0, 4).Draw(t, "lost") == 0 {
				continue
			}
			if p.Kind == Ack {
				s.Receive(now, &p)
				continue
			}
			ack, ok := r.Receive(&p, func(p *Packet) error {
				taken++
				if !bytes.Equal(p.Data, []byte{byte(taken)}) || (p.Kind == Last) != (taken == count) {
					t.Fatalf("item %d is %+v", taken, p)
				}
				return nil
			})
			if ok {
				net = append(net, ack)
			}
			if len(net) > 200 {
				net = net[100:]
			}
		}
		if taken != count {
			t.Fatalf("%d of %d items", taken, count)
		}
	})
}

// TestRate: items leave at the rate, a burst at most together; Unlimited lifts it.
func TestRate(t *testing.T) {
	s := NewSender(SenderConfig{Token: 1, MaxItem: 1000, Rate: 1 << 20})
	now, sent := time.Duration(0), 0
	for now < time.Second {
		open, at := s.Open(now)
		if !open {
			if at <= now {
				t.Fatalf("closed at %s till %s", now, at)
			}
			now = at
			continue
		}
		s.Send(now, 0, make([]byte, 1000), false)
		sent += 1000
		s.Receive(now, &Packet{Kind: Ack, Token: 1, Number: s.flight.Next()})
	}
	if limit := int(1<<20 + (1<<20)*burst/time.Second + 1000); sent < 1<<20-1000 || sent > limit {
		t.Errorf("%d bytes in a second, want %d", sent, 1<<20)
	}
	s.Unlimited()
	for range s.flight.Window.Size() {
		if open, _ := s.Open(now); !open {
			t.Fatal("closed without a limit")
		}
		s.Send(now, 0, nil, false)
	}
	if open, _ := s.Open(now); open {
		t.Error("open beyond the window")
	}
}

// TestRefused: the target's error ends the attempt at the source, with its reason, however
// often the acknowledgement is lost.
func TestRefused(t *testing.T) {
	s, r := NewSender(SenderConfig{Token: 1, MaxItem: 1000}), NewReceiver(1)
	s.Send(0, 3, []byte("item"), false)
	p := s.Out()[0]
	for range 2 {
		ack, _ := r.Receive(&p, func(*Packet) error { return fault.New(fault.NoSpace, "fill", "full") })
		s.Receive(0, &ack)
	}
	if fault.CodeOf(s.Err()) != fault.NoSpace || s.Taken(1) {
		t.Errorf("%v", s.Err())
	}
	if open, _ := s.Open(0); open {
		t.Error("open after an error")
	}
	if _, ok := s.Wake(); ok {
		t.Error("there is something to send again")
	}
}

func FuzzParse(f *testing.F) {
	p := Packet{Kind: Ack, Status: fault.NoSpace, Token: 1, Number: 2, Data: []byte("full")}
	f.Add(p.Append(nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		p, err := Parse(b)
		if err != nil {
			return
		}
		if again := p.Append(nil); !bytes.Equal(again[8:], b[8:]) || !bytes.Equal(again[:6], b[:6]) {
			t.Errorf("%x becomes %x", b, again)
		}
	})
}

func TestLayout(t *testing.T) {
	if err := Layout.Check(); err != nil || Layout.Size() != HeaderSize {
		t.Errorf("%v, %d bytes", err, Layout.Size())
	}
}
