package dsmclient

import (
	"context"
	"errors"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
	"github.com/bifrost-rack/bifrost/dsm/internal/transport"
	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/internal/netio"
	"github.com/bifrost-rack/bifrost/internal/standby"
)

// leader is the right to read the socket. A caller that waits takes it if it is
// vacant and reads the network itself: to be woken by another goroutine would
// cost more than the rest of a small operation. It leaves when its own operation
// is done, and the next caller that waits takes over. A goroutine of the client's
// own leads only while there is something to hear and nobody waits.
type leader struct {
	vacant   chan struct{} // holds a token while nobody leads
	messages [readBatch]netio.Message
	buffers  [readBatch][]byte      // each with room for any datagram
	expected []transport.ReadBuffer // where the next messages are expected to belong
	leading  sync.WaitGroup         // the client's own goroutines
	next     *standby.Post[struct{}]
	watch    netio.Watch // interrupts the read
}

// readBatch is how many datagrams are read at once: what a window lets come in.
const readBatch = 4

// newLeader returns a vacant one, for datagrams of so many bytes.
func newLeader(most int) *leader {
	c := &leader{vacant: make(chan struct{}, 1), expected: make([]transport.ReadBuffer, 0, readBatch), next: standby.New[struct{}]()}
	all := make([]byte, readBatch*most)
	for i := range c.buffers {
		c.buffers[i] = all[i*most : (i+1)*most]
	}
	c.vacant <- struct{}{}
	return c
}

// await waits for done to hold a value, which is a transfer's end, unless t is nil.
// It is false if ctx or the link ended first.
func (l *link) await(ctx context.Context, done <-chan struct{}, t *transport.Transfer) bool {
	for {
		select {
		case <-done:
			return true
		case <-ctx.Done():
			return false
		case <-l.over:
			return l.endedWith(done)
		case <-l.leader.vacant:
			if l.lead(ctx, done, t) {
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
func (l *link) lead(ctx context.Context, done <-chan struct{}, t *transport.Transfer) bool {
	defer l.leave()
	l.leader.watch.Set(ctx, l.interrupt)
	for len(done) == 0 && ctx.Err() == nil {
		if _, ok := l.receive(t); !ok {
			break
		}
	}
	return len(done) > 0
}

// interrupt ends the read of whoever leads. It may come late and hit another one,
// who then reads on.
func (l *link) interrupt() { _ = l.conn.SetReadDeadline(time.Unix(1, 0)) }

func (l *link) leave() { l.leader.vacant <- struct{}{} }

// standIn has a goroutine read if there is something to hear and nobody leads: until
// there is nothing, or until it has served a caller, of whom more may come.
func (l *link) standIn() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ended != fault.OK || !l.hears() {
		return
	}
	select {
	case <-l.leader.vacant:
	default:
		return
	}
	if !l.leader.next.Give(struct{}{}) {
		l.leader.leading.Go(l.leadUnasked)
	}
}

// leadUnasked is the goroutine of standIn. It stays for the next time.
func (l *link) leadUnasked() {
	for ok := true; ok; _, ok = l.leader.next.Wait(l.over) {
		l.readOn()
		l.leave()
	}
}

// readOn reads until there is nothing to hear, or a caller has been served.
func (l *link) readOn() {
	for l.busy() {
		if served, ok := l.receive(nil); served || !ok {
			return
		}
	}
}

func (l *link) busy() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.hears()
}

// hears reports whether an answer is awaited. The caller holds l.mu.
func (l *link) hears() bool {
	return l.endpoint.Busy() || len(l.verdicts) > 0 || slices.ContainsFunc(l.ledgers, func(o *Ledger) bool { return o.core.Busy() })
}

// receive reads the socket once. It reports whether somebody's wait is over;
// ok is false when there is nothing more to read. The caller is the leader. If
// it is the one that waits for a read, the answers are received where they belong.
func (l *link) receive(t *transport.Transfer) (served, ok bool) {
	c := l.leader
	l.prepare(t)
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
	c.gather(n)
	for i, m := range c.messages[:n] {
		h, data, err := dsmpacket.Parse(m.Buf)
		if err != nil {
			continue
		}
		if i < len(c.expected) && len(m.More[0]) > 0 {
			data = m.More[0]
		}
		from := dsmpacket.FromAddr(m.Remote.Addr())
		if from.Op() == dsmpacket.OpLedger {
			l.receiveLedger(from, &h, data)
			continue
		}
		l.endpoint.Receive(now, from, &h, data)
	}
	ready := l.endpoint.Ready()
	served = l.tellLedgers()
	served = l.tellVerdicts() || served || len(ready.Done)+len(ready.Passed) > 0
	l.flush()
	return served, true
}

// expectFrom is from how many bytes on it pays to receive an answer where it
// belongs.
const expectFrom = 16 << 10

// prepare makes the messages ready to be received into: the header and what is not
// expected in the leader's own buffers, the data of answers to t, which the caller
// waits for, in its buffer.
func (l *link) prepare(t *transport.Transfer) {
	c := l.leader
	c.expected = c.expected[:0]
	if t != nil && t.Op == dsmpacket.OpRead && len(t.Buf) >= expectFrom {
		l.mu.Lock()
		c.expected = l.endpoint.Expect(t, expectFrom, c.expected)
		l.mu.Unlock()
	}
	for i := range c.messages {
		m := &c.messages[i]
		*m = netio.Message{Buf: c.buffers[i]}
		if i < len(c.expected) {
			b := c.expected[i].Buf
			m.Buf = c.buffers[i][:dsmpacket.HeaderSize]
			m.More = [netio.MaxMore][]byte{b, c.buffers[i][min(dsmpacket.HeaderSize+len(b), len(c.buffers[i])):]}
		}
	}
}

// gather puts those of n messages together that are not what was expected, before
// anything else is done with them: others' data may stand in their places.
func (c *leader) gather(n int) {
	for i := range c.messages[:min(n, len(c.expected))] {
		m, p := &c.messages[i], &c.expected[i]
		if h, _, err := dsmpacket.Parse(m.Buf); err == nil && h.Kind == dsmpacket.Reply && h.Request == p.Request &&
			dsmpacket.FromAddr(m.Remote.Addr()).Machine() == p.Machine && len(m.More[0]) == len(p.Buf) && len(m.More[1]) == 0 {
			continue
		}
		size := m.Size()
		copy(c.buffers[i][len(m.Buf):], m.More[0])
		*m = netio.Message{Buf: c.buffers[i][:size], Remote: m.Remote, Local: m.Local}
	}
}
