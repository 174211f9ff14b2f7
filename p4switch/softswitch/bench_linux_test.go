package softswitch

import (
	"bytes"
	"errors"
	"net/netip"
	"testing"

	"github.com/bifrost-rack/bifrost/p4switch/datapath"
	"github.com/bifrost-rack/bifrost/p4switch/internal/sample"
	"github.com/bifrost-rack/bifrost/p4switch/softswitch/afpacket"
	p4v1 "github.com/p4lang/p4runtime/go/p4/v1"
)

// A UDP round trip between two namespaces, through the switch alone and through
// the switch with the sample program.
func BenchmarkInterface_RoundTrip(b *testing.B) {
	b.Run("cable", func(b *testing.B) {
		_, x, y := joined(b, 65535)
		roundTrips(b, x, y)
	})
	b.Run("bifrost", func(b *testing.B) {
		needRoot(b)
		r := newRack(b)
		x, y := newLab(b, 65535), newLab(b, 65535)
		x.knows(y)
		y.knows(x)
		r.plugIn(1, x)
		r.plugIn(2, y)
		roundTrips(b, x, y)
	})
}

func roundTrips(b *testing.B, x, y *lab) {
	b.Helper()
	cx, cy := x.udp(1000), y.udp(2000)
	go func() {
		buf := make([]byte, 1<<16)
		for {
			n, from, err := cy.ReadFromUDPAddrPort(buf)
			if err != nil {
				return
			}
			if _, err := cy.WriteToUDPAddrPort(buf[:n], from); err != nil {
				return
			}
		}
	}()
	buf := make([]byte, 1<<16)
	to := netip.AddrPortFrom(y.addr, 2000)
	for b.Loop() {
		if _, err := cx.WriteToUDPAddrPort(buf[:64], to); err != nil {
			b.Fatal(err)
		}
		if _, err := cx.Read(buf); err != nil {
			b.Fatal(err)
		}
	}
}

// plugIn attaches a host and tells the program of it.
func (r *rack) plugIn(port byte, h *lab) {
	r.t.Helper()
	if err := r.sw.AttachInterface(datapath.Port(port), h.iface); err != nil {
		r.t.Fatal(err)
	}
	r.tell(port, h)
}

// tell tells the program who is behind a port.
func (r *rack) tell(port byte, h *lab) {
	r.t.Helper()
	a := h.addr.As16()
	whole := datapath.Match{Value: a[:], PrefixLen: 128}
	r.write(p4v1.Update_INSERT,
		r.entry("identity", "known", sample.Row(0), datapath.Match{Value: []byte{0, port}}, whole),
		r.entry("l3", "to_hop", [][]byte{{0, port}}, whole),
		r.entry("next_hop", "forward", [][]byte{{0, port}, h.mac, {2, 0, 0, 0, 0, 0xff}}, datapath.Match{Value: []byte{0, port}}))
	for to := range byte(5) {
		r.write(p4v1.Update_INSERT, r.entry("tcp_allowed", "permit", nil, datapath.Match{Value: []byte{0, port}}, datapath.Match{Value: []byte{0, to}}))
	}
}

// How many packets a second go through, from one port to another.
func BenchmarkInProcess(b *testing.B) {
	r := newRack(b)
	r.host(1, addr1, func([]byte) {})
	r.host(2, addr2, func([]byte) {})
	frame := datagram(7, "payload")
	b.ReportAllocs()
	for b.Loop() {
		r.sw.Input(1, frame)
	}
}

// What holding a packet costs in all: in by a port, to the controller over
// gRPC, back and out.
func BenchmarkHoldAndRelease(b *testing.B) {
	r := newRack(b)
	out := make(chan struct{}, 1)
	r.host(1, addr1, func([]byte) {})
	r.host(2, addr2, func([]byte) { out <- struct{}{} })
	frame := datagram(sample.PortControl, "payload")
	for b.Loop() {
		r.sw.Input(1, frame)
		in := r.next().GetPacket()
		r.send(&p4v1.StreamMessageRequest{Update: &p4v1.StreamMessageRequest_Packet{Packet: &p4v1.PacketOut{
			Payload:  in.GetPayload(),
			Metadata: []*p4v1.PacketMetadata{{MetadataId: 1, Value: []byte{0}}, {MetadataId: 2, Value: []byte{0}}},
		}}})
		<-out
	}
}

// How many small packets a second go from one interface to another, with at most
// 512 under way (the kernel queues 1000 for a CPU by default).
func BenchmarkInterface_Packets(b *testing.B) {
	s, x, y := joined(b, 1500)
	out, in := rawSocket(b, x), rawSocket(b, y)
	frame := datagram(7, "payload")
	copy(frame, y.mac)
	batch := make([]afpacket.Frame, afpacket.BatchSize)
	for i := range batch {
		batch[i].Data = frame
	}
	errs := make([]error, len(batch))
	buf := make([]afpacket.Frame, 0, afpacket.BatchSize)
	sent, got, waits := 0, 0, 0
	for b.Loop() {
		out.SendAll(batch, errs)
		for sent += len(batch); sent-got > 512; {
			r, err := in.Receive(buf)
			if waits++; errors.Is(err, afpacket.ErrTimeout) && waits < 20 {
				continue // on a busy machine the kernel may take its time
			}
			if err != nil {
				b.Fatalf("%v after %d of %d packets: %+v", err, got, sent, s.Ports())
			}
			waits = 0
			for _, f := range r.Frames {
				if bytes.Equal(f.Data, frame) {
					got++
				}
			}
		}
	}
	b.ReportMetric(float64(got)/b.Elapsed().Seconds(), "packets/s")
}
