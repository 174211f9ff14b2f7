package gatekeeper

import (
	"errors"
	"sync"
	"sync/atomic"

	"github.com/bifrost-rack/bifrost/gatekeeper/log"
)

// outbox keeps packets back until all that led to them is logged: what an input
// has changed, and what inputs before it have. It is the loop's own, except for
// confirm. Without a log nothing waits.
//
//	batch, packets ─▶ tail ─ Submit ─▶ waiting ─ logged ─▶ the switch
//	                    └─ the log is busy: it grows until that takes it
type outbox struct {
	store    *log.Log
	transmit func(packetOut)

	waiting []parcel // submitted, oldest first
	tail    parcel   // not yet submitted
	held    int      // packets in all of them

	wake    chan struct{} // the log has confirmed something
	logged  atomic.Int64  // batches confirmed since the last look
	failure struct {
		sync.Mutex
		err error
	}
}

// parcel is a batch and the packets that wait for it.
type parcel struct {
	batch   *log.Batch
	packets []packetOut
}

func newOutbox(store *log.Log, transmit func(packetOut)) *outbox {
	return &outbox{store: store, transmit: transmit, tail: parcel{batch: new(log.Batch)}, wake: make(chan struct{}, 1)}
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

// confirm is called by the log for each batch, in order.
func (o *outbox) confirm(err error) {
	if err != nil {
		o.failure.Lock()
		if o.failure.err == nil {
			o.failure.err = err
		}
		o.failure.Unlock()
	} else {
		o.logged.Add(1)
	}
	select {
	case o.wake <- struct{}{}:
	default:
	}
}

// confirmed lets go on what is logged by now.
func (o *outbox) confirmed() error {
	o.failure.Lock()
	err := o.failure.err
	o.failure.Unlock()
	for n := o.logged.Swap(0); n > 0; n-- {
		o.deliver(o.waiting[0].packets)
		o.waiting[0] = parcel{}
		o.waiting = o.waiting[1:]
	}
	if err != nil {
		return err
	}
	return o.flush()
}

func (o *outbox) deliver(packets []packetOut) {
	o.held -= len(packets)
	for _, p := range packets {
		o.transmit(p)
	}
}

// pressed reports whether new work should stay away: the log does not take what
// it gets, keeps too many packets waiting, or is nearly full.
func (o *outbox) pressed() bool {
	if o.tail.batch.Len() > 0 || o.held >= maxHeld {
		return true
	}
	s := o.store.Stats()
	return s.Bytes > s.Limit-s.Limit/logReserve
}
