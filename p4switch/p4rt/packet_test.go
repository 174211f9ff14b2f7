package p4rt

import (
	"bytes"
	"testing"

	p4v1 "github.com/p4lang/p4runtime/go/p4/v1"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"
)

func packetOut(t *testing.T, text string) *p4v1.StreamMessageRequest {
	t.Helper()
	m := &p4v1.PacketOut{}
	if err := prototext.Unmarshal([]byte(text), m); err != nil {
		t.Fatal(err)
	}
	return &p4v1.StreamMessageRequest{Update: &p4v1.StreamMessageRequest_Packet{Packet: m}}
}

func TestSection16_1_PacketIn(t *testing.T) {
	configured(t, func(b *bench, c *controller) {
		// ingress_port 0x105 (9 bits), reason 5 (3 bits), pad 0 (4 bits)
		b.fakes.last(t).sink.PacketIn([]byte{0x82, 0xd0, 'h', 'i'})
		want := &p4v1.PacketIn{Payload: []byte("hi"), Metadata: []*p4v1.PacketMetadata{
			{MetadataId: 1, Value: []byte{1, 5}}, {MetadataId: 2, Value: []byte{5}}, {MetadataId: 3, Value: []byte{0}},
		}}
		if got := c.next().GetPacket(); !proto.Equal(got, want) {
			t.Fatalf("got %v, want %v", got, want)
		}
		b.fakes.last(t).sink.PacketIn([]byte{0x82}) // shorter than its header
		c.silent()
		if n := b.srv.Stats().PacketInErrors; n != 1 {
			t.Errorf("%d errors counted", n)
		}
	})
}

// What the data plane has kept goes to the first controller that becomes primary and
// takes packets, behind the notice that it is.
func TestReplay(t *testing.T) {
	configured(t, func(b *bench, c *controller) {
		b.fakes.last(t).kept = [][]byte{{0, 0, 'x'}, {0, 0, 'y'}}
		r := b.dial()
		r.arbitrateAs(withRole("some", onlyExact))
		r.expectArbitration(codes.OK, 1)
		r.silent()
		c.silent()
		c.mustBePrimary(2)
		for _, want := range []string{"x", "y"} {
			if got := c.next().GetPacket(); string(got.GetPayload()) != want {
				t.Errorf("got %v, want %s", got, want)
			}
		}
		r.silent()
	})
}

func TestSection16_1_PacketOut(t *testing.T) {
	configured(t, func(b *bench, c *controller) {
		c.send(packetOut(t, `payload: "hi" metadata { metadata_id: 3 value: "\x07" } metadata { metadata_id: 1 value: "\x01\x05" } metadata { metadata_id: 2 value: "\x00" }`))
		c.silent()
		want := []byte{0x82, 0x80, 0, 7, 'h', 'i'}
		if got := <-b.fakes.last(t).outs; !bytes.Equal(got, want) {
			t.Fatalf("got % x, want % x", got, want)
		}
	})
}

func TestSection16_6_PacketOutErrors(t *testing.T) {
	for name, text := range map[string]string{
		"missing metadata": `metadata { metadata_id: 1 value: "\x01" }`,
		"unknown metadata": `metadata { metadata_id: 9 value: "\x01" }`,
		"too wide":         `metadata { metadata_id: 1 value: "\x02\x00" } metadata { metadata_id: 2 value: "\x00" } metadata { metadata_id: 3 value: "\x00" }`,
		"empty value":      `metadata { metadata_id: 1 } metadata { metadata_id: 2 value: "\x00" } metadata { metadata_id: 3 value: "\x00" }`,
		"given twice":      `metadata { metadata_id: 1 value: "\x01" } metadata { metadata_id: 1 value: "\x01" }`,
	} {
		t.Run(name, func(t *testing.T) {
			configured(t, func(b *bench, c *controller) {
				m := packetOut(t, text)
				c.send(m)
				e := c.next().GetError()
				if codes.Code(e.GetCanonicalCode()) != codes.InvalidArgument || !proto.Equal(e.GetPacketOut().GetPacketOut(), m.GetPacket()) {
					t.Fatalf("got %v", e)
				}
				if n := b.srv.Stats().PacketOutDrops; n != 1 || len(b.fakes.last(t).outs) != 0 {
					t.Errorf("%d drops counted, %d packets injected", n, len(b.fakes.last(t).outs))
				}
			})
		})
	}
}
