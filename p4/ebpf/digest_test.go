//go:build linux

package ebpf

import (
	"net/netip"
	"testing"
	"time"

	"github.com/bifrost-rack/bifrost/internal/frame"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
	"github.com/bifrost-rack/bifrost/p4/datapath"
)

// told is a sink that hands digests on.
type told chan datapath.Digest

func (told) PacketIn([]byte)            {}
func (t told) Digest(d datapath.Digest) { t <- d }
func (told) Idle(datapath.Entry)        {}

// replyCall is a reply of a call, which the program tells by a digest; id is the
// call's.
func replyCall(id byte) []byte {
	b := append([]byte{0xb1, 0xfc, 2, 2}, make([]byte, 124)...) // magic, version, REPLY
	b[39] = id
	return frame.UDP6{Src: netip.AddrPortFrom(nodeA, rackaddr.PortRPC), Dst: netip.AddrPortFrom(nodeB, rackaddr.PortRPC), Payload: b}.Append(nil)
}

// Digests come in order, one by one and in bursts, whether the reader rests or not.
func TestDigest_WhileTheReaderRests(t *testing.T) {
	got := make(told, 64)
	x := start(t, got, route(), hop(), at(0, nodeA))
	id := byte(0)
	for _, burst := range []int{1, 1, 3, 1, 20, 1} {
		first := id
		for range burst {
			if _, _, err := x.main.Benchmark(replyCall(id), 1, nil); err != nil {
				t.Fatal(err)
			}
			id++
		}
		for want := first; want != id; want++ {
			for have := got.id(t); have != want; have = got.id(t) {
				if have != want-1 { // a run that a signal interrupts is repeated
					t.Fatalf("a digest of call %d, want %d", have, want)
				}
			}
		}
	}
}

// id is the call's id of the next digest.
func (t told) id(tb testing.TB) byte {
	tb.Helper()
	select {
	case d := <-t:
		call := d.Fields[1]
		return call[len(call)-1]
	case <-time.After(10 * time.Second):
		tb.Fatal("no digest has come")
		return 0
	}
}
