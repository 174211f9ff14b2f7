package difftest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/bifrost-rack/bifrost/p4switch/datapath"
	p4v1 "github.com/p4lang/p4runtime/go/p4/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/protobuf/encoding/protowire"
)

// quickly makes a connection find a server soon that has just been started.
var quickly = grpc.ConnectParams{Backoff: backoff.Config{BaseDelay: 20 * time.Millisecond, Multiplier: 1, MaxDelay: 20 * time.Millisecond}}

// Send hands in a packet.
func (b *BMv2) Send(in datapath.Port, frame []byte) error {
	if in == b.cpu && b.cpu != 0 {
		md, payload, err := b.info.PacketOut.Decode(frame)
		if err != nil {
			return err
		}
		return b.stream.Send(&p4v1.StreamMessageRequest{Update: &p4v1.StreamMessageRequest_Packet{
			Packet: &p4v1.PacketOut{Payload: payload, Metadata: md},
		}})
	}
	b.sent++
	m := protowire.AppendVarint(protowire.AppendTag(nil, fieldID, protowire.VarintType), b.sent)
	m = protowire.AppendVarint(protowire.AppendTag(m, fieldDevice, protowire.VarintType), device)
	m = protowire.AppendVarint(protowire.AppendTag(m, fieldPort, protowire.VarintType), uint64(in))
	m = protowire.AppendBytes(protowire.AppendTag(m, fieldPacket, protowire.BytesType), frame)
	return b.plane.SendMsg(&m)
}

// Events returns what has come out, sorted: what was awaited, or all that came
// in the time. Lines are those of Out, PacketIn and Digest.
func (b *BMv2) Events(want int, patience time.Duration) []string {
	var got []string
	late := time.NewTimer(patience)
	defer late.Stop()
	for len(got) < want {
		select {
		case e := <-b.events:
			got = append(got, e.line)
		case <-late.C:
			want = 0
		}
	}
	for more := true; more; {
		select {
		case e := <-b.events:
			got = append(got, e.line)
		default:
			more = false
		}
	}
	slices.Sort(got)
	return got
}

// event is what has come out of bmv2, as a line that tells of it, and the frame if it is one.
type event struct {
	line   string
	leaves Leaves
}

// frames returns the frames that have come out: as many as are awaited, or what came in the time, and what
// is there besides. It leaves digests out.
func (b *BMv2) frames(want int, patience time.Duration) (all []Leaves) {
	late := time.NewTimer(patience)
	defer late.Stop()
	for {
		var e event
		if len(all) < want {
			select {
			case e = <-b.events:
			case <-late.C:
				want = 0
			}
		} else {
			select {
			case e = <-b.events:
			default:
				return all
			}
		}
		if e.leaves.Frame != nil {
			all = append(all, e.leaves)
		}
	}
}

// Out tells of a frame that leaves by a port.
func Out(port datapath.Port, frame []byte) string { return fmt.Sprintf("out %d: %x", port, frame) }

// PacketIn tells of a frame for the controller.
func PacketIn(frame []byte) string { return fmt.Sprintf("cpu: %x", frame) }

// Digest tells of a digest; leading zeros of its fields do not count.
func Digest(d datapath.Digest) string {
	s := "digest " + d.Name
	for _, f := range d.Fields {
		s += fmt.Sprintf(" %x", bytes.TrimLeft(f, "\x00"))
	}
	return s
}

// Fields of bmv2's p4.bm.PacketStreamRequest and PacketStreamResponse.
const (
	fieldID     = 1
	fieldDevice = 2
	fieldPort   = 3
	fieldPacket = 4
)

// raw passes messages as they are on the wire.
type raw struct{}

func (raw) Marshal(v any) ([]byte, error) { return *v.(*[]byte), nil }
func (raw) Unmarshal(b []byte, v any) error {
	*v.(*[]byte) = bytes.Clone(b)
	return nil
}
func (raw) Name() string { return "proto" }

