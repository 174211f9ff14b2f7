package transport

import (
	"cmp"
	"math"
	"time"

	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
	"github.com/bifrost-rack/bifrost/internal/copies"
	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/internal/pace"
	"github.com/bifrost-rack/bifrost/internal/stream"
)

// Config says who the client is and what its datagrams carry.
type Config struct {
	Incarnation uint32
	// MaxData is how many bytes of data one datagram carries.
	MaxData int
	// Window is how many bytes may be under way with one machine, as long as none is
	// lost; 0 means DefaultWindow.
	Window int
	// Limits say when requests are sent again, and given up.
	Limits Limits
}

// Limits are the times that requests go by. A field that is 0 stands for its default.
type Limits struct {
	// FirstTimeout is after how long a request is sent again while there is no round trip
	// to go by. Default: 20 ms.
	FirstTimeout time.Duration
	// LeastTimeout and MostTimeout bound what is made of round trips: a loaded scheduler
	// adds milliseconds. Defaults: 10 ms and a second.
	LeastTimeout, MostTimeout time.Duration
	// GiveUp is how long a machine may be silent on a request before its caller is told
	// that the machine is unavailable. Default: 30 s.
	GiveUp time.Duration
}

// DefaultGiveUp is that of Limits.GiveUp.
const DefaultGiveUp = 30 * time.Second

// withDefaults fills in what is left out.
func (l Limits) withDefaults() Limits {
	return Limits{
		FirstTimeout: cmp.Or(l.FirstTimeout, 20*time.Millisecond), LeastTimeout: cmp.Or(l.LeastTimeout, 10*time.Millisecond),
		MostTimeout: cmp.Or(l.MostTimeout, time.Second), GiveUp: cmp.Or(l.GiveUp, DefaultGiveUp),
	}
}

func (l *Limits) timeout() pace.Timeout {
	return pace.Timeout{First: l.FirstTimeout, Least: l.LeastTimeout, Most: l.MostTimeout}
}

// Endpoint is one client's requests to all memory machines. It has one owner:
// methods must not be called concurrently. Times are since any fixed moment.
type Endpoint struct {
	cfg    Config
	peers  [256]*peer // by machine
	active []*peer    // those that are not nil, in the order of first use
	reads  reads
	number uint64 // of the next transmission
	wake   time.Duration
	ready  Ready
	pool   *request // requests to use again, linked by next
	Stats  Stats
}

// Stats counts what went by.
type Stats struct {
	Sent, Resent, Answered, Denied, Unexpected uint64
	// Diverged counts requests of which one copy of a machine says otherwise than
	// another, and that the copies were told of.
	Diverged uint64
}

// Ready is what a call has brought about. It is good until the next call.
type Ready struct {
	// Send is the datagrams to send, in order. Their Data may alias transfers'
	// buffers.
	Send []Packet
	// Done is the transfers whose outcome is there.
	Done []*Transfer
	// Passed is the barriers that nothing holds any more.
	Passed []*Barrier
}

// Packet is one datagram to a memory server.
type Packet struct {
	To     dsmpacket.Pointer
	Header dsmpacket.Header
	Data   []byte
	// Of is the transfer that the request belongs to, nil if it has none any more. Data is a part of
	// its buffer.
	Of *Transfer
	// Again: the request has been sent before. Until this packet is sent, too, the transfer is not
	// over for its caller, whatever the endpoint says: the region may be another node's then.
	Again bool
}

// Never is the time that does not come.
const Never = time.Duration(math.MaxInt64)

// New returns an endpoint without requests.
func New(cfg Config) *Endpoint {
	if cfg.Window <= 0 {
		cfg.Window = DefaultWindow
	}
	cfg.Limits = cfg.Limits.withDefaults()
	return &Endpoint{cfg: cfg, wake: Never, reads: reads{limit: cfg.Window}}
}

// Ready returns what has come about since it was asked last.
func (e *Endpoint) Ready() *Ready { return &e.ready }

// Clear empties Ready for the next call.
func (e *Endpoint) Clear() {
	clear(e.ready.Send)
	clear(e.ready.Done)
	clear(e.ready.Passed)
	e.ready = Ready{Send: e.ready.Send[:0], Done: e.ready.Done[:0], Passed: e.ready.Passed[:0]}
}

// Wake is when Tick is to be called; it may be earlier than needed.
func (e *Endpoint) Wake() time.Duration { return e.wake }

