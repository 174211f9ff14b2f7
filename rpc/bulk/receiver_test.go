package bulk

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/bifrost-rack/bifrost/internal/rackaddr"
	"github.com/bifrost-rack/bifrost/internal/share"
)

// event is a datagram on its way in the simulation.
type event struct {
	at   time.Duration
	pull bool
	b    []byte
}

// network carries one transfer between a sender, which obeys pulls, and a Receiver.
type network struct {
	t       *testing.T
	random  *rand.Rand
	loss    float64
	now     time.Duration
	events  []event
	r       *Receiver
	key     Key
	message []byte
	first   int
	sent    int // parts
}

func (n *network) carry(pull bool, b []byte) {
	if n.random.Float64() < n.loss {
		return
	}
	for range 1 + map[bool]int{true: 1}[n.random.Float64() < n.loss] {
		at := n.now + 10*time.Microsecond
		if n.loss > 0 {
			at += time.Duration(n.random.IntN(20)) * time.Microsecond
		}
		if n.random.Float64() < n.loss {
			at += time.Duration(n.random.IntN(50)) * time.Millisecond
		}
		n.events = append(n.events, event{at, pull, b})
	}
}

func (n *network) parts(ranges []Range, size int) {
	for _, r := range Cut(nil, ranges, size) {
		h := Header{
			Kind: Part, Call: n.key.Call, Answer: n.key.Answer, Total: uint64(len(n.message)), First: uint32(n.first),
			Offset: r.Offset, Size: uint32(r.Length),
		}
		n.sent++
		n.carry(false, append(h.Append(nil), n.message[r.Offset:r.Offset+r.Length]...))
	}
}

// run lets the transfer go on until nothing happens any more, and returns the message.
func (n *network) run(size int) (whole []byte) {
	for {
		for _, a := range n.r.Asks {
			h := a.Header(Pull)
			n.carry(true, h.Append(nil, a.Ranges...))
		}
		n.r.Asks = nil
		n.check()
		due, open := n.r.Due()
		if len(n.events) == 0 && !open {
			return whole
		}
		next := slices.MinFunc(append(n.events, event{at: 1 << 60}), func(a, b event) int { return int(a.at - b.at) })
		if open && due < next.at {
			n.now = max(n.now, due)
			if silent := n.r.Tick(n.now); len(silent) > 0 {
				n.t.Fatalf("given up at %v", n.now)
			}
			continue
		}
		i := slices.IndexFunc(n.events, func(e event) bool { return e.at == next.at })
		n.now = next.at
		e := n.events[i]
		n.events = slices.Delete(n.events, i, i+1)
		h, ranges, data, err := parse(e.b)
		if err != nil {
			n.t.Fatal(err)
		}
		if e.pull {
			n.parts(ranges, int(h.Size))
			continue
		}
		if x, v := n.r.Receive(n.now, n.key, &h, data); v == Whole {
			whole = x.Body()
		} else if v == Malformed {
			n.t.Fatalf("part at %d is %d", h.Offset, v)
		}
	}
}

// check holds what the Receiver keeps against what it should.
func (n *network) check() {
	out := 0
	for _, x := range n.r.order {
		if out += x.flight.Out(); x.flight.Out() != x.out {
			n.t.Fatalf("%d bytes on their way, counted %d", x.flight.Out(), x.out)
		}
		if most := max(n.r.cfg.Window, 2*Push, 2*Cost(x.size)); x.out > most {
			n.t.Fatalf("%d bytes on their way, at most %d should be", x.out, most)
		}
	}
	if out != n.r.out {
		n.t.Fatalf("%d bytes on their way, counted %d", out, n.r.out)
	}
}

