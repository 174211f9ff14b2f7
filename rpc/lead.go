package rpc

import (
	"sync/atomic"
	"time"
)

// role is what the goroutine is that runs an execution. An export's endpoint is
// read by one goroutine, which also runs handlers: to hand a call to another
// goroutine would cost more than most handlers take. What it must not do is keep
// later calls waiting.
//
//	┌──▶ read ── several calls ──▶ a goroutine for each but the last
//	│     │ one call, or the last
//	│     ├─ its method is quick ─▶ run ─ done ─▶ read on
//	│     │                          │ waits for a call or for memory, or takes
//	│     │                          ▼ longer than expected: promote
//	│     └─ it may be slow ───────▶ another goroutine reads; this one runs the
//	└──────────── the other ◀─────── call, then those that wait for its slot
type role struct {
	state  atomic.Uint32
	since  time.Duration
	reader *reader // what it reads with, while it is the reader
}

// States of a role.
const (
	worker   uint32 = iota
	reading         // it will read on when the handler has returned
	promoted        // it was, and another one has been made the reader
)

// quick is how long a method's handlers take at most for its calls to be run by
// the reader: about what waking another goroutine costs.
const quick = 50 * time.Microsecond

// patience is after how long at most a handler that should have been quick gets
// the reader's role taken away.
const patience = beat

// took learns how long a handler ran: quickly that it is slow, slowly that it is
// quick.
func (m *served) took(d time.Duration) {
	if m == nil {
		return // the processor has been replaced by one without the method
	}
	old := m.time.Load()
	change := (int64(d) - old) / 16
	if int64(d) > old {
		change = (int64(d) - old) / 2
	}
	m.time.Store(max(1, old+change))
}

// quick reports whether the method's handlers are expected to be.
func (m *served) quick() bool {
	if m == nil {
		return true // it will be refused
	}
	t := m.time.Load()
	return t != 0 && t <= int64(quick)
}

// read takes calls off an export's endpoint until that is closed, or another
// goroutine has become the reader.
func (x *export) read(r *reader) {
	for {
		count, err := r.next()
		if err != nil {
			r.free()
			if !x.closed.Load() {
				x.node.readFailed(err)
			}
			x.node.readers.Done()
			return
		}
		if !x.readOn(r, count) {
			return
		}
	}
}

// readOn deals with the datagrams that have been read. It reports false if the
// goroutine is the reader no longer.
func (x *export) readOn(r *reader, count int) bool {
	var last *execution
	for i := range count {
		e := x.receive(r, i)
		if e == nil {
			continue
		}
		if last != nil {
			go x.pool.work(last)
		}
		last = e
	}
	switch {
	case last == nil:
		return true
	case !x.offer.Load().methods[last.call.Method].quick():
		go x.read(r)
		x.pool.work(last)
		return false
	}
	return x.runReading(last, r)
}

// runReading runs a call in the reader's goroutine. It reports false if the
// goroutine is the reader no longer.
func (x *export) runReading(e *execution, r *reader) bool {
	e.role.reader, e.role.since = r, x.node.now()
	e.role.state.Store(reading)
	x.running.Store(e)
	x.node.wakeAt(e.role.since + beat)
	if x.node.base.Err() != nil {
		e.promote() // close may have come too early to see e
	}
	x.run(e)
	x.running.Store(nil)
	still := e.role.state.CompareAndSwap(reading, worker)
	next := x.pool.end(e)
	if !still {
		x.pool.work(next)
		return false
	}
	if next != nil {
		go x.pool.work(next)
	}
	return true
}

// promote makes another goroutine the reader, if the one that runs e is it.
func (e *execution) promote() {
	if e.role.state.Load() == reading && e.role.state.CompareAndSwap(reading, promoted) {
		go e.export.read(e.role.reader)
	}
}

// promoteAfter promotes e if it has run for so long, and reports whether it has.
func (e *execution) promoteAfter(now, patience time.Duration) bool {
	if now-e.role.since < patience {
		return false
	}
	e.promote()
	return true
}
