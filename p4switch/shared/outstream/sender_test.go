package outstream

import (
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/bifrost-rack/bifrost/p4switch/shared/bubble"
)

// stalled runs f with a sender whose stream takes messages and writes none out.
func stalled(t *testing.T, f func(s *Sender, sent func() []proto.Message)) {
	bubble.Test(t, func(t *testing.T) {
		var sent []proto.Message
		s := New(func(m *Message) error {
			m.sender.inflight.Add(int64(proto.Size(m.msg)))
			sent = append(sent, m.msg)
			return nil
		}, new(atomic.Uint64))
		go s.Drain(t.Context())
		f(s, func() []proto.Message { return sent })
	})
}

// A message may be lost for want of room, one that replaces others may not.
func TestSender_BacklogIsBounded(t *testing.T) {
	stalled(t, func(s *Sender, sent func() []proto.Message) {
		big := wrapperspb.Bytes(make([]byte, 1<<16))
		if !s.Offer(NoFlow, big, 1<<16) || len(sent()) != 1 {
			t.Fatal("the first message has not gone out at once")
		}
		taken := 0
		for s.Offer(NoFlow, big, 1<<16) {
			taken++
		}
		if taken != maxBytes>>16 || s.Dropped() != 1 {
			t.Errorf("%d messages queued, %d dropped", taken, s.Dropped())
		}
		notice := func(m proto.Message) bool { _, ok := m.(*wrapperspb.Int32Value); return ok }
		for i := range int32(3) {
			s.Replace(wrapperspb.Int32(i), notice)
		}
		synctest.Wait()
		if len(sent()) != 1 {
			t.Fatalf("%d messages sent into a full window", len(sent()))
		}
		for len(sent()) < taken+2 {
			s.written(int(s.inflight.Load()))
			synctest.Wait()
		}
		s.written(int(s.inflight.Load()))
		synctest.Wait()
		last, ok := sent()[len(sent())-1].(*wrapperspb.Int32Value)
		if len(sent()) != taken+2 || !ok || last.GetValue() != 2 {
			t.Errorf("%d messages, the last is %v", len(sent()), sent()[len(sent())-1])
		}
		if s.backlog.bytes != 0 || s.backlog.messages != 0 || s.waiting.Load() {
			t.Errorf("%d bytes, %d messages left", s.backlog.bytes, s.backlog.messages)
		}
	})
}

// Small messages are bounded by their number.
func TestSender_BacklogIsBoundedInMessages(t *testing.T) {
	stalled(t, func(s *Sender, _ func() []proto.Message) {
		s.Offer(NoFlow, wrapperspb.Bytes(make([]byte, window)), window)
		for range maxMessages {
			if !s.Offer(NoFlow, wrapperspb.Int32(1), 2) {
				t.Fatal("dropped before the backlog was full")
			}
		}
		if s.Offer(NoFlow, wrapperspb.Int32(1), 2) || s.Dropped() != 1 {
			t.Errorf("the backlog takes more than %d messages", maxMessages)
		}
	})
}

// A stream that is over takes nothing any more.
func TestSender_StreamIsOver(t *testing.T) {
	tries := 0
	s := New(func(*Message) error { tries++; return errors.New("over") }, new(atomic.Uint64))
	for range 2 {
		if s.Offer(NoFlow, wrapperspb.Int32(1), 2) {
			t.Error("sent on a stream that is over")
		}
	}
	if tries != 1 || s.Dropped() != 2 {
		t.Errorf("%d tries, %d dropped", tries, s.Dropped())
	}
}

// The codec counts a message until gRPC lets its buffer go.
func TestCodec(t *testing.T) {
	s := New(nil, new(atomic.Uint64))
	for _, size := range []int{0, 1, minBuffer - 10, 1 << 16} {
		m := wrapperspb.Bytes(make([]byte, size))
		b, err := Codec().Marshal(&Message{msg: m, sender: s})
		if err != nil {
			t.Fatal(err)
		}
		if b.Len() != proto.Size(m) || int(s.inflight.Load()) != proto.Size(m) {
			t.Errorf("%d bytes of %d, %d under way", b.Len(), proto.Size(m), s.inflight.Load())
		}
		var got wrapperspb.BytesValue
		if err := Codec().Unmarshal(b, &got); err != nil || len(got.GetValue()) != size {
			t.Errorf("%d bytes came back, %v", len(got.GetValue()), err)
		}
		b.Free()
		if n := s.inflight.Load(); n != 0 {
			t.Errorf("%d bytes are under way for ever", n)
		}
	}
}