// TestTransfer moves messages of many sizes over networks that lose, double, reorder
// and delay packets. Every message comes whole, and a good network carries no part
// twice.
func TestTransfer(t *testing.T) {
	for _, size := range []int{1176, 8896, 65431} {
		for _, loss := range []float64{0, 0.01, 0.2} {
			for _, total := range []int{1, 2, size, size + 1, 3 * size, 256 << 10, 2<<20 + 17, 20 << 20} {
				if total == 20<<20 && (loss > 0.1 || size < 60000) {
					continue
				}
				t.Run(fmt.Sprintf("size=%d/loss=%g/total=%d", size, loss, total), func(t *testing.T) {
					random := rand.New(rand.NewPCG(uint64(size), uint64(total)))
					message := make([]byte, 10+total)
					for i := range message {
						message[i] = byte(random.Uint32())
					}
					n := &network{
						t: t, random: random, loss: loss, message: message, first: 10,
						r:   NewReceiver(Config{Window: 2 << 20, Message: 1 << 30, PerPeer: 1 << 30, Total: 1 << 30}),
						key: Key{Peer: rackaddr.Node(1), Call: callID(1, 2)},
					}
					_, v := n.r.Begin(0, n.key, uint64(len(message)), message[:10], size, Pushes(0, size))
					if v != Taken {
						t.Fatal(v)
					}
					n.parts([]Range{Pushed(uint64(len(message)), 10, size, Pushes(0, size))}, size)
					if got := n.run(size); !bytes.Equal(got, message) {
						t.Fatalf("%d bytes came as %d others", len(message), len(got))
					}
					if want := (total + size - 1) / size; loss == 0 && n.sent != want {
						t.Errorf("%d parts were sent, there are %d", n.sent, want)
					}
					n.r.Release(n.key.Peer, uint64(len(message)))
					if n.r.Claimed() != 0 || n.r.out != 0 {
						t.Errorf("%d bytes are still counted", n.r.Claimed())
					}
				})
			}
		}
	}
}

// begun is a Receiver with one transfer of 1000 bytes, 100 in the first packet, in
// parts of 100.
func begun(t testing.TB) (*Receiver, Key, *Transfer) {
	t.Helper()
	r := NewReceiver(Config{Window: 1 << 20, Message: 2000, PerPeer: 3000, Total: 6000, OwnerOf: func(node netip.Addr) share.Owner {
		return share.Owner{Port: binary.BigEndian.Uint32(node.AsSlice()[12:])}
	}})
	k := Key{Peer: rackaddr.Node(1), Call: callID(1, 2)}
	x, v := r.Begin(0, k, 1000, make([]byte, 100), 100, Pushes(0, 100))
	if v != Taken {
		t.Fatal(v)
	}
	return r, k, x
}

// TestBadParts: parts that contradict the first packet, come twice or were not asked
// for change nothing.
func TestBadParts(t *testing.T) {
	r, k, x := begun(t)
	good := Header{Kind: Part, Call: k.Call, Total: 1000, First: 100, Offset: 200, Size: 100}
	for name, c := range map[string]struct {
		change func(*Header) int
		want   Verdict
	}{
		"another total":     {func(h *Header) int { h.Total++; return 100 }, Malformed},
		"another beginning": {func(h *Header) int { h.First = 0; return 100 }, Malformed},
		"between two parts": {func(h *Header) int { h.Offset++; return 100 }, Malformed},
		"before the first":  {func(h *Header) int { h.Offset = 0; return 100 }, Malformed},
		"behind the last":   {func(h *Header) int { h.Offset = 1000; return 100 }, Malformed},
		"too short":         {func(*Header) int { return 99 }, Malformed},
		"good":              {func(*Header) int { return 100 }, Taken},
	} {
		h := good
		n := c.change(&h)
		if _, got := r.Receive(0, k, &h, make([]byte, n)); got != c.want {
			t.Errorf("%s: verdict %d", name, got)
		}
	}
	if _, got := r.Receive(0, k, &good, make([]byte, 100)); got != Known {
		t.Errorf("again: verdict %d", got)
	}
	other := k
	other.Peer = rackaddr.Node(2)
	if _, got := r.Receive(0, other, &good, make([]byte, 100)); got != Unrequested {
		t.Errorf("of another node: verdict %d", got)
	}
	if x.flight.Low() != 0 || x.flight.Len() != 9 {
		t.Errorf("part %d is missing, %d are expected", x.flight.Low(), x.flight.Len())
	}
}

// TestMemory: what senders announce is bounded, for each and for all, until it is
// released.
func TestMemory(t *testing.T) {
	r, k, x := begun(t)
	begin := func(peer netip.Addr, seq, total uint64) Verdict {
		_, v := r.Begin(0, Key{Peer: peer, Call: callID(1, seq)}, total, make([]byte, 100), 100, Pushes(0, 100))
		return v
	}
	other, third := rackaddr.Node(2), rackaddr.Node(3)
	for i, c := range []struct {
		peer netip.Addr
		seq  uint64
		n    uint64
		want Verdict
	}{
		{k.Peer, 2, 1000, Known}, {k.Peer, 3, 2001, TooLong}, {k.Peer, 3, 100, Malformed}, {k.Peer, 3, 2000, Taken},
		{k.Peer, 4, 101, NoRoom}, {other, 4, 2000, NoRoom}, {other, 4, 1500, Taken}, {third, 4, 700, NoRoom}, {third, 4, 200, Taken}, {third, 5, 600, NoRoom},
	} {
		if got := begin(c.peer, c.seq, c.n); got != c.want {
			t.Errorf("step %d: verdict %d, want %d", i, got, c.want)
		}
	}
	r.End(x)
	r.End(x)
	if got := begin(third, 5, 600); got != Taken {
		t.Errorf("after the end of another: verdict %d", got)
	}
}

