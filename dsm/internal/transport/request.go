package transport

import (
	"slices"
	"time"

	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/internal/pace"
)

// request is one datagram's worth of a transfer, from its first transmission
// until its fate is known.
type request struct {
	id       uint64
	to       dsmpacket.Pointer // with operation
	transfer *Transfer         // nil when nobody waits any more
	scope    Scope
	off, n   int    // the bytes of the transfer's buffer
	length   uint64 // the header's length field
	flags    uint8  // the header's
	cost     int    // bytes charged to the window
	charged  bool   // to reads as well

	first, sent time.Duration // first and last transmission
	deadline    time.Duration // of the last transmission
	number      uint64        // of the last transmission
	sends       int
	doublings   int
	lane        *lane // nil while not to be sent again
	prev, next  *request

	outcome outcome // what copies have answered so far
	doubts  int     // a settle: rounds in which the copies disagreed
	data    []byte  // an abandoned write's own

	refused   bool       // the server was overloaded
	abandoned bool       // a write that nobody waits for any more
	settler   *request   // asks what became of this one
	asks      *request   // settler's other end
	verdict   fault.Code // what to report if it turns out not to have been applied
	waiting   []*Barrier
}

func (r *request) op() dsmpacket.Op { return r.to.Op() }

// reads reports whether the request changes nothing: the first copy answers it, as often as it comes.
func (r *request) reads() bool { return r.op() == dsmpacket.OpRead || r.op() == dsmpacket.OpSlots }

// lane is requests that take about equally long: those that the Gatekeeper
// holds, and the others.
type lane struct {
	rtt            pace.Timeout
	oldest, newest *request // a list by last transmission
	answered       uint64   // the highest first-transmission number answered
}

func (l *lane) push(r *request) {
	r.lane, r.prev, r.next = l, l.newest, nil
	if l.newest != nil {
		l.newest.next = r
	} else {
		l.oldest = r
	}
	l.newest = r
}

// unlink takes r off its lane's list, if it is on one.
func (r *request) unlink() {
	l := r.lane
	if l == nil {
		return
	}
	if r.prev != nil {
		r.prev.next = r.next
	} else {
		l.oldest = r.next
	}
	if r.next != nil {
		r.next.prev = r.prev
	} else {
		l.newest = r.prev
	}
	r.lane, r.prev, r.next = nil, nil, nil
}

// lost is how long after its sending a request is given up that later ones have overtaken.
func (l *lane) lost() time.Duration {
	return l.rtt.Trips.Mean() + max(l.rtt.Trips.Mean()/2, reordering)
}

// due is when r is to be sent again: when its time is up, or sooner if a
// request sent after it has been answered.
func (r *request) due() time.Duration {
	if r.number < r.lane.answered {
		return min(r.deadline, r.sent+r.lane.lost())
	}
	return r.deadline
}

// Scope is on whose behalf an operation is: fields of the packet header.
type Scope struct {
	Execution [16]byte
	Branch    uint64
	Index     uint32
}

// in reports whether two operations are in the same branch of an execution.
func (s Scope) in(o Scope) bool { return s.Execution == o.Execution && s.Branch == o.Branch }

// Transfer is one operation of any size. Fill in the first part, Start it, and
// read the outcome when Ready.Done names it or Cancel has returned; until then
// the endpoint owns it, Buf included.
type Transfer struct {
	Op dsmpacket.Op
	// Pointer is where; of an alloc the region that is to be.
	Pointer dsmpacket.Pointer
	// Buf is read into or written from. To read it must not be empty; the slots of a batch have SlotsSize bytes.
	Buf []byte
	// Size is how many bytes to allocate.
	Size  uint64
	Scope Scope
	// By is why its node may read, if the region is not the node's own.
	By dsmpacket.Use
	// Tag is the caller's own.
	Tag any

	// N is how many bytes, from the first on, are certainly done.
	N int
	// Status is OK, or why the byte at N is not done.
	Status fault.Code
	// Local is true if Status arose here and the server did not say so.
	Local bool
	// Lent says of a Status of Overloaded that the byte at N is not done since its region is lent: the switch has turned the request around, and
	// no copy of it can take effect any more. Whoever waits for the region asks again.
	Lent bool
	// Lost says of a Status of Unavailable that the machine has lost the region, and is there.
	Lost bool
	// Share is true if an alloc is refused because the node's owner has its share, and Slot if the slot is not free.
	Share, Slot bool

	begun      time.Duration
	issued     int  // bytes that have become requests
	open       int  // requests whose fate is not known
	queued     bool // waits in its peer's queue, between prev and next
	prev, next *Transfer
	failed     bool // issues no more
	failAt     int  // lowest offset that failed
	orphan     bool // started by the endpoint itself, nobody waits
}

