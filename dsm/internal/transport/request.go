package transport

import (
	"time"

	"github.com/bifrost-rack/bifrost/dsm/packet"
	"github.com/bifrost-rack/bifrost/internal/fault"
)

// request is one datagram's worth of a transfer, from its first transmission
// until its fate is known.
type request struct {
	id       uint64
	to       packet.Pointer // with operation
	transfer *Transfer      // nil when nobody waits any more
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
	doublings   uint
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

func (r *request) op() packet.Op { return r.to.Op() }

// lane is requests that take about equally long: those that the Gatekeeper
// holds, and the others.
type lane struct {
	rtt            estimator
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

// due is when r is to be sent again: when its time is up, or sooner if a
// request sent after it has been answered.
func (r *request) due() time.Duration {
	if r.number < r.lane.answered {
		return min(r.deadline, r.sent+r.lane.rtt.lost())
	}
	return r.deadline
}
