// Package outstream is the sending half of a gRPC stream for those who must not
// block, such as a packet path, and who would rather not wake anybody:
//
//	Offer ──▶ gRPC            as long as the peer keeps up: no queue, no wake-up
//	  └─────▶ backlog ──▶ gRPC  else, bounded; what finds no room is a counted drop
//	           └─ Drain          (Urgent has a backlog of its own, which goes first)
package outstream

import (
	"context"
	"sync"
	"sync/atomic"

	"google.golang.org/protobuf/proto"
)

// window is how many bytes of a stream may be on their way out before messages
// are queued here. gRPC's own write quota is 64 KiB for a stream: below it, sending
// never blocks. A message may overshoot the quota by itself, so one of 64 KiB still
// goes out at once.
const window = 60 << 10

// Bounds of the backlog.
const (
	maxMessages = 4096
	maxBytes    = 16 << 20
	// maxUrgent bounds the urgent messages; these have room that no others take.
	maxUrgent = 1024
)

// Sender sends messages on one stream. Its methods may be called concurrently, and
// none but Drain blocks.
//
// gRPC would block a caller only when too many of the stream's bytes are on their
// way out, so the sender counts those (see Codec) and stays below.
type Sender struct {
	transmit func(*Message) error // hands one message to gRPC
	inflight atomic.Int64         // bytes handed over and not yet written out
	wake     chan struct{}        // capacity 1: bytes have left while there was a backlog

	mu      sync.Mutex // also serialises transmit
	urgent  []queued   // go before the backlog
	backlog []queued
	bytes   int // in backlog
	closed  bool

	waiting atomic.Bool // something is queued
	dropped atomic.Uint64
}

// queued is a message in the backlog with its rough size in bytes.
type queued struct {
	msg  proto.Message
	size int
}

// New returns a Sender. transmit is a stream's SendMsg; the stream must use Codec.
func New(transmit func(*Message) error) *Sender {
	return &Sender{transmit: transmit, wake: make(chan struct{}, 1)}
}

// Offer sends m or queues it; it is false if m was dropped. size is roughly m's
// size in bytes.
func (s *Sender) Offer(m proto.Message, size int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.open() {
		return s.send(m)
	}
	if s.closed || len(s.backlog) >= maxMessages || s.bytes+size > maxBytes {
		s.dropped.Add(1)
		return false
	}
	s.push(m, size)
	return true
}

// Urgent is Offer for a message that goes before those which Offer has queued. Urgent
// messages keep their order.
func (s *Sender) Urgent(m proto.Message, size int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.urgent) == 0 && s.inflight.Load() < window {
		return s.send(m)
	}
	if s.closed || len(s.urgent) >= maxUrgent {
		s.dropped.Add(1)
		return false
	}
	s.urgent = append(s.urgent, queued{m, size})
	s.queued()
	return true
}

// Try sends m if it need not be queued; it reports whether it has.
func (s *Sender) Try(m proto.Message) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.open() && s.send(m)
}

// Replace is Offer for a message that is never dropped, since it tells all that
// older ones tell: those, which old finds, leave the backlog.
func (s *Sender) Replace(m proto.Message, old func(proto.Message) bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.open() {
		s.send(m)
		return
	}
	for i, o := range s.backlog {
		if old(o.msg) {
			s.backlog = append(s.backlog[:i], s.backlog[i+1:]...)
			break
		}
	}
	s.push(m, 0)
}

// Dropped counts the messages that found no room, or no stream any more.
func (s *Sender) Dropped() uint64 { return s.dropped.Load() }

// UnderWay is how many bytes gRPC has that it has not written out yet.
func (s *Sender) UnderWay() int64 { return s.inflight.Load() }

// open reports whether a message may go out past the backlog.
func (s *Sender) open() bool { return len(s.urgent)+len(s.backlog) == 0 && s.inflight.Load() < window }

func (s *Sender) push(m proto.Message, size int) {
	s.backlog = append(s.backlog, queued{m, size})
	s.bytes += size
	s.queued()
}

// queued has Drain look for what is queued.
func (s *Sender) queued() {
	s.waiting.Store(true)
	if s.inflight.Load() < window {
		s.signal() // the bytes may have left before waiting was set
	}
}

// send hands m to gRPC; a failure means that the stream is over.
func (s *Sender) send(m proto.Message) bool {
	if s.closed || s.transmit(&Message{msg: m, sender: s}) != nil {
		s.closed = true
		s.dropped.Add(1)
		return false
	}
	return true
}

// Drain empties the backlog as the peer reads, until ctx ends. Each Sender needs
// one goroutine that does.
func (s *Sender) Drain(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			s.close()
			return
		case <-s.wake:
		}
		s.mu.Lock()
		for len(s.urgent) > 0 && s.inflight.Load() < window {
			next := s.urgent[0]
			s.urgent[0] = queued{}
			s.urgent = s.urgent[1:]
			s.send(next.msg)
		}
		for len(s.backlog) > 0 && s.inflight.Load() < window {
			next := s.backlog[0]
			s.backlog[0] = queued{}
			s.backlog = s.backlog[1:]
			s.bytes -= next.size
			s.send(next.msg)
		}
		s.waiting.Store(len(s.urgent)+len(s.backlog) > 0)
		s.mu.Unlock()
	}
}

func (s *Sender) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.dropped.Add(uint64(len(s.urgent) + len(s.backlog)))
	s.closed, s.urgent, s.backlog, s.bytes = true, nil, nil, 0
}

// written tells that n bytes have left. It is called by gRPC's writer.
func (s *Sender) written(n int) {
	s.inflight.Add(-int64(n))
	if s.waiting.Load() {
		s.signal()
	}
}

func (s *Sender) signal() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}
