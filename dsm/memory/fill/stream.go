package fill

import (
	"time"

	"github.com/bifrost-rack/bifrost/internal/duration"
	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/internal/pace"
	"github.com/bifrost-rack/bifrost/internal/stream"
)

const (
	// windowBytes is how many bytes are in flight at most: four of the largest datagrams,
	// which fit into a socket's default receive buffer with the kernel's own record of
	// them. maxWindow is how many items.
	windowBytes = 256 << 10
	maxWindow   = 64
	// burst is how much of the rate may be sent at once, after a pause.
	burst = 5 * time.Millisecond
)

// timeout is that of acknowledgements. A round trip takes some 100 µs in
// emulation; the target may have to clean its memory first.
var timeout = pace.Timeout{First: 10 * time.Millisecond, Least: 10 * time.Millisecond, Most: time.Second}

// SenderConfig says how a Sender works.
type SenderConfig struct {
	Token uint64
	// MaxItem is how many bytes an item has at most.
	MaxItem int
	// Rate is how many bytes of items are sent in a second, on average; 0 is no limit.
	Rate uint64
}

// Sender is the source's end. It has one owner. Times count from any fixed instant.
type Sender struct {
	cfg    SenderConfig
	flight stream.Flight[Packet] // not acknowledged; each counts for one
	free   time.Duration         // when the rate lets the next item go
	err    error
	out    []Packet
}

// NewSender returns a Sender with nothing in flight.
func NewSender(cfg SenderConfig) *Sender {
	window := max(1, min(maxWindow, windowBytes/cfg.MaxItem))
	return &Sender{cfg: cfg, flight: stream.NewFlight[Packet](1, stream.NewWindow(window, window, window, 1), timeout)}
}

// Open reports whether an item may be sent now, and if not, when it may be as far as the
// rate is concerned; the window opens with an acknowledgement.
func (s *Sender) Open(now time.Duration) (open bool, at time.Duration) {
	if s.err != nil || !s.flight.Window.Fits(s.flight.Out(), 1) {
		return false, 0
	}
	return s.free <= now, s.free
}

// Unlimited lifts the rate: everybody waits for the rest.
func (s *Sender) Unlimited() { s.cfg.Rate, s.free = 0, 0 }

// Send sends an item of a part, which must not change afterwards, and returns its number. Last says that the item makes the target a
// complete copy.
func (s *Sender) Send(now time.Duration, part uint8, item []byte, last bool) (number uint64) {
	p := Packet{Kind: Item, Part: part, Token: s.cfg.Token, Number: s.flight.Next(), Data: item}
	if last {
		p.Kind = Last
	}
	s.out = append(s.out, p)
	if s.cfg.Rate > 0 {
		s.free = max(s.free, now-burst) + duration.Seconds(float64(len(item))/float64(s.cfg.Rate))
	}
	return s.flight.Send(now, 1, p)
}

// Receive takes an acknowledgement.
func (s *Sender) Receive(now time.Duration, p *Packet) {
	if p.Token != s.cfg.Token || p.Kind != Ack || s.err != nil {
		return
	}
	if p.Status != fault.OK {
		s.err = fault.Remote(p.Status, "fill", "%s", p.Data)
		s.flight, s.out = stream.Flight[Packet]{}, nil
		return
	}
	s.flight.Below(now, p.Number)
}

// Tick sends again what is lost. The target takes items in their order only, so that is all that is in flight.
func (s *Sender) Tick(now time.Duration) {
	s.flight.Tick(now)
	for _, p := range s.flight.Again(now) {
		s.out = append(s.out, *p)
	}
}

// Wake is when Tick has something to do; false for never.
func (s *Sender) Wake() (at time.Duration, ok bool) { return s.flight.Due() }

// Out returns the packets to be sent, and forgets that it was asked.
func (s *Sender) Out() []Packet {
	out := s.out
	s.out = nil
	return out
}

// Taken reports whether the target has all items up to a number.
func (s *Sender) Taken(number uint64) bool { return s.err == nil && number < s.flight.Low() }

// Err returns why the target cannot be filled, nil while all is well.
func (s *Sender) Err() error { return s.err }

// Receiver is the target's end. It has one owner.
type Receiver struct {
	token uint64
	next  uint64
	err   error
}

// NewReceiver returns a Receiver of an attempt.
func NewReceiver(token uint64) *Receiver { return &Receiver{token: token, next: 1} }

// Receive takes a packet and returns what to answer. Take is called with an item whose turn
// it is; its error ends the attempt.
func (r *Receiver) Receive(p *Packet, take func(p *Packet) error) (ack Packet, ok bool) {
	if p.Token != r.token || p.Kind == Ack {
		return Packet{}, false
	}
	if p.Number == r.next && r.err == nil {
		if r.err = take(p); r.err == nil {
			r.next++
		}
	}
	ack = Packet{Kind: Ack, Token: r.token, Number: r.next}
	if r.err != nil {
		ack.Status, ack.Data = fault.CodeOf(r.err), []byte(r.err.Error())
	}
	return ack, true
}
