package gatekeeper

import (
	"errors"
	"math"

	"github.com/bifrost-rack/bifrost/gatekeeper/log"
)

// outbox keeps packets back until all that led to them is logged: what an input
// has changed, and what inputs before it have. Without a log nothing waits.
//
//	batch, packets ─▶ tail ─ Submit ─▶ waiting ─ logged ─▶ the switch
//	                    └─ the log is busy: it grows until that takes it
type outbox struct {
	store    *log.Log
	most     int // packets that may wait
	transmit func(packetOut)
	confirm  func(error) // called by the log for each batch, in order

	waiting []parcel // submitted, oldest first
	tail    parcel   // not yet submitted
	held    int      // packets in all of them
}

// parcel is a batch and the packets that wait for it.
type parcel struct {
	batch   *log.Batch
	packets []packetOut
}

func newOutbox(store *log.Log, most int, transmit func(packetOut), confirm func(error)) *outbox {
	return &outbox{store: store, most: most, transmit: transmit, confirm: confirm, tail: parcel{batch: new(log.Batch)}}
}

// put takes what an input has changed, and the packets that it caused.
func (o *outbox) put(b *log.Batch, packets []packetOut) error {
	o.tail.batch.Append(b)
	o.tail.packets = append(o.tail.packets, packets...)
	o.held += len(packets)
	return o.flush()
}

// flush hands the tail to the log, or to the switch if nothing is to be logged.
func (o *outbox) flush() error {
	switch {
	case o.tail.batch.Len() > 0:
		switch err := o.store.Submit(o.tail.batch, o.confirm); {
		case errors.Is(err, log.ErrBusy), errors.Is(err, log.ErrFull):
			return nil
		case err != nil:
			return err
		}
		o.waiting = append(o.waiting, o.tail)
		o.tail = parcel{batch: new(log.Batch)}
	case len(o.waiting) > 0:
		last := &o.waiting[len(o.waiting)-1]
		last.packets = append(last.packets, o.tail.packets...)
		o.tail.packets = nil
	default:
		o.deliver(o.tail.packets)
		o.tail.packets = nil
	}
	return nil
}

// confirmed takes the log's word about the oldest batch, and lets go on what has
// waited for it.
func (o *outbox) confirmed(err error) error {
	if err != nil {
		return err
	}
	o.deliver(o.waiting[0].packets)
	o.waiting[0] = parcel{}
	o.waiting = o.waiting[1:]
	if o.tail.batch.Len() == 0 {
		return nil
	}
	return o.flush()
}

func (o *outbox) deliver(packets []packetOut) {
	o.held -= len(packets)
	for _, p := range packets {
		o.transmit(p)
	}
}

// pressure is how much the log can take.
type pressure struct {
	// new: new work should stay away, for the log is stalled or nearly full.
	new bool
	// stalled: the log does not take what it gets, or keeps too many packets waiting.
	// What is sent again anyway should not wait in the outbox once more.
	stalled bool
	// room is how many bytes an answer, or another end of what is under way, may have.
	room uint64
}

// noPressure is that of a Gatekeeper without a log.
var noPressure = pressure{room: math.MaxUint64}

func (o *outbox) pressure() pressure {
	s := o.store.Stats()
	p := pressure{stalled: o.tail.batch.Len() > 0 || o.held >= o.most}
	p.new = p.stalled || s.Bytes > s.Limit-s.Limit/logReserve
	if most := s.Limit - s.Limit/(2*logReserve); s.Bytes < most {
		p.room = most - s.Bytes
	}
	return p
}
