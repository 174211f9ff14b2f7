package outstream

import (
	"errors"
	"testing"
	"testing/synctest"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// stalled runs f with a sender whose stream takes messages and writes none out.
func stalled(t *testing.T, f func(s *Sender, sent func() []proto.Message)) {
	synctest.Test(t, func(t *testing.T) {
		var sent []proto.Message
		s := New(func(m *Message) error {
			m.sender.inflight.Add(int64(proto.Size(m.msg)))
			sent = append(sent, m.msg)
			return nil
		})
		go s.Drain(t.Context())
		f(s, func() []proto.Message { return sent })
	})
}

// A message may be lost for want of room, one that replaces others may not.
func TestSender_BacklogIsBounded(t *testing.T) {
	stalled(t, func(s *Sender, sent func() []proto.Message) {
		big := wrapperspb.Bytes(make([]byte, 1<<16))
		if !s.Offer(big, 1<<16) || len(sent()) != 1 {
			t.Fatal("the first message has not gone out at once")
		}
		taken := 0
		for s.Offer(big, 1<<16) {
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
		if s.bytes != 0 || len(s.backlog) != 0 || s.waiting.Load() {
			t.Errorf("%d bytes, %d messages left", s.bytes, len(s.backlog))
		}
	})
}

// Small messages are bounded by their number.
func TestSender_BacklogIsBoundedInMessages(t *testing.T) {
	stalled(t, func(s *Sender, _ func() []proto.Message) {
		s.Offer(wrapperspb.Bytes(make([]byte, window)), window)
		for range maxMessages {
			if !s.Offer(wrapperspb.Int32(1), 2) {
				t.Fatal("dropped before the backlog was full")
			}
		}
		if s.Offer(wrapperspb.Int32(1), 2) || s.Dropped() != 1 {
			t.Errorf("the backlog takes more than %d messages", maxMessages)
		}
	})
}

// A stream that is over takes nothing any more.
func TestSender_StreamIsOver(t *testing.T) {
	tries := 0
	s := New(func(*Message) error { tries++; return errors.New("over") })
	for range 2 {
		if s.Offer(wrapperspb.Int32(1), 2) {
			t.Error("sent on a stream that is over")
		}
	}
	if tries != 1 || s.Dropped() != 2 {
		t.Errorf("%d tries, %d dropped", tries, s.Dropped())
	}
}

// The codec counts a message until gRPC lets its buffer go.
func TestCodec(t *testing.T) {
	s := New(nil)
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
		for s.Offer(big, 1<<16) {
		}
		for i := range int32(maxUrgent) {
			if !s.Urgent(wrapperspb.Int32(i), 4) {
				t.Fatalf("the urgent message %d finds no room", i)
			}
		}
		if s.Urgent(wrapperspb.Int32(maxUrgent), 4) || s.Dropped() != 2 {
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
