package p4rt

import (
	"context"
	"sync"
	"sync/atomic"

	p4v1 "github.com/p4lang/p4runtime/go/p4/v1"
)

// sender sends messages to one controller without ever blocking its callers,
// some of which are the packet path.
//
// As long as the controller keeps up, the caller's own goroutine hands the
// message to gRPC: no queue, no wake-up. gRPC would block a caller only when
// too many of the stream's bytes are on their way out, so the sender counts
// those (see codec) and stays below. Above, messages wait in a bounded backlog,
// which the stream's drain goroutine empties as bytes leave; what finds no room
// in it is dropped and counted.
type sender struct {
	transmit func(*tracked) error // hands one message to gRPC
	inflight atomic.Int64         // bytes handed over and not yet written out
	wake     chan struct{}        // capacity 1: bytes have left while there was a backlog

	mu      sync.Mutex // also serialises transmit
	backlog []queued
	bytes   int // in backlog
	closed  bool

	waiting atomic.Bool // backlog is not empty
	dropped atomic.Uint64
}

// queued is a message in the backlog with its rough size in bytes.
type queued struct {
	msg  *p4v1.StreamMessageResponse
	size int
}

func newSender(transmit func(*tracked) error) *sender {
	return &sender{transmit: transmit, wake: make(chan struct{}, 1)}
}

// offer sends m or queues it; it is false if m was dropped. size is roughly m's
// size in bytes.
func (s *sender) offer(m *p4v1.StreamMessageResponse, size int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.backlog) == 0 && s.inflight.Load() < directWindow {
		return s.send(m)
	}
	if s.closed || len(s.backlog) >= maxBacklogMessages || s.bytes+size > maxBacklogBytes {
		s.dropped.Add(1)
		return false
	}
	s.push(m, size)
	return true
}

// notify is offer for arbitration notices, which are never dropped: a newer one
// tells all that an older one does, so at most one waits.
func (s *sender) notify(m *p4v1.MasterArbitrationUpdate) {
	s.mu.Lock()
	defer s.mu.Unlock()
	msg := &p4v1.StreamMessageResponse{Update: &p4v1.StreamMessageResponse_Arbitration{Arbitration: m}}
	if len(s.backlog) == 0 && s.inflight.Load() < directWindow {
		s.send(msg)
		return
	}
	for i, old := range s.backlog {
		if old.msg.GetArbitration() != nil {
			s.backlog = append(s.backlog[:i], s.backlog[i+1:]...)
			break
		}
	}
	s.push(msg, 0)
}

func (s *sender) push(m *p4v1.StreamMessageResponse, size int) {
	s.backlog = append(s.backlog, queued{m, size})
	s.bytes += size
	s.waiting.Store(true)
	if s.inflight.Load() < directWindow {
		s.signal() // the bytes may have left before waiting was set
	}
}

// send hands m to gRPC; a failure means that the stream is over.
func (s *sender) send(m *p4v1.StreamMessageResponse) bool {
	if s.closed || s.transmit(&tracked{msg: m, sender: s}) != nil {
		s.closed = true
		s.dropped.Add(1)
		return false
	}
	return true
}

// drain empties the backlog as the controller reads, until ctx ends.
func (s *sender) drain(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			s.close()
			return
		case <-s.wake:
		}
		s.mu.Lock()
		for len(s.backlog) > 0 && s.inflight.Load() < directWindow {
			next := s.backlog[0]
			s.backlog[0] = queued{}
			s.backlog = s.backlog[1:]
			s.bytes -= next.size
			s.send(next.msg)
		}
		s.waiting.Store(len(s.backlog) > 0)
		s.mu.Unlock()
	}
}

func (s *sender) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.dropped.Add(uint64(len(s.backlog)))
	s.closed, s.backlog, s.bytes = true, nil, 0
}

// written tells that n bytes have left. It is called by gRPC's writer.
func (s *sender) written(n int) {
	s.inflight.Add(-int64(n))
	if s.waiting.Load() {
		s.signal()
	}
}

func (s *sender) signal() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}