// single reports whether the transfer is one request without a buffer: a write of no bytes, too,
// which changes nothing, and is denied if the node may not write.
func (t *Transfer) single() bool {
	return t.Op == dsmpacket.OpAlloc || t.Op == dsmpacket.OpFree || t.Op == dsmpacket.OpWrite && len(t.Buf) == 0
}

// more reports whether there is something left to request.
func (t *Transfer) more() bool {
	if t.failed {
		return false
	}
	if t.single() {
		return t.issued == 0
	}
	return t.issued < len(t.Buf)
}

// fail notes that the bytes at off were not done. The lowest offset counts: it reports whether this is one.
func (t *Transfer) fail(off int, status fault.Code, local bool) (lowest bool) {
	if t.failed && off >= t.failAt {
		return false
	}
	t.failed, t.failAt, t.Status, t.Local, t.Lent = true, off, status, local, false
	return true
}

// conclude sets N.
func (t *Transfer) conclude() {
	t.N = len(t.Buf)
	if t.failed {
		t.N = t.failAt
	}
}

// reads bounds what all machines together may send to this client at once: it
// all meets in one receive buffer. Machines that wait for their share get it in
// turn, one datagram each.
type reads struct {
	limit   int
	used    int
	waiting []*peer // the first has the next turn
	turn    *peer   // has it now
}

// admit reports whether p may ask for n bytes. If not, p waits for its turn.
func (l *reads) admit(p *peer, n int) bool {
	if (l.used == 0 || l.used+n <= l.limit) && (len(l.waiting) == 0 || l.turn == p) {
		l.turn = nil
		return true
	}
	if !p.waits {
		p.waits = true
		l.waiting = append(l.waiting, p)
	}
	return false
}

// take charges a read, give takes the charge back.
func (l *reads) take(r *request) {
	r.charged = true
	l.used += r.cost
}

func (l *reads) give(r *request) {
	if r.charged {
		r.charged = false
		l.used -= r.cost
	}
}

// ReadBuffer is where the answer to a read belongs.
type ReadBuffer struct {
	Machine uint8
	Request uint64
	Buf     []byte
}

// Expect appends where the answers to a transfer's reads of at least so many bytes
// belong, in the order in which they were sent, up to the capacity of into.
func (e *Endpoint) Expect(t *Transfer, least int, into []ReadBuffer) []ReadBuffer {
	p := e.peer(t.Pointer)
	for r := p.plain.oldest; r != nil && len(into) < cap(into); r = r.next {
		if r.transfer == t && r.n >= least {
			into = append(into, ReadBuffer{p.machine, r.id, t.Buf[r.off : r.off+r.n]})
		}
	}
	return into
}

// pumpAll pumps p, after those who have waited for the reads that p may just
// have ended.
func (e *Endpoint) pumpAll(now time.Duration, p *peer) {
	for l := &e.reads; len(l.waiting) > 0; {
		q := l.waiting[0]
		l.waiting, l.turn, q.waits = l.waiting[1:], q, false
		e.pump(now, q)
		if l.turn == q && q.waits { // still no room: it keeps its place
			l.waiting = append([]*peer{q}, l.waiting[:len(l.waiting)-1]...)
			break
		}
	}
	e.reads.turn = nil
	e.pump(now, p)
}

// resolve asks the server what became of r, which is not sent any more.
// verdict is what to report if it was not applied. Until it is known, a denied
// request keeps its place in the window, so that a large transfer does not run on
// into the same denial. The settle request is sent to r's pointer: if the region there
// is lost, the server says so, which nobody else can.
func (e *Endpoint) resolve(now time.Duration, p *peer, r *request, verdict fault.Code) {
	e.ask(now, p, r, verdict, 0)
}

