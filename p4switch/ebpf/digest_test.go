//go:build linux

package ebpf

import (
	"net/netip"
	"testing"
	"time"

	"github.com/bifrost-rack/bifrost/p4switch/datapath"
	"github.com/bifrost-rack/bifrost/p4switch/internal/sample"
	"github.com/bifrost-rack/bifrost/p4switch/shared/frame"
)

// told is a sink that hands digests on.
type told chan datapath.Digest

func (told) PacketIn([]byte)            {}
func (t told) Digest(d datapath.Digest) { t <- d }
func (told) Idle(datapath.Entry)        {}

// memoryHome is where the memory of machine 1 is.
func memoryHome() datapath.Entry {
	return datapath.Entry{Table: "SampleIngress.home", Match: []datapath.Match{{Value: sample.Machine()}},
		Action: &datapath.Action{Name: "SampleIngress.to_hop", Params: [][]byte{{0, 1}}}}
}

// denied is a request of node A to read what it does not own, which the program tells by a digest.
func denied(request byte) []byte {
	memory := netip.AddrPortFrom(sample.Region{Slot: 20_099, Generation: 1}.Address(sample.Read), sample.PortMemory)
	return frame.UDP6{Src: netip.AddrPortFrom(nodeA, sample.PortMemory), Dst: memory, Payload: sample.Request(uint64(request), 0)}.Append(nil)
}

// Digests come in order, one by one and in bursts, whether the reader rests or not.
func TestDigest_WhileTheReaderRests(t *testing.T) {
	got := make(told, 64)
	x := start(t, got, memoryHome(), hop(), at(0, nodeA))
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
