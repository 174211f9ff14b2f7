package p4rtclient

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"

	"github.com/bifrost-rack/bifrost/p4switch/p4rt"
	"github.com/bifrost-rack/bifrost/p4switch/shared/outstream"
	p4v1 "github.com/p4lang/p4runtime/go/p4/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/structpb"
)

// PacketIn is a packet that the switch has sent to its controller. Metadata is
// in the order of Program.PacketInField.
type PacketIn struct {
	Payload  []byte
	Metadata []uint64
}

// PacketOut is a packet for the switch to process. Metadata is in the order of
// Program.PacketOutField.
type PacketOut struct {
	Payload  []byte
	Metadata []uint64
}

// Digest is one sample of a digest.
type Digest struct {
	Name   string
	Fields []Value // in the order of declaration
}

// Session is one stream on which this controller is primary. Methods may be
// called concurrently.
type Session struct {
	program *Program
	ports   bool // the switch tells the status of ports
	stream  p4v1.P4Runtime_StreamChannelClient
	out     *outstream.Sender
	ctx     context.Context //nolint:containedctx // the session is a lifetime
	cancel  context.CancelFunc
	done    chan struct{}
	wg      sync.WaitGroup
	dropped atomic.Uint64

	broken atomic.Bool // the stream has failed

	once sync.Once
	err  error // valid once done is closed
}

// Open connects and returns when this controller is primary; the error wraps
// ErrNotPrimary if another one is. The session lives until Close, until ctx ends
// or until the connection breaks.
func (c *Client) Open(ctx context.Context) (*Session, error) {
	ctx, cancel := context.WithCancel(ctx)
	s, err := c.open(ctx)
	if err != nil {
		cancel()
		return nil, err
	}
	s.ctx, s.cancel = ctx, cancel
	s.wg.Go(func() { s.out.Drain(ctx) })
	return s, nil
}

// open runs the arbitration.
func (c *Client) open(ctx context.Context) (*Session, error) {
	stream, err := c.rpc.StreamChannel(ctx, grpc.ForceCodecV2(outstream.Codec()))
	if err != nil {
		return nil, fmt.Errorf("connect: %w", err)
	}
	err = stream.Send(&p4v1.StreamMessageRequest{Update: &p4v1.StreamMessageRequest_Arbitration{
		Arbitration: &p4v1.MasterArbitrationUpdate{DeviceId: c.cfg.DeviceID, ElectionId: c.election()},
	}})
	if err != nil && !errors.Is(err, io.EOF) { // after EOF, Recv has the reason
		return nil, fmt.Errorf("arbitration: %w", err)
	}
	for {
		m, err := stream.Recv()
		if err != nil {
			return nil, fmt.Errorf("arbitration: %w", err)
		}
		if a := m.GetArbitration(); a != nil {
			if err := arbitrated(a); err != nil {
				return nil, err
			}
			c.rules.Store(true)
			break
		}
	}
	s := &Session{program: c.cfg.Program, stream: stream, done: make(chan struct{})}
	if s.ports, err = c.tellsPorts(ctx); err != nil {
		return nil, err
	}
	s.out = outstream.New(s.send, new(atomic.Uint64))
	return s, nil
}

// tellsPorts asks the switch whether it tells the status of its ports. One that does not know the question does not.
func (c *Client) tellsPorts(ctx context.Context) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	r, err := c.rpc.Capabilities(ctx, &p4v1.CapabilitiesRequest{})
	if status.Code(err) == codes.Unimplemented {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("ask for capabilities: %w", err)
	}
	var s structpb.Struct
	return r.GetExperimental() != nil && r.GetExperimental().UnmarshalTo(&s) == nil && s.GetFields()[p4rt.PortStatus].GetBoolValue(), nil
}

// send puts a message on the stream. A stream that has failed takes no other: Receive will say why.
func (s *Session) send(m *outstream.Message) error {
	err := s.stream.SendMsg(m)
	if err != nil {
		s.broken.Store(true)
	}
	return err
}

// noRoom is why a message was not taken.
func (s *Session) noRoom() error {
	if s.broken.Load() {
		return ErrClosed
	}
	return ErrBusy
}

// arbitrated tells whether an arbitration update makes us primary. If not, the error is ErrNotPrimary, and *vacancy if nobody is: P4Runtime
// tells a backup ALREADY_EXISTS if there is a primary, and NOT_FOUND if there is none, with the highest election id that any
// primary has had (section "Client Arbitration Notifications").
func arbitrated(a *p4v1.MasterArbitrationUpdate) error {
	code := codes.Code(a.GetStatus().GetCode()) //nolint:gosec // canonical codes are small
	if code == codes.OK {
		return nil
	}
	highest := Election{a.GetElectionId().GetHigh(), a.GetElectionId().GetLow()}
	err := fmt.Errorf("%w: election id %d:%d (%s)", ErrNotPrimary, highest.High, highest.Low, a.GetStatus().GetMessage())
	if code == codes.NotFound && a.GetElectionId() != nil {
		return &vacancy{highest, err}
	}
	return err
}