// An urgent message goes before those that wait, and has room when they have none.
func TestSender_Urgent(t *testing.T) {
	stalled(t, func(s *Sender, sent func() []proto.Message) {
		big := wrapperspb.Bytes(make([]byte, 1<<16))
		for s.Offer(NoFlow, big, 1<<16) {
		}
		for i := range int32(maxUrgent) {
			if !s.Urgent(NoFlow, wrapperspb.Int32(i), 4) {
				t.Fatalf("the urgent message %d finds no room", i)
			}
		}
		if s.Urgent(NoFlow, wrapperspb.Int32(maxUrgent), 4) || s.Dropped() != 2 {
			t.Errorf("more than %d urgent messages wait, %d are dropped", maxUrgent, s.Dropped())
		}
		s.written(int(s.inflight.Load()))
		synctest.Wait()
		for i, m := range sent()[1 : 1+maxUrgent] {
			if v, ok := m.(*wrapperspb.Int32Value); !ok || int(v.GetValue()) != i {
				t.Fatalf("message %d behind the first is %v", i, m)
			}
		}
		if _, ok := sent()[1+maxUrgent].(*wrapperspb.BytesValue); !ok {
			t.Error("the rest does not follow")
		}
	})
}

// A flow that fills the backlog delays none but itself: another flow's messages displace its
// last ones, and have their turns.
func TestSender_FlowsAreFair(t *testing.T) {
	const flood, other = 7, 9
	for name, offer := range map[string]func(*Sender, uint32, proto.Message, int) bool{"backlog": (*Sender).Offer, "urgent": (*Sender).Urgent} {
		t.Run(name, func(t *testing.T) {
			stalled(t, func(s *Sender, sent func() []proto.Message) {
				s.Offer(NoFlow, wrapperspb.Bytes(make([]byte, window)), window)
				queued := 0
				for offer(s, flood, wrapperspb.Int32(-1), 200) {
					queued++
				}
				for i := range int32(10) {
					if !offer(s, other, wrapperspb.Int32(i), 200) {
						t.Fatalf("message %d finds no room beside %d of another flow", i, queued)
					}
				}
				if n := s.displaced.Load(); n != 10 || s.Dropped() != 11 {
					t.Errorf("%d messages are displaced, %d dropped", n, s.Dropped())
				}
				if offer(s, flood, wrapperspb.Int32(-1), 200) {
					t.Error("the flow that takes most finds room")
				}
				s.written(int(s.inflight.Load()))
				synctest.Wait()
				var got []int
				next := int32(0)
				for i, m := range sent()[1:] {
					if v, ok := m.(*wrapperspb.Int32Value); ok && v.GetValue() == next {
						got = append(got, i)
						next++
					}
				}
				// Turns of 2 KiB: four messages of 456 bytes, then the other flow's.
				if len(got) != 10 || got[9] > 30 {
					t.Errorf("the messages of another flow leave at %v of %d", got, len(sent()))
				}
			})
		})
	}
}

// A large message waits for as many turns as it has quanta, and no flow has more than its
// share of the bytes meanwhile.
func TestBacklog_TurnsAreOfBytes(t *testing.T) {
	b := backlog{maxMessages: 100, maxBytes: 1 << 20}
	for range 4 {
		b.offer(1, queued{wrapperspb.Int32(1), 60 << 10})
	}
	for range 80 {
		b.offer(2, queued{wrapperspb.Int32(2), 1 << 10})
	}
	sent := map[int32]int{}
	for range 40 {
		v := b.next().(*wrapperspb.Int32Value).GetValue()
		sent[v] += map[int32]int{1: 60<<10 + overhead, 2: 1<<10 + overhead}[v]
	}
	if d := sent[1] - sent[2]; d > 62<<10 || d < -62<<10 {
		t.Errorf("bytes sent by flow: %v", sent)
	}
	for b.messages > 0 {
		b.next()
	}
	if b.bytes != 0 || len(b.flows) != 0 || len(b.turns) != 0 {
		t.Errorf("an empty backlog has %d bytes, %d flows, %d turns", b.bytes, len(b.flows), len(b.turns))
	}
}
