package transport

import (
	"math"
	"time"

	"github.com/bifrost-rack/bifrost/dsm/packet"
	"github.com/bifrost-rack/bifrost/internal/fault"
)

// Config says who the client is and what its datagrams carry.
type Config struct {
	Incarnation uint32
	// MaxData is how many bytes of data one datagram carries.
	MaxData int
	// Window is how many bytes may be under way with one machine, as long as none is
	// lost; 0 means DefaultWindow.
	Window int
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
	Sent, Resent, Answered, Denied, Stray uint64
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
	To     packet.Pointer
	Header packet.Header
	Data   []byte
	// First is the transfer whose buffer Data is a part of, if it is sent for the
	// first time: its caller waits, so the bytes do not change until they are sent.
	First *Transfer
}

// Never is the time that does not come.
const Never = time.Duration(math.MaxInt64)

// New returns an endpoint without requests.
func New(cfg Config) *Endpoint {
	if cfg.Window <= 0 {
		cfg.Window = DefaultWindow
	}
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

func (e *Endpoint) peer(ptr packet.Pointer) *peer {
	m := ptr.Machine()
	if e.peers[m] == nil {
		e.peers[m] = newPeer(ptr.Prefix(), m, newCongestion(e.cfg.Window, DefaultWindow, overhead+e.cfg.MaxData))
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
