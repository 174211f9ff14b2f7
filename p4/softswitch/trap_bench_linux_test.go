package softswitch

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/bifrost-rack/bifrost/p4/datapath"
	p4v1 "github.com/p4lang/p4runtime/go/p4/v1"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
)

// perTrap is how many rules end, and how many begin, at a time.
const perTrap = 4

// trapWrites are two requests, of which each undoes the other: one lets perTrap
// rules end and as many begin. The rules of the first are there.
func (r *rack) trapWrites(election *p4v1.Uint128) [2]*p4v1.WriteRequest {
	r.t.Helper()
	var half [2][]*p4v1.Entity
	for i := range 2 * perTrap {
		e := controlRule(controlRules + i)
		half[i%2] = append(half[i%2], r.entry("rights.control_rule", "rights.allocates", nil, e.Match...))
	}
	r.write(p4v1.Update_INSERT, half[0]...)
	var out [2]*p4v1.WriteRequest
	for i := range out {
		out[i] = &p4v1.WriteRequest{DeviceId: testDevice, ElectionId: election}
		for _, e := range half[i] {
			out[i].Updates = append(out[i].Updates, &p4v1.Update{Type: p4v1.Update_DELETE, Entity: &p4v1.Entity{Entity: &p4v1.Entity_TableEntry{
				TableEntry: &p4v1.TableEntry{TableId: e.GetTableEntry().GetTableId(), Match: e.GetTableEntry().GetMatch()},
			}}})
		}
		for _, e := range half[1-i] {
			out[i].Updates = append(out[i].Updates, &p4v1.Update{Type: p4v1.Update_INSERT, Entity: e})
		}
	}
	return out
}

// onStream is a request as a message of the stream.
func onStream(t testing.TB, r *p4v1.WriteRequest) *p4v1.StreamMessageRequest {
	t.Helper()
	a, err := anypb.New(r)
	if err != nil {
		t.Fatal(err)
	}
	return &p4v1.StreamMessageRequest{Update: &p4v1.StreamMessageRequest_Other{Other: a}}
}

// scripted is a stream whose messages come from a function, without gRPC.
type scripted struct {
	grpc.ServerStream
	recv func() (*p4v1.StreamMessageRequest, error)
}

func (s scripted) Recv() (*p4v1.StreamMessageRequest, error) { return s.recv() }
func (scripted) Context() context.Context                    { return context.Background() }
func (scripted) SendMsg(any) error                           { return nil }
func (scripted) Send(*p4v1.StreamMessageResponse) error      { return nil }

// What a stream write costs in the switch, gRPC left out: decoded, checked, stored
// and put into the kernel's tables, which have controlRules more.
func BenchmarkKernel_StreamWrite(b *testing.B) {
	r, _, _ := newKernelRack(b, 1500)
	r.fill(b)
	election := &p4v1.Uint128{Low: electionID.GetLow() + 1}
	writes := r.trapWrites(election)
	raw := [2][]byte{}
	for i, w := range writes {
		var err error
		if raw[i], err = proto.Marshal(onStream(b, w)); err != nil {
			b.Fatal(err)
		}
	}
	n, arbitrated := 0, false
	var took []time.Duration
	var begin time.Time
	b.ReportAllocs()
	err := r.sw.Server().StreamChannel(scripted{recv: func() (*p4v1.StreamMessageRequest, error) {
		if !arbitrated {
			arbitrated = true
			return &p4v1.StreamMessageRequest{Update: &p4v1.StreamMessageRequest_Arbitration{
				Arbitration: &p4v1.MasterArbitrationUpdate{DeviceId: testDevice, ElectionId: election},
			}}, nil
		}
		if n > 0 {
			took = append(took, time.Since(begin))
		}
		if !b.Loop() {
			return nil, context.Canceled
		}
		begin = time.Now()
		m := &p4v1.StreamMessageRequest{}
		err := proto.Unmarshal(raw[n%2], m)
		n++
		return m, err
	}})
	if !errors.Is(err, context.Canceled) {
		b.Fatal(err)
	}
	report(b, took)
}

// A trap as the Gatekeeper sees it, both in one process: a packet is held, rules end
// and others begin, and the packet is released. "unary" waits for the answers of two
// Writes first, "stream" for nothing.
func BenchmarkKernel_Trap(b *testing.B) {
	for _, way := range []string{"unary", "stream"} {
		b.Run(way, func(b *testing.B) {
			r, x, y := newKernelRack(b, 1500)
			r.fill(b)
			writes := r.trapWrites(electionID)
			from, to := x.blocking(1000), y.blocking(45102)
			buf, dst := make([]byte, 256), &unix.SockaddrInet6{Port: 45102, Addr: y.addr.As16()}
			var took []time.Duration
			for n := 0; b.Loop(); n++ {
				begin := time.Now()
				if err := unix.Sendto(from, buf[:200], 0, dst); err != nil {
					b.Fatal(err)
				}
				in, w := r.next().GetPacket(), writes[n%2]
				if way == "stream" {
					r.send(onStream(b, w))
				} else {
					for _, us := range [][]*p4v1.Update{w.GetUpdates()[:perTrap], w.GetUpdates()[perTrap:]} {
						req := &p4v1.WriteRequest{DeviceId: testDevice, ElectionId: electionID, Updates: us}
						if _, err := r.client.Write(context.Background(), req); err != nil {
							b.Fatal(err)
						}
					}
				}
				r.release(in)
				for {
					_, _, err := unix.Recvfrom(to, buf, 0)
					if err == nil {
						break
					}
					if err != unix.EINTR {
						b.Fatal(err)
					}
				}
				took = append(took, time.Since(begin))
			}
			report(b, took)
		})
	}
}

// fill inserts the rules that are there beside those used.
func (r *rack) fill(b *testing.B) {
	b.Helper()
	e := *r.sw.exec.Load()
	for i := range controlRules {
		if err := e.Apply(datapath.Insert, controlRule(i)); err != nil {
			b.Fatal(err)
		}
	}
}

// report tells the least and the median, since others have the CPUs too.
func report(b *testing.B, took []time.Duration) {
	b.Helper()
	slices.Sort(took)
	b.ReportMetric(float64(took[0].Nanoseconds())/1e3, "min-µs")
	b.ReportMetric(float64(took[len(took)/2].Nanoseconds())/1e3, "p50-µs")
}
