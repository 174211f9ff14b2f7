package endpoint

import (
	"net/netip"
	"testing"
	"time"

	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// service is nodes 1 to n, which have the values 0 to 255 as the Gatekeeper spreads them.
func service(n int) func(at uint8) uint64 {
	return func(at uint8) uint64 {
		for i := range n {
			if int(at) < 256*(i+1)/n {
				return uint64(i + 1)
			}
		}
		return 0
	}
}

// Any few calls in a row are spread over the nodes, whatever their number.
func TestBalance_Alternates(t *testing.T) {
	for nodes := 1; nodes <= 7; nodes++ {
		b, node := NewBalance(77), service(nodes)
		last := uint64(0)
		for round := range 100 {
			counts := map[uint64]int{}
			for range 4 * nodes {
				at := b.Pick(0)
				n := node(at)
				counts[n]++
				if nodes == 2 && n == last {
					t.Fatalf("round %d: node %d twice in a row", round, n)
				}
				last = n
				b.Answered(0, at, n, time.Millisecond, time.Millisecond, false)
			}
			for n := 1; n <= nodes; n++ {
				if c := counts[uint64(n)]; c < 2 || c > 7 {
					t.Fatalf("%d nodes, round %d: node %d got %d of %d calls", nodes, round, n, c, 4*nodes)
				}
			}
		}
		if only := b.Only(); (nodes == 1) != (only == 1) {
			t.Errorf("%d nodes, the only one is %d", nodes, only)
		}
	}
}

// A node that is overloaded, slow or silent is left out for a moment, unless there is no
// other.
func TestBalance_Avoids(t *testing.T) {
	const ms = time.Millisecond
	for name, spoil := range map[string]func(b *Balance, now time.Duration, at uint8){
		"overloaded": func(b *Balance, now time.Duration, at uint8) { b.Answered(now, at, 2, ms, ms, true) },
		"silent":     func(b *Balance, now time.Duration, at uint8) { b.Late(now, at) },
		"slow":       func(b *Balance, now time.Duration, at uint8) { b.Answered(now, at, 2, 20*ms, ms, false) },
	} {
		b, node := NewBalance(0), service(3)
		var now time.Duration
		counts := map[uint64]int{}
		for n := range 3000 {
			now += ms / 10
			at := b.Pick(now)
			if n >= 300 {
				counts[node(at)]++
			}
			switch {
			case node(at) == 2 && n >= 30:
				spoil(b, now, at)
			default:
				b.Answered(now, at, node(at), ms, ms, false)
			}
		}
		if counts[2] == 0 || counts[2] > 80 || counts[1] < 1200 || counts[3] < 1200 {
			t.Errorf("%s: calls by node %v", name, counts)
		}
	}
	b := NewBalance(0)
	b.Answered(0, 0, 9, ms, ms, true)
	for at := range 256 {
		b.Answered(0, uint8(at), 9, ms, ms, true)
	}
	if at := b.Pick(ms); b.Node(at) != 9 || b.Only() != 9 {
		t.Error("the only node is left out")
	}
	for at := range 256 {
		b.Answered(ms, uint8(at), 10, ms, ms, false)
	}
	if b.Only() != 10 || len(b.nodes) != 1 {
		t.Errorf("a node that has gone is remembered: %v", b.nodes)
	}
}

// The Caller makes ids with the bytes that the Balance picks; a copy keeps its own.
func TestBalance_Caller(t *testing.T) {
	c, b := NewCaller(netip.Addr{}, func() uint64 { return 5 }), NewBalance(0)
	floor := uint64(0)
	for _, want := range []uint8{0, 128, 64, 192, 32} {
		call := &Call{RTT: new(RTT), Balance: b}
		c.Begin(0, call)
		if call.ID[15] != want || call.ID.Sequence() <= floor || call.Floor != call.ID.Sequence() {
			t.Errorf("call %s, floor %d after %d, want byte %d", call.ID, call.Floor, floor, want)
		}
		floor = call.Floor
		id := call.ID
		if again, _ := c.Tick(time.Second, nil, nil); len(again) != 1 || again[0].ID != id {
			t.Errorf("copies: %v", again)
		}
		c.Receive(time.Second, netip.Addr{}, &rpcpacket.Message{Header: rpcpacket.Header{Type: rpcpacket.Reply, Flags: rpcpacket.FlagSession, Call: id}})
	}
}