// TestEarly: parts that come before their first packet are kept, a few of them.
func TestEarly(t *testing.T) {
	r := NewReceiver(Config{Window: 1 << 20, Message: 2000, PerPeer: 3000, Total: 5000})
	k := Key{Peer: rackaddr.Node(1), Call: callID(1, 2)}
	for seq := range uint64(3) {
		other := k
		other.Call = callID(1, seq)
		for i := range 9 {
			h := Header{Kind: Part, Call: other.Call, Total: 1000, First: 100, Offset: uint64(100 + 100*i), Size: 100}
			if _, v := r.Receive(0, other, &h, bytes.Repeat([]byte{byte(i)}, 100)); v != Unrequested {
				t.Fatal(v)
			}
		}
	}
	x, v := r.Begin(0, k, 1000, make([]byte, 100), 100, Pushes(0, 100))
	if v != Whole || x.Body()[999] != 8 || len(r.early) != maxEarly-9 {
		t.Errorf("verdict %d, %d parts are kept", v, len(r.early))
	}
}

// TestQuota_Shares: an owner with 64 nodes announces large messages and sends nothing. Another owner finds room for one of the largest, and
// further ones for smaller ones. If it is learned only then whose the nodes are, there is room for a quarter as much.
func TestQuota_Shares(t *testing.T) {
	const message, senders = 1 << 30, 7
	for _, early := range []bool{true, false} {
		known := early
		owner := func(node netip.Addr) share.Owner {
			n := binary.BigEndian.Uint32(node.AsSlice()[12:])
			if n < 64 && !known {
				return share.Stranger(node)
			}
			return share.Owner{Port: 1 + n/64}
		}
		r := NewReceiver(Config{Window: 1 << 20, Message: message, PerPeer: message, Total: senders * message, OwnerOf: owner})
		begin := func(peer, id, total uint64) Verdict {
			_, v := r.Begin(0, Key{Peer: rackaddr.Node(peer), Call: callID(peer, id)}, total, make([]byte, 100), 60_000, 0)
			return v
		}
		all := func(first, last, most uint64) (taken uint64) {
			for peer := first; peer < last; peer++ {
				for id, total := uint64(0), most; total > 1<<10; { // as much as it gets
					if begin(peer, id, total) == Taken {
						id, taken = id+1, taken+total
					} else {
						total /= 2
					}
				}
				if held := r.claims.Held(rackaddr.Node(peer)); held > message {
					t.Errorf("sender %d has claimed %d bytes", peer, held)
				}
			}
			return taken
		}
		if taken := all(0, 32, message); taken < 2*message || r.Crowded() != (taken > senders*message/8) {
			t.Errorf("one owner has %d bytes: that is no attack", taken)
		}
		known = true
		for peer := range uint64(32) {
			r.Learn(rackaddr.Node(peer))
		}
		all(32, 64, message)
		most := uint64(message)
		if !early {
			most /= 4
		}
		if v := begin(64, 1, most); v != Taken {
			t.Errorf("another owner's large message: verdict %d, %d of %d bytes are claimed", v, r.Claimed(), r.cfg.Total)
		}
		all(65, 128, message)
		for peer := uint64(128); peer < 5*64; peer += 64 {
			if v := begin(peer, 1, 1<<20); v != Taken {
				t.Errorf("a further owner's MiB: verdict %d, %d of %d bytes are claimed", v, r.Claimed(), r.cfg.Total)
			}
		}
	}
}

// TestQuota_OnDemand: a transfer takes memory in proportion to what has come, whatever its sender announces, and whichever of the
// parts that were asked for it sends.
func TestQuota_OnDemand(t *testing.T) {
	const total, size = 16 << 20, 1176
	r := NewReceiver(Config{Window: 1 << 20, Message: 1 << 30, PerPeer: 1 << 33, Total: 5 << 33})
	came, taken := 0, 0
	for seq := range uint64(300) {
		k := Key{Peer: rackaddr.Node(1), Call: callID(1, seq)}
		x, v := r.Begin(0, k, total, make([]byte, 1000), size, Pushes(0, size))
		if v != Taken {
			t.Fatal(v)
		}
		came += 1000
		for i := x.flight.Len() - 1; i >= 0; i -= 40 {
			h := Header{Kind: Part, Call: k.Call, Total: total, First: 1000, Offset: x.part(uint64(i)).Offset, Size: size}
			r.Receive(0, k, &h, make([]byte, size))
			came += size
		}
		taken += len(x.body)
	}
	if taken > 16*came+credit {
		t.Errorf("%d bytes are taken for %d that have come", taken, came)
	}
}

