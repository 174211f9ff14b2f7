package bulk

import (
	"net/netip"
	"time"

	"github.com/bifrost-rack/bifrost/internal/pace"
	"github.com/bifrost-rack/bifrost/internal/share"
	"github.com/bifrost-rack/bifrost/internal/stream"
	"github.com/bifrost-rack/bifrost/rpc/internal/sent"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// Timers of a transfer.
const (
	// FirstWait is how long to wait for parts before their round trip is known.
	FirstWait = 20 * time.Millisecond
	// LeastWait keeps a scheduler's hiccup from doubling the traffic.
	LeastWait = 10 * time.Millisecond
	// MostWait caps the backoff.
	MostWait = time.Second
	// MaxTries is how often to ask in vain until the sender counts as silent: with
	// the backoff some ten seconds.
	MaxTries = 14
	// ahead is how many times as much memory a body takes as has come of it, so a false length
	// costs its sender a quarter of it in traffic.
	ahead = 4
	// overtaken is how many parts further than that a part may lie. One that overtakes
	// more counts as lost.
	overtaken = 8
	// credit is how many bytes bodies have beyond that, all together: one that finds enough of it has its whole size at once,
	// and is not copied as it grows.
	credit = 8 << 20
)

var timeout = pace.Timeout{First: FirstWait, Least: LeastWait, Most: MostWait}

// Config bounds a Receiver.
type Config struct {
	// Window is how many bytes, as Cost counts them, all transfers together have on
	// their way at most; those that senders push come on top.
	Window int
	// Message is how many bytes a message has at most.
	Message uint64
	// PerPeer is how many bytes the messages of one sender have together at most,
	// from Begin until Release, and Total those of all. Owners of senders share the total (package share).
	PerPeer, Total uint64
	// OwnerOf says whose a sender is; nil stands for share.Stranger.
	OwnerOf func(node netip.Addr) share.Owner
}

// Key names a transfer: the node at the other end, and its message.
type Key struct {
	Peer   netip.Addr
	Call   rpcpacket.ID
	Answer bool
}

// Verdict is what a Receiver makes of a first packet or part.
type Verdict uint8

// The verdicts.
const (
	Taken       Verdict = iota // taken in
	Whole                      // taken in, and nothing is missing any more
	Known                      // it has come before
	Unrequested                // nobody asked for it, or it has overtaken too many others
	Malformed                  // it contradicts what the first packet said
	TooLong                    // the message exceeds Config.Message
	NoRoom                     // it exceeds PerPeer, or what its sender's owner may have of Total; later there may be room
)

// Transfer is one message that is being received.
type Transfer struct {
	Key
	Tag any // the shell's
	// Caller and Callee are the incarnations that the first packet named.
	Caller, Callee uint32

	total, first uint64
	size         int    // of a part
	parts        uint64 // how many there are
	body         []byte // as far as it is allocated
	credit       uint64 // bytes of the body
	came         uint64 // bytes

	flight stream.Flight[struct{}] // parts that have been asked for, or pushed; they cost their bytes
	out    int                     // of them, in Receiver.out
	at     int                     // in Receiver.order
}

// early is a part that has come before its first packet: the two travel apart.
type early struct {
	key    Key
	header Header
	data   []byte
}

// maxEarly is how many early parts are kept.
const maxEarly = 16

// Ask is a pull to be sent.
type Ask struct {
	*Transfer
	Ranges []Range
	// Takes is how many bytes of parts the sender may push behind its next first packets.
	Takes uint64
}

// Receiver is the receiving side of a node. One goroutine at a time may use it.
type Receiver struct {
	cfg    Config
	open   map[Key]*Transfer
	order  []*Transfer
	early  []early      // the oldest first
	claims *share.Nodes // bytes of messages
	out    int          // bytes on their way
	lent   uint64       // of the credit
	peers  map[netip.Addr]peer

	// Asks are the pulls to send; the shell takes them after each method and sets
	// them to nil.
	Asks []Ask
}

// NewReceiver returns a Receiver.
func NewReceiver(cfg Config) *Receiver {
	return &Receiver{cfg: cfg, open: map[Key]*Transfer{}, peers: map[netip.Addr]peer{}, claims: share.NewNodes(cfg.Total, cfg.OwnerOf)}
}

// Open is how many transfers there are.
func (r *Receiver) Open() int { return len(r.order) }

// Claimed is how many bytes the messages have together that are being received or not
// released.
func (r *Receiver) Claimed() uint64 { return r.claims.Used() }

// Crowded reports whether it matters whose senders are.
func (r *Receiver) Crowded() bool { return r.claims.Crowded() }

// Learn has a sender's messages charged to its owner, of whom there is news.
func (r *Receiver) Learn(peer netip.Addr) { r.claims.Learn(peer) }

// Find returns a transfer, or nil.
func (r *Receiver) Find(k Key) *Transfer { return r.open[k] }

// Begin takes a first packet: the length of the whole message and its first bytes,
// which are copied. The rest comes in parts of size bytes; the sender has pushed so many of them, 0 for none. After Whole
// nothing is missing (see Receive). The caller sets Tag and incarnations of the Transfer.
func (r *Receiver) Begin(now time.Duration, k Key, total uint64, first []byte, size int, pushed uint32) (*Transfer, Verdict) {
	switch {
	case r.open[k] != nil:
		return nil, Known
	case size < 1 || total <= uint64(len(first)):
		return nil, Malformed
	case total > r.cfg.Message:
		return nil, TooLong
	case !r.claim(k.Peer, total):
		return nil, NoRoom
	}
	p, most := r.peers[k.Peer], max(r.cfg.Window, 2*Cost(size))
	t := &Transfer{
		Key: k, total: total, first: uint64(len(first)), came: uint64(len(first)), size: size, parts: (total - uint64(len(first)) + uint64(size) - 1) / uint64(size), //nolint:gosec // of a datagram
		flight: stream.NewFlight[struct{}](0, stream.NewWindow(max(2*Push, p.window), most, most, Cost(size)), timeout), at: len(r.order),
	}
	r.grow(t, t.first)
	copy(t.body, first)
	r.open[k] = t
	r.order = append(r.order, t)
	if pushed > 0 {
		n := Pushed(total, t.first, size, min(pushed, Pushes(p.told, size))).Length // who pushes more loses it
		for i := range (n + uint64(size) - 1) / uint64(size) {
			t.flight.Expect(now, Cost(t.length(i)), struct{}{})
		}
	}
	if r.recall(now, t) {
		return t, Whole
	}
	r.ask(now, t)
	return t, Taken
}

// recall takes in the parts that came early, and reports whether nothing is missing.
func (r *Receiver) recall(now time.Duration, t *Transfer) (whole bool) {
	kept := r.early[:0]
	for _, e := range r.early {
		if e.key != t.Key {
			kept = append(kept, e)
			continue
		}
		if !whole {
			whole = r.take(now, t, &e.header, e.data) == Whole
		}
	}
	clear(r.early[len(kept):])
	r.early = kept
	return whole
}

// claim counts a message's memory, unless there is no room.
func (r *Receiver) claim(peer netip.Addr, n uint64) bool {
	return r.claims.Held(peer)+n <= r.cfg.PerPeer && r.claims.Take(peer, n)
}

// Release gives a message's memory back: of one that is whole, when nobody uses it
// any more.
func (r *Receiver) Release(peer netip.Addr, n uint64) { r.claims.Release(peer, n) }

// End forgets a transfer that is not whole, and releases its memory. It does nothing
// if it has ended.
func (r *Receiver) End(t *Transfer) {
	if r.open[t.Key] != t {
		return
	}
	r.remove(t)
	r.Release(t.Peer, t.total)
}

func (r *Receiver) remove(t *Transfer) {
	delete(r.open, t.Key)
	last := r.order[len(r.order)-1]
	r.order[t.at], last.at = last, t.at
	r.order = r.order[:len(r.order)-1]
	r.out -= t.out
	t.out = 0
	r.lent -= t.credit
}

// peer is what a sender's transfers have shown.
type peer struct {
	window int    // of the last that has come whole
	told   uint64 // how many bytes it may push, at most, by what it was told
}

// mostPeers is how many of them are remembered.
const mostPeers = 1024

func (r *Receiver) keepPeer(a netip.Addr, p peer) {
	if _, known := r.peers[a]; !known && len(r.peers) == mostPeers {
		clear(r.peers)
	}
	r.peers[a] = p
}

// Receive takes a part in. After Whole the transfer has ended, Body is the message,
// and its memory counts until Release.
func (r *Receiver) Receive(now time.Duration, k Key, h *Header, data []byte) (*Transfer, Verdict) {
	t := r.open[k]
	if t == nil {
		r.keep(k, h, data)
		return nil, Unrequested
	}
	v := r.take(now, t, h, data)
	if v == Taken {
		r.ask(now, t)
	}
	return t, v
}

// Room is where the next part of a transfer belongs: the part at this offset, into
// these bytes of the message. Other bytes may be put there, too, while it is missing.
type Room struct {
	Key    Key
	Offset uint64
	Bytes  []byte
}

// Rooms fills rooms with those of the parts that come next, and returns how many there
// are; none unless there is one transfer only. They are valid until whoever calls
// Receive and Begin gives a part of the transfer to one of them.
func (r *Receiver) Rooms(rooms []Room) (n int) {
	if len(r.order) != 1 {
		return 0
	}
	t := r.order[0]
	for i := range t.flight.Missing() {
		p := t.part(i)
		if n == len(rooms) || p.Offset+p.Length > uint64(len(t.body)) {
			break
		}
		rooms[n] = Room{t.Key, p.Offset, t.body[p.Offset : p.Offset+p.Length : p.Offset+p.Length]}
		n++
	}
	return n
}

// keep keeps a part for which there is no first packet yet.
func (r *Receiver) keep(k Key, h *Header, data []byte) {
	if len(r.early) == maxEarly {
		r.early = append(r.early[:0], r.early[1:]...)
	}
	r.early = append(r.early, early{k, *h, append([]byte(nil), data...)})
}

// take takes a part of a transfer in.
func (r *Receiver) take(now time.Duration, t *Transfer, h *Header, data []byte) Verdict {
	if h.Total != t.total || uint64(h.First) != t.first || h.Offset < t.first || h.Offset >= t.total {
		return Malformed
	}
	i := (h.Offset - t.first) / uint64(t.size) //nolint:gosec // of a datagram
	switch p := t.part(i); {
	case h.Offset != p.Offset || uint64(len(data)) != p.Length:
		return Malformed
	case i >= t.flight.Next(), h.Offset > ahead*t.came+overtaken*uint64(t.size): //nolint:gosec // of a datagram
		return Unrequested
	case !t.flight.Came(now, i):
		return Known
	}
	t.came += uint64(len(data))
	r.grow(t, h.Offset+uint64(len(data)))
	if at := t.body[h.Offset:]; &at[0] != &data[0] { // else it was received there
		copy(at, data)
	}
	r.count(t)
	if t.flight.Low() == t.parts {
		r.remove(t)
		p := r.peers[t.Peer]
		p.window = t.flight.Window.Size()
		r.keepPeer(t.Peer, p)
		return Whole
	}
	return Taken
}

// count brings what is on its way of a transfer into that of all.
func (r *Receiver) count(t *Transfer) {
	r.out += t.flight.Out() - t.out
	t.out = t.flight.Out()
}

// ask pulls what is lost, and what comes next once half of the window is free.
func (r *Receiver) ask(now time.Duration, t *Transfer) {
	var a []Range
	for i := range t.flight.Again(now) {
		if a = join(a, t.part(i)); len(a) == MaxRanges {
			break
		}
	}
	r.count(t)
	if size := t.flight.Window.Size(); t.out <= size/2 && len(a) < MaxRanges {
		others := r.out - t.out
		for i := t.flight.Next(); i < t.parts; i++ {
			if out, n := t.flight.Out(), Cost(t.size); out > 0 && (out+n > size || others+out+n > r.cfg.Window) {
				break
			}
			t.flight.Send(now, Cost(t.length(i)), struct{}{})
			a = join(a, t.part(i))
		}
		r.count(t)
	}
	if len(a) > 0 {
		takes := uint64(max(0, min(t.flight.Window.Size(), r.cfg.Window+t.out-r.out))) //nolint:gosec // not negative
		p := r.peers[t.Peer]
		p.told = max(p.told, takes)
		r.keepPeer(t.Peer, p)
		r.Asks = append(r.Asks, Ask{t, a, takes})
	}
}

// join appends a range, to the last one if it goes on there.
func join(a []Range, b Range) []Range {
	if n := len(a); n > 0 && a[n-1].Offset+a[n-1].Length == b.Offset {
		a[n-1].Length += b.Length
		return a
	}
	return append(a, b)
}

// Tick asks again for what has not come in time, and returns the transfers whose
// senders are silent, which have ended.
func (r *Receiver) Tick(now time.Duration) (silent []*Transfer) {
	for n := len(r.order) - 1; n >= 0; n-- {
		t := r.order[n]
		if !t.flight.Tick(now) {
			continue
		}
		if t.flight.Tries() > MaxTries {
			r.End(t)
			silent = append(silent, t)
			continue
		}
		r.ask(now, t)
	}
	return silent
}

// Due is when Tick has something to do; false means not before a Begin.
func (r *Receiver) Due() (at time.Duration, ok bool) {
	for _, t := range r.order {
		if due, busy := t.flight.Due(); busy && (!ok || due < at) {
			at, ok = due, true
		}
	}
	return at, ok
}

// Body is the message's payload, once it is whole.
func (t *Transfer) Body() []byte { return t.body[:t.total] }

// Size is the message's length in bytes.
func (t *Transfer) Size() uint64 { return t.total }

// Header is that of a pull, or of the news that the message is whole.
func (t *Transfer) Header(k Kind) Header {
	return Header{
		Kind: k, Answer: t.Answer, Call: t.Call, CallerIncarnation: t.Caller, CalleeIncarnation: t.Callee,
		Total: t.total, Size: uint32(t.size), First: uint32(t.first), //nolint:gosec // of a datagram
	}
}

// part is where part i is; it has no bytes if there is none.
func (t *Transfer) part(i uint64) Range {
	at := t.first + i*uint64(t.size)                                //nolint:gosec // of a datagram
	return Range{at, min(uint64(t.size), t.total-min(at, t.total))} //nolint:gosec // of a datagram
}

// length is how many bytes part i has.
func (t *Transfer) length(i uint64) int { return int(t.part(i).Length) } //nolint:gosec // of a datagram

// grow makes room for a message's first n bytes, and for some of those that come next, or all.
func (r *Receiver) grow(t *Transfer, n uint64) {
	if uint64(len(t.body)) >= n {
		return
	}
	size := min(t.total, max(n, ahead*t.came))
	if missing := t.total - size; r.lent+missing <= credit {
		size, t.credit = t.total, missing
		r.lent += missing
	}
	body := sent.Uncleared(int(size)) // it is handed over when all of it has been overwritten //nolint:gosec // Config.Message at most
	copy(body, t.body)
	t.body = body
}
