package p4rtclient

import (
	"context"
	"errors"
	"net/netip"
	"testing"
	"testing/synctest"

	"github.com/bifrost-rack/bifrost/p4/datapath"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// forward sends hop 9 out of a port.
func forward(port uint64) Entry {
	return Entry{
		Table: "next_hop", Match: []Match{{Field: "hop", Value: Uint(9)}}, Action: "forward",
		Params: []Param{{"port", Uint(port)}, {"dst", Uint(1)}, {"src", Uint(2)}},
	}
}

// Packets and what the switch is told are one sequence: each packet leaves as it was
// told just before. After a barrier all of it has happened.
func TestTell_InOrderWithPackets(t *testing.T) {
	virtual(t, func(b *bench) {
		c, s := b.primary(1)
		defer s.Close()
		receive(s)
		if !s.MayTell() {
			t.Fatal("the switch cannot be told")
		}
		var out []int
		for port := range 3 {
			if err := b.sw.Attach(datapath.Port(port), func([]byte) { out = append(out, port) }); err != nil {
				t.Fatal(err)
			}
		}
		packet := datagram(netip.MustParseAddr("fe80::1"), netip.MustParseAddr("fd00:b1f0::1"), 45102, []byte("hello"))
		op := Insert
		for i := range 200 {
			if err := s.Tell([]Update{{op, forward(uint64(i % 3))}}); err != nil {
				t.Fatal(err)
			}
			if err := s.Send(PacketOut{Payload: packet, Metadata: []uint64{9, 0}}); err != nil {
				t.Fatal(err)
			}
			op = Modify
			if i%50 == 49 {
				synctest.Wait()
			}
		}
		if err := s.Barrier(b.ctx); err != nil {
			t.Fatal(err)
		}
		if len(out) != 200 {
			t.Fatalf("%d packets have left, want 200", len(out))
		}
		for i, port := range out {
			if port != i%3 {
				t.Fatalf("packet %d has left by port %d", i, port)
			}
		}
		if err := c.Write(b.ctx, []Update{{Delete, forward(0)}}); err != nil {
			t.Errorf("a request after the barrier: %v", err)
		}
	})
}

// What the switch refuses ends the session, with all that was sent behind it, and the
// next one only asks.
func TestTell_Refused(t *testing.T) {
	virtual(t, func(b *bench) {
		c, s := b.primary(1)
		receive(s)
		if err := s.Tell([]Update{{Delete, forward(1)}}); err != nil {
			t.Fatal(err)
		}
		_ = s.Tell([]Update{{Insert, forward(1)}}) // it may have ended already
		if err := s.Barrier(b.ctx); !errors.Is(err, ErrClosed) {
			t.Errorf("a barrier behind it: %v", err)
		}
		<-s.Done()
		if err := s.Tell([]Update{{Insert, forward(1)}}); !errors.Is(err, ErrClosed) {
			t.Errorf("after the end: %v", err)
		}
		s.Close()
		s, err := c.Open(b.ctx)
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		if s.MayTell() || s.Tell([]Update{{Insert, forward(1)}}) == nil {
			t.Error("the next session tells again")
		}
		if all, err := c.Read(b.ctx); err != nil || len(all) != 0 {
			t.Errorf("read %v, %v", all, err)
		}
	})
}

// A bad update is found here, and nothing sent.
func TestTell_Malformed(t *testing.T) {
	virtual(t, func(b *bench) {
		c, s := b.primary(1)
		defer s.Close()
		receive(s)
		bad := forward(1)
		bad.Action = "nothing"
		if err := s.Tell([]Update{{Insert, hop()}, {Insert, bad}}); err == nil {
			t.Error("a bad entry: no error")
		}
		if err := s.Barrier(b.ctx); err != nil {
			t.Error(err)
		}
		if all, err := c.Read(b.ctx); err != nil || len(all) != 0 {
			t.Errorf("read %v, %v", all, err)
		}
	})
}

// A connection that was lost says nothing about the switch.
func TestTell_ConnectionLost(t *testing.T) {
	virtual(t, func(b *bench) {
		c, s := b.primary(1)
		receive(s)
		b.stop()
		<-s.Done()
		s.Close()
		b.start()
		s, err := c.Open(b.ctx)
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		if !s.MayTell() {
			t.Error("the next session does not tell")
		}
	})
}

// Switches that do not announce it, or do not know the question, are asked.
func TestMayTell(t *testing.T) {
	for what, answer := range map[string]error{
		"an answer without it": nil, "no such question": status.Error(codes.Unimplemented, "what?"),
	} {
		t.Run(what, func(t *testing.T) {
			virtual(t, func(b *bench) {
				conn := answering{b.conn, answer}
				c, err := New(Config{Conn: conn, Program: program(t), DeviceID: 1, Election: Election{Low: 1}})
				if err != nil {
					t.Fatal(err)
				}
				s, err := c.Open(b.ctx)
				if err != nil {
					t.Fatal(err)
				}
				defer s.Close()
				if s.MayTell() {
					t.Error("it may tell")
				}
			})
		})
	}
}

// answering answers the question for capabilities itself: with none, or an error.
type answering struct {
	grpc.ClientConnInterface
	err error
}

func (a answering) Invoke(ctx context.Context, method string, args, reply any, opts ...grpc.CallOption) error {
	if method == "/p4.v1.P4Runtime/Capabilities" {
		return a.err
	}
	return a.ClientConnInterface.Invoke(ctx, method, args, reply, opts...)
}
