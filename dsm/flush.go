package dsm

import (
	"github.com/bifrost-rack/bifrost/dsm/internal/transport"
	"github.com/bifrost-rack/bifrost/internal/fault"
)

// flush takes what has become ready, unlocks l.mu, and sends and tells it. The
// caller holds l.mu.
func (l *link) flush() {
	ready := l.endpoint.Ready()
	out := getOutbox()
	for i := range ready.Send {
		out.add(&ready.Send[i])
	}
	l.sendLedgers(out)
	for _, t := range ready.Done {
		t.Tag.(waiter).ended()
	}
	for _, b := range ready.Passed {
		b.Tag.(chan struct{}) <- struct{}{} // likewise
	}
	l.endpoint.Clear()
	wake := l.endpoint.Wake()
	for _, o := range l.ledgers {
		wake = min(wake, o.core.Wake())
	}
	if wake < l.alarm && l.ended == fault.OK {
		l.alarm = wake
		l.timer.Reset(max(0, wake-l.now()))
	}
	l.mu.Unlock()
	out.send(l.conn)
	putOutbox(out)
}

// tick is the timer's.
func (l *link) tick() {
	l.mu.Lock()
	l.alarm = transport.Never
	if l.ended != fault.OK {
		l.mu.Unlock()
		return
	}
	l.endpoint.Tick(l.now())
	ready := l.endpoint.Ready()
	for _, o := range l.ledgers {
		o.core.Tick(l.now())
	}
	told := len(ready.Done)+len(ready.Passed) > 0
	l.flush()
	if told {
		l.interrupt() // whoever reads may have been told just now
	}
	l.sit()
}