// Busy reports whether there are requests whose fate is not known.
func (e *Endpoint) Busy() bool {
	for _, p := range e.active {
		if p.floor < p.next {
			return true
		}
	}
	return false
}

// Start begins a transfer.
func (e *Endpoint) Start(now time.Duration, t *Transfer) {
	p := e.peer(t.Pointer)
	t.begun = now
	p.queue.push(t)
	e.pump(now, p)
}

// Cancel ends a transfer for its caller, whatever it has reached; its outcome is
// there at once. False means that it was done already.
func (e *Endpoint) Cancel(now time.Duration, t *Transfer, status fault.Code) bool {
	if !t.queued && t.open == 0 {
		return false
	}
	p := e.peer(t.Pointer)
	t.fail(t.issued, status, true)
	p.each(func(r *request) {
		if r.transfer == t {
			t.fail(r.off, status, true)
			e.abandon(now, p, r)
		}
	})
	t.open = 0
	p.queue.remove(t)
	t.conclude()
	e.pumpAll(now, p)
	return true
}

func (e *Endpoint) peer(ptr dsmpacket.Pointer) *peer {
	m := ptr.Machine()
	if e.peers[m] == nil {
		e.peers[m] = newPeer(ptr.Prefix(), m, stream.NewWindow(e.cfg.Window, e.cfg.Window, DefaultWindow, overhead+e.cfg.MaxData), e.cfg.Limits.timeout())
		e.active = append(e.active, e.peers[m])
	}
	return e.peers[m]
}

func (e *Endpoint) newRequest() *request {
	r := e.pool
	if r == nil {
		return new(request)
	}
	e.pool = r.next
	r.next = nil
	return r
}

// recycle takes a request back that nothing refers to.
func (e *Endpoint) recycle(r *request) {
	*r = request{next: e.pool}
	e.pool = r
}

// peer is one memory machine as this client sees it.
type peer struct {
	prefix, machine uint8
	next, floor     uint64     // the next request id; all below floor are settled
	ring            []*request // id i is at i mod len; the length is a power of two
	queue           queue
	waits           bool          // in reads.waiting
	inflight        int           // bytes charged
	abandoned       int           // writes given up whose fate is not known
	heard           time.Duration // when it last answered
	window          stream.Window // bytes; it is halved down to DefaultWindow
	plain, held     lane
	copies          copies.Set
	writes          int // unsettled
}

// minRing is the length of a new peer's ring.
const minRing = 64

func newPeer(prefix, machine uint8, w stream.Window, rtt pace.Timeout) *peer {
	return &peer{prefix: prefix, machine: machine, next: 1, floor: 1, ring: make([]*request, minRing), window: w, plain: lane{rtt: rtt}, held: lane{rtt: rtt}}
}

func (p *peer) lane(op dsmpacket.Op) *lane {
	if op == dsmpacket.OpAlloc || op == dsmpacket.OpFree {
		return &p.held
	}
	return &p.plain
}

func (p *peer) find(id uint64) *request {
	if id < p.floor || id >= p.next {
		return nil
	}
	return p.ring[id&uint64(len(p.ring)-1)]
}

// enter gives r the next id.
func (p *peer) enter(r *request) {
	if p.next-p.floor == uint64(len(p.ring)) {
		old := p.ring
		p.ring = make([]*request, 2*len(old))
		for id := p.floor; id < p.next; id++ {
			p.ring[id&uint64(len(p.ring)-1)] = old[id&uint64(len(old)-1)]
		}
	}
	r.id = p.next
	p.next++
	p.ring[r.id&uint64(len(p.ring)-1)] = r
	if r.op() == dsmpacket.OpWrite {
		p.writes++
	}
}

// leave forgets r, whose fate is known, and moves the floor.
func (p *peer) leave(r *request) {
	p.ring[r.id&uint64(len(p.ring)-1)] = nil
	if r.op() == dsmpacket.OpWrite {
		p.writes--
	}
	for p.floor < p.next && p.ring[p.floor&uint64(len(p.ring)-1)] == nil {
		p.floor++
	}
}

// each calls f for every request whose fate is not known. f may settle it.
func (p *peer) each(f func(*request)) {
	for id := p.floor; id < p.next; id++ {
		if r := p.find(id); r != nil {
			f(r)
		}
	}
}

