package dsm

import (
	"context"
	"errors"
	"os"
	"sync"
	"time"

	"github.com/bifrost-rack/bifrost/dsm/packet"
	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/internal/netio"
)

// chair is the right to read the socket. A caller that waits takes it if it is
// vacant and reads the network itself: to be woken by another goroutine would
// cost more than the rest of a small operation. It leaves when its own operation
// is done, and the next caller that waits sits down. A goroutine of the client's
// own sits only while there is something to hear and nobody waits.
type chair struct {
	vacant   chan struct{} // holds a token while nobody sits
	messages [readBatch]netio.Message
	buffers  [readBatch][netio.MaxDatagram]byte
	sitting  sync.WaitGroup // the client's own goroutines
}

// readBatch is how many datagrams are read at once: what a window lets come in.
const readBatch = 4

func newChair() *chair {
	c := &chair{vacant: make(chan struct{}, 1)}
	c.vacant <- struct{}{}
	return c
}

// await waits for done to hold a value. It is false if ctx or the link ended
// first.
func (l *link) await(ctx context.Context, done <-chan struct{}) bool {
	for {
		select {
		case <-done:
			return true
		case <-ctx.Done():
			return false
		case <-l.over:
			return l.endedWith(done)
		case <-l.chair.vacant:
			if l.lead(ctx, done) {
				<-done
				return true
			}
		}
	}
}

// endedWith takes the value that the link's end has left in done, if any.
func (l *link) endedWith(done <-chan struct{}) bool {
	select {
	case <-done:
		return true
	default:
		return false
	}
}

// lead reads until done holds a value, and reports whether it does; false
// when ctx or the link has ended before.
func (l *link) lead(ctx context.Context, done <-chan struct{}) bool {
	defer l.leave()
	if ctx.Done() != nil {
		stop := context.AfterFunc(ctx, l.interrupt)
		defer stop()
	}
	for len(done) == 0 && ctx.Err() == nil {
		if _, ok := l.receive(); !ok {
			break
		}
	}
	return len(done) > 0
}

// interrupt ends the read of whoever sits. It may come late and hit another one,
// who then reads on.
func (l *link) interrupt() { _ = l.conn.SetReadDeadline(time.Unix(1, 0)) }

func (l *link) leave() { l.chair.vacant <- struct{}{} }

// sit has a goroutine read if there is something to hear and nobody sits: until
// there is nothing, or until it has served a caller, of whom more may come.
func (l *link) sit() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ended != fault.OK || !l.endpoint.Busy() {
		return
	}
	select {
	case <-l.chair.vacant:
	default:
		return
	}
	l.chair.sitting.Go(func() {
		defer l.leave()
		for l.busy() {
			if served, ok := l.receive(); served || !ok {
				return
			}
		}
	})
}

func (l *link) busy() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.endpoint.Busy()
}

// receive reads the socket once. It reports whether somebody's wait is over;
// ok is false when there is nothing more to read. The caller sits in the chair.
func (l *link) receive() (served, ok bool) {
	c := l.chair
	for i := range c.messages {
		c.messages[i].Buf = c.buffers[i][:]
	}
	n, err := l.conn.ReadBatch(c.messages[:])
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return false, l.conn.SetReadDeadline(time.Time{}) == nil
	}
	if err != nil {
		l.end(fault.Unavailable)
		return false, false
	}
	l.mu.Lock()
	now := l.now()
	for _, m := range c.messages[:n] {
		if h, data, err := packet.Parse(m.Buf); err == nil {
			l.endpoint.Receive(now, packet.FromAddr(m.Remote.Addr()), &h, data)
		}
	}
	ready := l.endpoint.Ready()
	served = len(ready.Done)+len(ready.Passed) > 0
	l.flush()
	return served, true
}
