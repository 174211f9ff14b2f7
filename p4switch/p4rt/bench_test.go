package p4rt

import (
	"context"
	"encoding/binary"
	"fmt"
	"testing"

	"github.com/bifrost-rack/bifrost/p4switch/datapath"
	p4v1 "github.com/p4lang/p4runtime/go/p4/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

// benchStream is a primary over a Unix socket.
func benchStream(b *testing.B) (p4v1.P4RuntimeClient, p4v1.P4Runtime_StreamChannelClient, *fake) {
	b.Helper()
	l := &fakes{}
	addr := serve(b, Config{DeviceID: device, Load: l.load})
	conn, err := grpc.NewClient(addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = conn.Close() })
	client := p4v1.NewP4RuntimeClient(conn)
	ctx, cancel := context.WithCancel(context.Background())
	b.Cleanup(cancel)
	stream, err := client.StreamChannel(ctx)
	if err != nil {
		b.Fatal(err)
	}
	if err := stream.Send(arbitration(1)); err != nil {
		b.Fatal(err)
	}
	if _, err := stream.Recv(); err != nil {
		b.Fatal(err)
	}
	_, err = client.SetForwardingPipelineConfig(ctx, &p4v1.SetForwardingPipelineConfigRequest{
		DeviceId: device, ElectionId: id128(1), Action: verifyNow, Config: &p4v1.ForwardingPipelineConfig{P4Info: testInfo(b)},
	})
	if err != nil {
		b.Fatal(err)
	}
	return client, stream, l.all[0]
}

// A packet to the controller and back: what holding a packet costs at least.
func BenchmarkHoldAndRelease(b *testing.B) {
	_, stream, f := benchStream(b)
	frame := make([]byte, 1000)
	for b.Loop() {
		f.sink.PacketIn(frame)
		m, err := stream.Recv()
		if err != nil {
			b.Fatal(err)
		}
		out := &p4v1.PacketOut{Payload: m.GetPacket().GetPayload(), Metadata: []*p4v1.PacketMetadata{
			{MetadataId: 1, Value: []byte{1}}, {MetadataId: 2, Value: []byte{0}}, {MetadataId: 3, Value: []byte{0}},
		}}
		if err := stream.Send(&p4v1.StreamMessageRequest{Update: &p4v1.StreamMessageRequest_Packet{Packet: out}}); err != nil {
			b.Fatal(err)
		}
		<-f.outs
	}
}

func BenchmarkWrite(b *testing.B) {
	for _, size := range []int{1, 100} {
		b.Run(fmt.Sprintf("batch=%d", size), func(b *testing.B) {
			client, _, _ := benchStream(b)
			batch := func(typ p4v1.Update_Type) *p4v1.WriteRequest {
				r := &p4v1.WriteRequest{DeviceId: device, ElectionId: id128(1)}
				for i := range size {
					e := entity(b, lpm1)
					e.GetTableEntry().GetMatch()[0].GetLpm().Value = []byte{10, 0, byte(i), 0}
					e.GetTableEntry().GetMatch()[0].GetLpm().PrefixLen = 24
					r.Updates = append(r.Updates, &p4v1.Update{Type: typ, Entity: e})
				}
				return r
			}
			insert, del := batch(p4v1.Update_INSERT), batch(p4v1.Update_DELETE)
			for b.Loop() {
				for _, r := range []*p4v1.WriteRequest{insert, del} {
					if _, err := client.Write(context.Background(), r); err != nil {
						b.Fatal(err)
					}
				}
			}
			b.ReportMetric(float64(2*size*b.N)/b.Elapsed().Seconds(), "updates/s")
		})
	}
}

func BenchmarkPacketIn(b *testing.B) {
	_, stream, f := benchStream(b)
	frame := make([]byte, 200)
	b.ReportAllocs()
	for b.Loop() {
		f.sink.PacketIn(frame)
		if _, err := stream.Recv(); err != nil {
			b.Fatal(err)
		}
	}
}

// A digest of every packet, gathered as the Gatekeeper has it.
func BenchmarkDigest(b *testing.B) {
	client, stream, f := benchStream(b)
	config := entity(b, `digest_entry { digest_id: 0x17000001 config { max_timeout_ns: 1000000 max_list_size: 256 } }`)
	_, err := client.Write(context.Background(), &p4v1.WriteRequest{
		DeviceId: device, ElectionId: id128(1), Updates: []*p4v1.Update{{Type: p4v1.Update_INSERT, Entity: config}},
	})
	if err != nil {
		b.Fatal(err)
	}
	go func() {
		for {
			if _, err := stream.Recv(); err != nil {
				return
			}
		}
	}()
	b.ReportAllocs()
	for n := uint64(0); b.Loop(); n++ {
		mac := binary.BigEndian.AppendUint64(nil, n)[2:]
		f.sink.Digest(datapath.Digest{Name: "learn_t", Fields: [][]byte{mac, {1, 5}}})
	}
}

var _ datapath.Sink = (*pipeline)(nil)