// TestCredit: a message has memory for all of it at once while there is credit, and gives the credit back when it has come or is given up.
func TestCredit(t *testing.T) {
	const total, size = credit/2 + credit/4, 60_000
	r := NewReceiver(Config{Window: 1 << 20, Message: 1 << 30, PerPeer: 1 << 30, Total: 5 << 30})
	begin := func(seq uint64) *Transfer {
		x, v := r.Begin(0, Key{Peer: rackaddr.Node(1), Call: callID(1, seq)}, total, make([]byte, 1000), size, Pushes(0, size))
		if v != Taken {
			t.Fatal(v)
		}
		return x
	}
	first, second := begin(1), begin(2)
	if len(first.body) != total || len(second.body) != ahead*1000 {
		t.Errorf("bodies of %d and %d bytes, want all %d and %d", len(first.body), len(second.body), total, ahead*1000)
	}
	r.End(first)
	third := begin(3)
	if len(third.body) != total {
		t.Errorf("a body of %d bytes when there is credit again, want all %d", len(third.body), total)
	}
	for v := Taken; v != Whole; {
		p := third.part(third.flight.Low())
		h := Header{Kind: Part, Call: third.Call, Total: total, First: 1000, Offset: p.Offset, Size: uint32(p.Length)} //nolint:gosec // small
		if _, v = r.Receive(0, third.Key, &h, make([]byte, p.Length)); v != Taken && v != Whole {
			t.Fatal(v)
		}
	}
	r.End(second)
	if r.lent != 0 {
		t.Errorf("%d bytes of the credit are lent when nothing is under way", r.lent)
	}
}

// TestFourLargest: four senders of the largest messages have room at a time, whoever owns them, and one of another owner besides.
func TestFourLargest(t *testing.T) {
	r := NewReceiver(Config{
		Window: 1 << 20, Message: 1 << 30, PerPeer: 1 << 30, Total: 7 << 30,
		OwnerOf: func(node netip.Addr) share.Owner {
			if node == rackaddr.Node(4) {
				return share.Owner{Port: 2}
			}
			return share.Owner{Port: 1}
		},
	})
	for peer := range uint64(5) {
		if _, v := r.Begin(0, Key{Peer: rackaddr.Node(peer)}, 1<<30, make([]byte, 100), 60_000, 0); v != Taken {
			t.Errorf("message %d: verdict %d", peer, v)
		}
	}
}

// TestNotPushed: what was not pushed is asked for at once.
func TestNotPushed(t *testing.T) {
	r := NewReceiver(Config{Window: 1 << 20, Message: 2000, PerPeer: 3000, Total: 5000})
	r.Begin(0, Key{Peer: rackaddr.Node(1)}, 1000, make([]byte, 100), 100, 0)
	if len(r.Asks) != 1 || len(r.Asks[0].Ranges) != 1 || r.Asks[0].Ranges[0] != (Range{100, 900}) {
		t.Errorf("asked for %v", r.Asks)
	}
}

// TestSilence: a sender that sends nothing is asked MaxTries times, ever more
// rarely, and then given up.
func TestSilence(t *testing.T) {
	r, _, x := begun(t)
	asked := 0
	for {
		now, open := r.Due()
		if !open {
			t.Fatal("nothing is due")
		}
		silent := r.Tick(now)
		asked += len(r.Asks)
		r.Asks = nil
		if len(silent) > 0 {
			if silent[0] != x || asked != MaxTries || now < 5*time.Second || now > 20*time.Second {
				t.Errorf("given up after %v, asked %d times", now, asked)
			}
			break
		}
	}
	if r.Open() != 0 || r.Claimed() != 0 || r.out != 0 {
		t.Errorf("%d transfers, %d bytes are left", r.Open(), r.Claimed())
	}
}

// TestLoss: a hole is asked for as soon as three later parts have come, once.
func TestLoss(t *testing.T) {
	r, k, _ := begun(t)
	for i, want := range []int{0, 0, 1, 0, 0, 0} { // at i = 2 parts 1, 2 and 3 have come
		h := Header{Kind: Part, Call: k.Call, Total: 1000, First: 100, Offset: uint64(200 + 100*i), Size: 100}
		r.Receive(time.Millisecond, k, &h, make([]byte, 100))
		if len(r.Asks) != want {
			t.Errorf("after part %d: %d pulls", i+1, len(r.Asks))
		}
		if want == 1 && (len(r.Asks[0].Ranges) != 1 || r.Asks[0].Ranges[0] != Range{100, 100}) {
			t.Errorf("asked for %v", r.Asks[0].Ranges)
		}
		r.Asks = nil
	}
}

