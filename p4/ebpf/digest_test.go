//go:build linux

package ebpf

import (
	"net/netip"
	"testing"
	"time"

	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
	"github.com/bifrost-rack/bifrost/internal/frame"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
	"github.com/bifrost-rack/bifrost/p4/datapath"
)

// told is a sink that hands digests on.
type told chan datapath.Digest

func (told) PacketIn([]byte)            {}
func (t told) Digest(d datapath.Digest) { t <- d }
func (told) Idle(datapath.Entry)        {}

// memoryHome is where memory machine 1 is.
func memoryHome() datapath.Entry {
	prefix := dsmpacket.Make(rackaddr.DefaultDSMPrefix, 1, 0)
	return datapath.Entry{Table: "BifrostIngress.dsm_home", Match: []datapath.Match{{Value: prefix[:6]}},
		Action: &datapath.Action{Name: "BifrostIngress.to_hop", Params: [][]byte{{0, 1}}}}
}

// denied is a request of node A to read what it does not own, which the program tells by a digest.
func denied(request byte) []byte {
	memory := dsmpacket.Make(rackaddr.DefaultDSMPrefix, 1, dsmpacket.IDOf(20_099, 1)).With(dsmpacket.OpRead)
	h := dsmpacket.Header{Kind: dsmpacket.Request, Length: 8, Request: uint64(request)}
	return frame.UDP6{Src: netip.AddrPortFrom(nodeA, rackaddr.PortDSM), Dst: netip.AddrPortFrom(netip.AddrFrom16(memory), rackaddr.PortDSM), Payload: h.Append(nil)}.Append(nil)
}

// Digests come in order, one by one and in bursts, whether the reader rests or not.
func TestDigest_WhileTheReaderRests(t *testing.T) {
	got := make(told, 64)
	x := start(t, got, memoryHome(), hop(), at(0, nodeA))
	if err := x.SetRegister("BifrostIngress.rights.switch_state", 1, []byte{7: 1}); err != nil { // as they should be
		t.Fatal(err)
	}
	id := byte(0)
	for _, burst := range []int{1, 1, 3, 1, 20, 1} {
		first := id
		for range burst {
			if _, _, err := x.main.Benchmark(denied(id), 1, nil); err != nil {
				t.Fatal(err)
			}
			id++
		}
		for want := first; want != id; want++ {
			for have := got.id(t); have != want; have = got.id(t) {
				if have != want-1 { // a run that a signal interrupts is repeated
					t.Fatalf("a digest of request %d, want %d", have, want)
				}
			}
		}
	}
}

// id is the number of the request of the next digest.
func (t told) id(tb testing.TB) byte {
	tb.Helper()
	select {
	case d := <-t:
		request := d.Fields[3]
		return request[len(request)-1]
	case <-time.After(patience):
		tb.Fatal("no digest has come")
		return 0
	}
}
