// Package outstream is the sending half of a gRPC stream for those who must not
// block, such as a packet path, and who would rather not wake anybody:
//
//	Offer ──▶ gRPC            as long as the peer keeps up: no queue, no wake-up
//	  └─────▶ backlog ──▶ gRPC  else, bounded; what finds no room is a counted drop
//	           └─ Drain          (Urgent has a backlog of its own, which goes first)
//
// Messages belong to flows. In a backlog each flow has a queue, and the queues take turns.
// So a flow that brings more than the peer takes delays its own messages, and loses its
// own. The messages of a flow keep their order; those of different flows do not.
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

// Bounds of the backlogs.
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
	urgent  backlog    // goes before the other one
	backlog backlog
	closed  bool

	waiting   atomic.Bool // something is queued
	dropped   atomic.Uint64
	displaced *atomic.Uint64
}

// New returns a Sender. transmit is a stream's SendMsg; the stream must use Codec. displaced
// counts the messages that were queued, and then dropped to make room for another flow's.
func New(transmit func(*Message) error, displaced *atomic.Uint64) *Sender {
	return &Sender{
		transmit: transmit, displaced: displaced, wake: make(chan struct{}, 1),
		urgent: backlog{maxMessages: maxUrgent, maxBytes: maxBytes}, backlog: backlog{maxMessages: maxMessages, maxBytes: maxBytes},
	}
}

// Offer sends m, a message of a flow, or queues it; it is false if m was dropped. size is
// roughly m's size in bytes. Where there is no room, the flow that takes most of it loses
// its last message.
func (s *Sender) Offer(flow uint32, m proto.Message, size int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.open() {
		return s.send(m)
	}
	return s.queue(&s.backlog, flow, queued{m, size})
}

// Urgent is Offer for a message that goes before those which Offer has queued.
func (s *Sender) Urgent(flow uint32, m proto.Message, size int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.urgent.messages == 0 && s.inflight.Load() < window {
		return s.send(m)
	}
	return s.queue(&s.urgent, flow, queued{m, size})
}

// queue offers a message to a backlog.
func (s *Sender) queue(b *backlog, flow uint32, m queued) (ok bool) {
	if !s.closed {
		var displaced uint64
		ok, displaced = b.offer(flow, m)
		s.displaced.Add(displaced)
		s.dropped.Add(displaced)
	}
	if !ok {
		s.dropped.Add(1)
		return false
	}
	s.queued()
	return true
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
	s.backlog.remove(NoFlow, old)
	s.backlog.push(NoFlow, queued{m, 0})
	s.queued()
}

// Dropped counts the messages that found no room, or no stream any more.
func (s *Sender) Dropped() uint64 { return s.dropped.Load() }

// UnderWay is how many bytes gRPC has that it has not written out yet.
func (s *Sender) UnderWay() int64 { return s.inflight.Load() }

// open reports whether a message may go out past the backlog.
func (s *Sender) open() bool {
	return s.urgent.messages+s.backlog.messages == 0 && s.inflight.Load() < window
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
		for _, b := range []*backlog{&s.urgent, &s.backlog} {
			for b.messages > 0 && s.inflight.Load() < window {
				s.send(b.next())
			}
		}
		s.waiting.Store(s.urgent.messages+s.backlog.messages > 0)
		s.mu.Unlock()
	}
}

func (s *Sender) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.dropped.Add(uint64(s.urgent.messages + s.backlog.messages)) //nolint:gosec // not negative
	s.closed, s.urgent, s.backlog = true, backlog{}, backlog{}
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
