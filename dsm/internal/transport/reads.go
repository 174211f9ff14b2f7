package transport

import "time"

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

// Place is where the answer to a read belongs.
type Place struct {
	Machine uint8
	Request uint64
	Buf     []byte
}

// Expect appends where the answers to a transfer's reads of at least so many bytes
// belong, in the order in which they were sent, up to the capacity of places.
func (e *Endpoint) Expect(t *Transfer, least int, places []Place) []Place {
	p := e.peer(t.Pointer)
	for r := p.plain.oldest; r != nil && len(places) < cap(places); r = r.next {
		if r.transfer == t && r.n >= least {
			places = append(places, Place{p.machine, r.id, t.Buf[r.off : r.off+r.n]})
		}
	}
	return places
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