// mustWait reports whether r touches bytes of a write that it must not overtake: of one
// that was given up and might still be applied, or, if the machine may have two copies,
// of any that is not settled.
func (p *peer) mustWait(r *request) (wait bool) {
	if p.writes == 0 || p.copies.Single() && p.abandoned == 0 {
		return false
	}
	base, from := r.to.Base(), r.to.Offset()
	p.each(func(w *request) {
		if w.op() != dsmpacket.OpWrite || p.copies.Single() && !w.abandoned {
			return
		}
		at := w.to.Offset()
		wait = wait || w.to.Base() == base && from < at+uint64(w.n) && at < from+uint64(r.n)
	})
	return wait
}

// Tick sends again what is due and gives up what was never answered.
func (e *Endpoint) Tick(now time.Duration) {
	if now < e.wake {
		return
	}
	e.wake = Never
	for _, p := range e.active {
		for _, l := range []*lane{&p.plain, &p.held} {
			e.tickLane(now, p, l)
		}
		e.expire(now, p)
		e.pumpAll(now, p)
	}
}

func (e *Endpoint) tickLane(now time.Duration, p *peer, l *lane) {
	for r := l.oldest; r != nil; {
		next := r.next
		if due := r.due(); due > now {
			e.wake = min(e.wake, due)
		} else {
			e.overdue(now, p, r)
		}
		r = next
	}
}

// overdue takes in that no answer to r came in time.
func (e *Endpoint) overdue(now time.Duration, p *peer, r *request) {
	// What a slow machine may still send must not hold others up.
	e.reads.give(r)
	if r.lane == &p.plain { // a held request may just wait for the Gatekeeper
		p.window.Lost(r.number, e.number)
	}
	if now >= r.deadline {
		r.lane.rtt.Doublings = max(r.lane.rtt.Doublings, r.doublings+1)
	}
	if now-r.first >= e.cfg.Limits.GiveUp && e.silent(now, p, r) {
		return
	}
	e.Stats.Resent++
	e.transmit(now, p, r)
}

// silent tells whoever waits for r that the machine does not answer. True means
// that r is not to be sent again.
func (e *Endpoint) silent(now time.Duration, p *peer, r *request) bool {
	waits := r
	if r.asks != nil {
		waits = r.asks
	}
	t := waits.transfer
	if t == nil {
		return false
	}
	status, op, reads := fault.Unavailable, waits.op(), waits.reads()
	if r.refused {
		status = fault.Overloaded
	}
	t.open--
	t.fail(waits.off, status, !r.refused)
	e.abandon(now, p, waits)
	e.conclude(p, t)
	return reads || op == dsmpacket.OpWrite && r.asks == nil && r.lane == nil
}

// expire tells whoever waits to be sent to a machine that has long been silent.
func (e *Endpoint) expire(now time.Duration, p *peer) {
	if now-p.heard < e.cfg.Limits.GiveUp {
		return
	}
	for t := p.queue.first; t != nil; {
		next := t.next
		if now-t.begun >= e.cfg.Limits.GiveUp {
			p.queue.remove(t)
			t.fail(t.issued, fault.Unavailable, true)
			e.conclude(p, t)
		}
		t = next
	}
}

const (
	// DefaultWindow is how many bytes may be under way to or from one memory
	// machine: four full datagrams fit a default Linux socket buffer (212,992
	// bytes, and the datagram that passes the limit is still taken).
	DefaultWindow = 4 * (64<<10 + overhead)
	// LargeWindow keeps both ends at work at the same time: while the machine copies
	// one half, the client copies the other.
	LargeWindow = 3 * DefaultWindow
	// overhead is what a datagram takes of a socket buffer beside its data:
	// headers, and the kernel's own record of it.
	overhead = 1 << 10

	// maxSpan is how far the newest operation may lie above the floor: half of
	// what a server records (store.MaxSpan). The other half is for the settle
	// requests, of which there is at most one for each operation.
	maxSpan = 1 << 13

	// reordering is how much later than the round trip an answer may come before
	// answers to later requests make its request count as lost.
	reordering = 2 * time.Millisecond
)

// Close ends all transfers with a status. Nothing is sent any more.
func (e *Endpoint) Close(status fault.Code) {
	for _, p := range e.active {
		p.each(func(r *request) {
			if t := r.transfer; t != nil {
				t.fail(r.off, status, true)
				r.transfer = nil
				t.open--
				e.conclude(p, t)
			}
		})
		for t := p.queue.first; t != nil; t = p.queue.first {
			t.fail(t.issued, status, true)
			p.queue.remove(t)
			e.conclude(p, t)
		}
	}
	e.wake = Never
}