// openPlane opens the stream of packets. bmv2 refuses it until its ports have
// started, which is after its servers; so a stream that ends at once goes ahead.
func openPlane(ctx context.Context, conn *grpc.ClientConn) (grpc.ClientStream, error) {
	retry := time.NewTicker(20 * time.Millisecond)
	defer retry.Stop()
	for {
		probe, err := newPlane(ctx, conn)
		if err == nil {
			err = probe.CloseSend()
		}
		if err != nil {
			return nil, err
		}
		var none []byte
		if err = probe.RecvMsg(&none); errors.Is(err, io.EOF) {
			return newPlane(ctx, conn)
		}
		select {
		case <-retry.C:
		case <-ctx.Done():
			return nil, err
		}
	}
}

func newPlane(ctx context.Context, conn *grpc.ClientConn) (grpc.ClientStream, error) {
	return conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true},
		"/p4.bm.DataplaneInterface/PacketStream", grpc.ForceCodec(raw{}))
}

// readPlane takes what leaves by ports, until the end.
func (b *BMv2) readPlane() {
	for {
		var m []byte
		if err := b.plane.RecvMsg(&m); err != nil {
			return
		}
		port, frame := parsePlane(m)
		b.event(event{Out(port, frame), Leaves{port, frame}})
	}
}

// event keeps what has come out, unless nobody wants it any more.
func (b *BMv2) event(e event) {
	select {
	case b.events <- e:
	case <-b.ctx.Done():
	}
}

func parsePlane(m []byte) (port datapath.Port, frame []byte) {
	for len(m) > 0 {
		num, typ, n := protowire.ConsumeTag(m)
		if n < 0 {
			return 0, nil
		}
		m = m[n:]
		switch {
		case num == fieldPort && typ == protowire.VarintType:
			v, _ := protowire.ConsumeVarint(m)
			port = datapath.Port(v)
		case num == fieldPacket && typ == protowire.BytesType:
			frame, _ = protowire.ConsumeBytes(m)
		}
		if n = protowire.ConsumeFieldValue(num, typ, m); n < 0 {
			return 0, nil
		}
		m = m[n:]
	}
	return port, frame
}

// readStream takes what the controller gets, until the end.
func (b *BMv2) readStream() {
	for {
		m, err := b.stream.Recv()
		if err != nil {
			return
		}
		switch u := m.GetUpdate().(type) {
		case *p4v1.StreamMessageResponse_Packet:
			frame := u.Packet.GetPayload()
			if b.info.PacketIn != nil {
				if frame, err = b.info.PacketIn.Encode(u.Packet.GetMetadata(), frame); err != nil {
					b.event(event{line: "cpu: " + err.Error()})
					continue
				}
			}
			b.event(event{PacketIn(frame), Leaves{b.cpu, frame}})
		case *p4v1.StreamMessageResponse_Digest:
			b.digest(u.Digest)
		}
	}
}

// digest acknowledges a list of digests, without which bmv2 keeps equal ones
// back.
func (b *BMv2) digest(l *p4v1.DigestList) {
	_ = b.stream.Send(&p4v1.StreamMessageRequest{Update: &p4v1.StreamMessageRequest_DigestAck{
		DigestAck: &p4v1.DigestListAck{DigestId: l.GetDigestId(), ListId: l.GetListId()},
	}})
	for _, d := range b.info.DigestOrder {
		if d.ID != l.GetDigestId() {
			continue
		}
		for _, data := range l.GetData() {
			b.event(event{line: Digest(datapath.Digest{Name: d.Name, Fields: leaves(data)})})
		}
	}
}

// leaves are the numbers of a value.
func leaves(d *p4v1.P4Data) [][]byte {
	switch v := d.GetData().(type) {
	case *p4v1.P4Data_Bitstring:
		return [][]byte{v.Bitstring}
	case *p4v1.P4Data_Struct:
		var all [][]byte
		for _, m := range v.Struct.GetMembers() {
			all = append(all, leaves(m)...)
		}
		return all
	}
	return nil
}