// vacancy is why we are not primary though nobody is: one was who had a higher election id.
type vacancy struct {
	highest Election
	error
}

// Unwrap gives ErrNotPrimary.
func (v *vacancy) Unwrap() error { return v.error }

// Receive has all that the switch sends from now on handed over, on one goroutine,
// until the session ends; digests are acknowledged already. A switch that can tells the status
// of each port, and then what changes. It must be called once.
// Only then does the session notice its own end: until then unary calls fail. While
// a function does not return, messages wait at the switch, which drops and counts
// what is too much.
func (s *Session) Receive(packet func(PacketIn), digest func(Digest), port func(p4rt.Port)) {
	if m, err := p4rt.AskPortStatus(); s.ports && err == nil {
		_ = s.offer(m, 0) // if there is no room on a new stream, it is about to end
	}
	s.wg.Go(func() { s.receive(packet, digest, port) })
}

// Done is closed when the session has ended; Err then tells why.
func (s *Session) Done() <-chan struct{} { return s.done }

// Context ends with the session.
func (s *Session) Context() context.Context { return s.ctx }

// Err is why the session has ended; nil before.
func (s *Session) Err() error {
	select {
	case <-s.done:
		return s.err
	default:
		return nil
	}
}

// Dropped counts what found no room on the way to the switch, and what came from it
// without making sense.
func (s *Session) Dropped() uint64 { return s.dropped.Load() + s.out.Dropped() }

// Send hands a packet to the switch, in order. It does not block: ErrBusy means
// that the packet was dropped, ErrClosed that there is no switch any more.
func (s *Session) Send(p PacketOut) error {
	meta, err := encodeMetadata(s.program.packetOut, p.Metadata)
	if err != nil {
		return err
	}
	return s.offer(&p4v1.StreamMessageRequest{Update: &p4v1.StreamMessageRequest_Packet{
		Packet: &p4v1.PacketOut{Payload: p.Payload, Metadata: meta},
	}}, len(p.Payload))
}

// offer sends m, which has roughly so many bytes, or queues it.
func (s *Session) offer(m *p4v1.StreamMessageRequest, size int) error {
	select {
	case <-s.done:
		return ErrClosed
	default:
	}
	if !s.out.Offer(outstream.NoFlow, m, size) {
		return s.noRoom()
	}
	return nil
}

// Close ends the session and returns when nothing of it runs any more.
func (s *Session) Close() {
	s.GiveUp(ErrClosed)
	s.wg.Wait()
}

// GiveUp ends the session, for a reason, and does not wait until nothing of it runs any more. Of several reasons the first one counts.
func (s *Session) GiveUp(why error) {
	s.once.Do(func() {
		s.err = why
		close(s.done)
		s.cancel()
	})
}

// receive takes what the switch sends until the stream ends.
func (s *Session) receive(packet func(PacketIn), digest func(Digest), port func(p4rt.Port)) {
	for {
		m, err := s.stream.Recv()
		if err != nil {
			s.GiveUp(fmt.Errorf("receive: %w", err))
			return
		}
		switch u := m.GetUpdate().(type) {
		case *p4v1.StreamMessageResponse_Packet:
			s.packet(u.Packet, packet)
		case *p4v1.StreamMessageResponse_Digest:
			s.digest(u.Digest, digest)
		case *p4v1.StreamMessageResponse_Arbitration:
			if err := arbitrated(u.Arbitration); err != nil {
				s.GiveUp(err)
				return
			}
		case *p4v1.StreamMessageResponse_Other:
			if p, ok := p4rt.ParsePortStatus(u.Other); ok {
				port(p)
			} else {
				s.dropped.Add(1)
			}
		case *p4v1.StreamMessageResponse_Error:
			s.dropped.Add(1) // a packet or acknowledgement that the switch refused
		}
	}
}

func (s *Session) packet(p *p4v1.PacketIn, to func(PacketIn)) {
	meta, err := decodeMetadata(s.program.packetIn, p.GetMetadata())
	if err != nil {
		s.dropped.Add(1)
		return
	}
	to(PacketIn{p.GetPayload(), meta})
}

func (s *Session) digest(l *p4v1.DigestList, to func(Digest)) {
	_ = s.offer(&p4v1.StreamMessageRequest{Update: &p4v1.StreamMessageRequest_DigestAck{
		DigestAck: &p4v1.DigestListAck{DigestId: l.GetDigestId(), ListId: l.GetListId()},
	}}, 16) // unacknowledged, the switch only keeps quiet about equal samples
	for _, d := range l.GetData() {
		out := Digest{Name: s.program.digestsByID[l.GetDigestId()]}
		members := d.GetStruct().GetMembers()
		if members == nil {
			members = []*p4v1.P4Data{d}
		}
		for _, m := range members {
			out.Fields = append(out.Fields, Bytes(m.GetBitstring()))
		}
		to(out)
	}
}