// ask is resolve with flags for the settle request.
func (e *Endpoint) ask(now time.Duration, p *peer, r *request, verdict fault.Code, flags uint8) {
	if r.settler != nil {
		return
	}
	r.unlink()
	s := e.newRequest()
	s.to, s.length = r.to.With(dsmpacket.OpSettle), r.id
	r.verdict, r.settler, s.asks, s.flags = verdict, s, r, flags
	p.enter(s)
	s.first = now
	e.transmit(now, p, s)
}

// resolved takes in the answer to r's settle request. An answer with an error
// is one about all of the client's requests (its incarnation is fenced) or the
// machine's (it is gone, and its regions with it). A region that was made is freed: the node
// has not got it, as the switch has seen no answer that says so.
func (e *Endpoint) resolved(now time.Duration, p *peer, r *request, h *dsmpacket.Header) {
	status, applied := h.Status, h.Flags&dsmpacket.FlagApplied != 0
	if made := applied && status == fault.OK && r.op() == dsmpacket.OpAlloc; made {
		e.discard(now, r)
		applied = false
	}
	if status == fault.OK && !applied {
		status = r.verdict
	}
	e.finish(p, r, status)
}

// resume has r asked again, though a settle was to tell its fate: some copies have carried it out, and the others are to. Its region
// is lent at present, so it is sent after a pause.
func (e *Endpoint) resume(now time.Duration, p *peer, r *request) {
	e.leave(p, r.settler)
	r.settler, r.outcome = nil, outcome{}
	e.schedule(now, p, r)
}

// abandon ends the caller's interest in r. An alloc or a free goes on: the
// Gatekeeper may have it in hand already, and must see its end. So does a write,
// unless the machine has a single copy, which is asked to forget it.
func (e *Endpoint) abandon(now time.Duration, p *peer, r *request) {
	buf := r.transfer.Buf
	r.transfer = nil
	e.release(p, r)
	switch r.op() {
	case dsmpacket.OpRead, dsmpacket.OpSlots:
		if r.settler != nil {
			e.leave(p, r.settler)
		}
		e.leave(p, r)
	case dsmpacket.OpWrite:
		r.abandoned = true
		p.abandoned++
		if p.copies.Single() {
			e.resolve(now, p, r, fault.Canceled)
		} else {
			r.drive(buf)
		}
	default: // the others are waited for, cancelled or not
	}
}

// discard frees a region that nobody waits for, or that not all copies have made. The
// alloc's scope tells the server that this takes the alloc back.
func (e *Endpoint) discard(now time.Duration, r *request) {
	e.Start(now, &Transfer{Op: dsmpacket.OpFree, Pointer: r.to.Bare(), Scope: r.scope, orphan: true})
}

// Barrier is a wait for requests whose fate is not known.
type Barrier struct {
	// Tag is the caller's own.
	Tag   any
	holds int
}

// Barrier returns a barrier that passes when the fate of every write and free
// of the given pointers' regions that has been sent by now is known; nil if
// there is none.
func (e *Endpoint) Barrier(ptrs []dsmpacket.Pointer) *Barrier {
	return e.barrier(func(r *request) bool {
		if op := r.op(); op != dsmpacket.OpWrite && op != dsmpacket.OpFree {
			return false
		}
		return slices.ContainsFunc(ptrs, func(ptr dsmpacket.Pointer) bool { return ptr.Base() == r.to.Base() })
	})
}

// BarrierOf is like Barrier for everything that has been sent in a branch of an
// execution, whatever its index.
func (e *Endpoint) BarrierOf(s Scope) *Barrier {
	return e.barrier(func(r *request) bool { return r.asks == nil && !r.reads() && r.scope.in(s) })
}

// barrier returns a barrier that is held by the requests that f picks.
func (e *Endpoint) barrier(f func(*request) bool) (b *Barrier) {
	for _, p := range e.active {
		p.each(func(r *request) {
			if !f(r) {
				return
			}
			if b == nil {
				b = new(Barrier)
			}
			r.waiting = append(r.waiting, b)
			b.holds++
		})
	}
	return b
}