// TestPushedMore: a receiver tells the sender of a message how many bytes it takes unasked, and takes so many behind the next first packet: not
// more, and not those of another sender. It tells less when parts were lost.
func TestPushedMore(t *testing.T) {
	const total, first, size = 3 << 20, 1000, 60_000
	r := NewReceiver(Config{Window: 4 << 20, Message: 1 << 30, PerPeer: 1 << 30, Total: 5 << 30})
	asked := func() (a Ask) {
		if len(r.Asks) == 0 {
			t.Fatal("nothing is asked for")
		}
		a, r.Asks = r.Asks[len(r.Asks)-1], nil
		return a
	}
	begin := func(peer, seq uint64, pushed uint32) *Transfer {
		x, v := r.Begin(0, Key{Peer: rackaddr.Node(peer), Call: callID(peer, seq)}, total, make([]byte, first), size, pushed)
		if v != Taken {
			t.Fatal(v)
		}
		return x
	}
	part := func(x *Transfer, i uint64) Verdict {
		p := x.part(i)
		h := Header{Kind: Part, Call: x.Call, Total: total, First: first, Offset: p.Offset, Size: uint32(p.Length)} //nolint:gosec // small
		_, v := r.Receive(0, x.Key, &h, make([]byte, p.Length))
		return v
	}
	x, told := begin(1, 1, Pushes(0, size)), uint64(0)
	for i, v := uint64(0), Taken; v != Whole; i++ {
		if v = part(x, i); len(r.Asks) > 0 {
			told = asked().Takes
		}
	}
	if told < total/2 || told > 4<<20 {
		t.Fatalf("%d bytes are taken unasked, of a window of %d", told, 4<<20)
	}
	if x = begin(1, 2, Pushes(told, size)+9); x.flight.Len() != int(Pushes(told, size)) {
		t.Errorf("%d parts are expected, %d were told", x.flight.Len(), Pushes(told, size))
	}
	if y := begin(2, 1, Pushes(told, size)); y.flight.Low() != 0 || len(r.Asks) == 0 || r.Asks[len(r.Asks)-1].Ranges[0].Offset != y.part(uint64(Pushes(0, size))).Offset {
		t.Errorf("of another sender more is expected than of everyone")
	}
	r.Asks = nil
	for i := uint64(1); len(r.Asks) == 0; i++ { // part 0 is lost
		part(x, i)
	}
	if a := asked(); a.Takes >= told {
		t.Errorf("after a loss %d bytes are taken unasked, before it %d", a.Takes, told)
	}
	for peer := uint64(3); peer < 3+2*mostPeers; peer++ {
		r.End(begin(peer, 1, 0)) // it has been asked
	}
	if r.Asks = nil; len(r.peers) > mostPeers {
		t.Errorf("%d senders are remembered", len(r.peers))
	}
}

// content is what a message has at an offset, in FuzzReceiver.
func content(offset uint64) byte { return byte(offset ^ offset>>8) }

// FuzzReceiver feeds a transfer with any packets: what is whole has each byte in its place.
func FuzzReceiver(f *testing.F) {
	var all []byte
	for i := range 9 {
		h := Header{Kind: Part, Call: callID(1, 2), Total: 1000, First: 100, Offset: uint64(100 + 100*i), Size: 100}
		all = append(all, append(h.Append(nil), make([]byte, 100)...)...)
	}
	f.Add(all)
	f.Add(all[:400])
	f.Fuzz(func(t *testing.T, b []byte) {
		r, k, _ := begun(t)
		now := time.Duration(0)
		for len(b) > 0 {
			n := min(len(b), HeaderSize+100)
			now += time.Millisecond
			if h, _, data, err := parse(b[:n]); err == nil && h.Kind == Part {
				for i := range data {
					data[i] = content(h.Offset + uint64(i))
				}
				if x, v := r.Receive(now, k, &h, data); v == Whole {
					for i, c := range x.Body()[100:] {
						if len(x.Body()) != 1000 || c != content(uint64(100+i)) {
							t.Fatalf("byte %d of %d is %d", 100+i, len(x.Body()), c)
						}
					}
				}
			}
			r.Tick(now)
			(&network{t: t, r: r}).check()
			r.Asks, b = nil, b[n:]
		}
	})
}
