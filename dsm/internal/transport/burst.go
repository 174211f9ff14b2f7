package transport

import (
	"time"

	"github.com/bifrost-rack/bifrost/dsm/packet"
	"github.com/bifrost-rack/bifrost/internal/fault"
)

// A burst is reads of one transfer that are asked for by one packet: to send a request
// takes about as long as to receive its 64 KiB. Each is a request of its own for all
// the rest: it is answered, and sent again, alone.
//
//	requests r, r+1, r+2 ──▶ one packet (Header.More 2) ──▶ three answers
//
// The writes of a transfer are a packet each, for they carry data, but their answers
// may come in one.

// maxBurst is how many reads are asked for at once: more save little, and let the
// window run empty before the next ones are asked for.
const maxBurst = 4

// burstShare is which part of the window a burst takes at most: the answers to one
// come in while the machine makes those to another.
const burstShare = 3

// burst is how many requests of a transfer are to go out together now.
func (e *Endpoint) burst(p *peer, t *Transfer) int {
	if t.Op != packet.OpRead || p.abandoned > 0 {
		return 1
	}
	whole := (len(t.Buf) - t.issued) / e.cfg.MaxData
	return max(1, min(maxBurst, whole, p.cc.window/burstShare/(overhead+e.cfg.MaxData)))
}

// join makes one packet of the last two, which are of one burst.
func (e *Endpoint) join() {
	last := len(e.ready.Send) - 1
	e.ready.Send[last-1].Header.More++
	e.ready.Send[last] = Packet{}
	e.ready.Send = e.ready.Send[:last]
}

// receiveMany takes in an answer to several requests: writes that were all carried
// out, or a burst of reads that was refused, which is asked for again one by one, as
// what is wrong may be so with one of them.
func (e *Endpoint) receiveMany(now time.Duration, p *peer, from packet.Pointer, h *packet.Header) {
	switch ok := h.Kind == packet.Reply && h.Status == fault.OK; {
	case ok && from.Op() == packet.OpWrite:
		for i := range uint64(h.More) + 1 {
			one := *h
			one.Request, one.More = h.Request+i, 0
			e.receiveOne(now, p, from.Add(int64(i*h.Length)), &one, nil)
		}
	case !ok && from.Op() == packet.OpRead:
		e.askOneByOne(now, p, from, h)
	default:
		e.Stats.Stray++
	}
}

// askOneByOne sends the reads of a refused burst again.
func (e *Endpoint) askOneByOne(now time.Duration, p *peer, from packet.Pointer, h *packet.Header) {
	first := p.find(h.Request)
	if first == nil || first.to != from {
		e.Stats.Stray++
		return
	}
	for i := range uint64(h.More) + 1 {
		if r := p.find(h.Request + i); r != nil && r.op() == packet.OpRead && r.transfer == first.transfer && r.sends == 1 {
			e.Stats.Resent++
			e.transmit(now, p, r)
		}
	}
}
