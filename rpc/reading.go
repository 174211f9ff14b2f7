package rpc

import (
	"context"
	"errors"
	"os"
	"sync/atomic"
	"time"

	"github.com/bifrost-rack/bifrost/internal/netio"
	"github.com/bifrost-rack/bifrost/internal/standby"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// reader takes datagrams off one endpoint. Its buffers are its own until taken. It
// begins with one, and has more when they have all been filled at once.
type reader struct {
	conn     netio.Conn
	size     int // how many buffers it has
	messages [readBatch]netio.Message
	buffers  [readBatch]*datagram
}

func newReader(conn netio.Conn) *reader { return &reader{conn: conn, size: 1} }

// next blocks for datagrams and returns how many there are. It fails with
// net.ErrClosed when the endpoint has been closed.
func (r *reader) next() (int, error) {
	for i := range r.size {
		if r.buffers[i] == nil {
			r.buffers[i] = newDatagram()
		}
		r.messages[i].Buf = r.buffers[i][:]
	}
	n, err := r.conn.ReadBatch(r.messages[:r.size])
	if n == r.size {
		r.size = min(2*r.size, readBatch)
	}
	return n, err
}

// take gives the i-th buffer away.
func (r *reader) take(i int) *datagram {
	d := r.buffers[i]
	r.buffers[i] = nil
	return d
}

func (r *reader) free() {
	for i, d := range r.buffers {
		if d != nil {
			freeDatagram(d)
			r.buffers[i] = nil
		}
	}
}

// receiveAnswer takes the i-th datagram that the node's endpoint has received: an
// answer to one of its calls, or an acknowledgement. It reports whether a
// goroutine waits for it.
func (n *Node) receiveAnswer(r *reader, i int) bool {
	m, err := rpcpacket.Parse(r.messages[i].Buf)
	if err != nil {
		n.stats.countMalformed(r.messages[i].Remote.Addr())
		return false
	}
	if m.Turned != rpcpacket.NotTurned {
		n.turnedBack(r.messages[i].Remote.Addr(), &m)
		return false
	}
	switch {
	case m.Flags&rpcpacket.FlagMore != 0: // it has another endpoint
		n.stats.countMalformed(r.messages[i].Remote.Addr())
	case m.Type == rpcpacket.Reply, m.Type == rpcpacket.Exception:
		return n.complete(r, i, m)
	default:
		n.stats.countMalformed(r.messages[i].Remote.Addr())
	}
	return false
}

// readFailed ends the node when one of its endpoints fails of its own accord; also
// when somebody else has closed it, as a blade that crashes does. What the node
// itself has closed, because it has ended, is no news. Its daemon closes them when the session has ended.
func (n *Node) readFailed(err error) {
	select {
	case <-n.session.Done():
		n.fail(n.identityLost())
		return
	default:
	}
	n.fail(&Error{Code: Unavailable, Op: "node " + n.self.Name, Msg: "receive", Err: err})
}

// leader is the right to read the node's endpoint. A caller that waits for its
// answer takes it if it is vacant and reads the network itself: waking another
// goroutine would cost more than the rest of the call. Once it has its answer it
// leaves, and the next caller that waits sits down. When nobody has wanted the
// leader for a while, a goroutine of the node's own takes it, for what comes
// unasked, and leaves it as soon as it has served a caller.
//
//	       ┌────────────────── vacant ◀───────────────┐
//	a caller waits │                  │ for a beat    │ has its answer, or
//	               ▼                  ▼               │ has served a caller
//	            lead ──────────────── sit ────────────┘
type leader struct {
	conn   netio.Conn // the endpoint
	pulse  *pulse
	life   *lifetime
	take   func(r *reader, i int) bool // takes a datagram, and reports whether a caller waits for it
	failed func(error)                 // the endpoint has failed
	vacant chan struct{}               // holds a token while nobody sits
	reader *reader                     // whoever sits may use it
	left   atomic.Bool                 // somebody has left it since the last pulse
	watch  netio.Watch                 // interrupts the read; of whoever sits, too
}

// await waits until p is answered, and reports false if ctx ended first.
func (s *leader) await(ctx context.Context, p *pending) bool {
	for {
		select {
		case <-p.ready:
			return true
		case <-ctx.Done():
			return false
		case <-s.vacant:
			if s.lead(ctx, p) {
				<-p.ready
				return true
			}
		}
	}
}

// lead reads the node's endpoint until p is answered, ctx ends or the node does,
// and reports whether p has been answered.
func (s *leader) lead(ctx context.Context, p *pending) bool {
	defer s.leave()
	s.watch.Set(ctx, s.interrupt)
	for len(p.ready) == 0 && ctx.Err() == nil {
		if _, err := s.read(); err != nil {
			break
		}
	}
	return len(p.ready) > 0
}

// interrupt ends the read of whoever sits. It may come late and hit the wrong
// one, who then goes on reading.
func (s *leader) interrupt() { _ = s.conn.SetReadDeadline(time.Unix(1, 0)) }

// leave gives up the lead.
func (s *leader) leave() {
	s.left.Store(true)
	s.vacant <- struct{}{}
	s.pulse.wakeAt(s.pulse.now() + beat)
}

// standIn has the node itself lead, if nobody does; if not, whoever
// leaves it will see to it. It returns at once.
func (s *leader) standIn() {
	select {
	case <-s.vacant:
	default:
		return
	}
	if !s.life.enter() {
		s.vacant <- struct{}{}
		return
	}
	go func() {
		defer s.life.readers.Done()
		defer s.leave()
		for {
			served, err := s.read()
			if served || err != nil {
				return
			}
		}
	}()
}

// read reads the node's endpoint once, and reports whether a caller has
// been served. The caller is the leader.
func (s *leader) read() (served bool, err error) {
	r := s.reader
	count, err := r.next()
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return false, s.conn.SetReadDeadline(time.Time{})
	}
	if err != nil {
		s.failed(err)
		return false, err
	}
	for i := range count {
		if s.take(r, i) {
			served = true
		}
	}
	return served, nil
}

// role is what the goroutine is that runs an execution. The endpoint for calls is
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

// callReader reads the endpoint that calls come to, in one goroutine at a time.
type callReader struct {
	pulse  *pulse
	life   *lifetime
	take   func(r *reader, i int) *execution // takes a datagram, and returns the execution that the goroutine is to run, if any
	failed func(error)                       // the endpoint has failed

	next    *standby.Post[*reader]    // goroutines that wait to be the reader
	running atomic.Pointer[execution] // what the reader runs, if anything
}

// read takes calls off the node's endpoint for them until that is closed. The last of the calls that have come together is run
// by this goroutine. If it is expected to be quick, and no ledger has to be waited for, the goroutine reads on afterwards; else
// another one does meanwhile.
func (c *callReader) read(r *reader) {
	for {
		count, err := r.next()
		if err != nil {
			r.free()
			c.failed(err)
			c.life.readers.Done()
			return
		}
		last := c.receive(r, count)
		if last == nil {
			continue
		}
		if last.journal == nil && last.export.offer.Load().methods[last.call.Method].quick() {
			if c.run(last, r) {
				continue
			}
		} else {
			c.handOn(r)
			last.export.pool.work(last)
		}
		var again bool
		if r, again = c.next.Wait(c.life.done); !again {
			return
		}
	}
}

// receive deals with the datagrams that have been read. It returns the execution that the goroutine is to run, or nil.
func (c *callReader) receive(r *reader, count int) (last *execution) {
	for i := range count {
		e := c.take(r, i)
		if e == nil {
			continue
		}
		if last != nil {
			go last.export.pool.work(last)
		}
		last = e
	}
	return last
}

// handOn has another goroutine read on.
func (c *callReader) handOn(r *reader) {
	if !c.next.Give(r) {
		go c.read(r)
	}
}

// run runs a call in the reader's goroutine. It reports false if the
// goroutine is the reader no longer.
func (c *callReader) run(e *execution, r *reader) bool {
	x := e.export
	e.role.reader, e.role.since = r, c.pulse.now()
	e.role.state.Store(reading)
	c.running.Store(e)
	c.pulse.wakeAt(e.role.since + beat)
	if c.life.base.Err() != nil {
		e.promote() // the node's end may have come too early to see e
	}
	x.perform(e)
	c.running.CompareAndSwap(e, nil)
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
		e.node.calls.handOn(e.role.reader)
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

// goOff does what has come due, and sets the pulse for what comes next.
func (n *Node) goOff() {
	n.pulse.at.Store(0)
	now := n.pulse.now()
	n.answerPing()
	if due, ok := n.out.tick(now); ok {
		n.pulse.wakeAt(max(due, now+gap))
	}
	if due, ok := n.tickForgets(now); ok {
		n.pulse.wakeAt(due)
	}
	if due, ok := n.tickFrees(now); ok {
		n.pulse.wakeAt(due)
	}
	if due, ok := n.reports.tick(now); ok {
		n.pulse.wakeAt(due)
	}
	if due, ok := n.tickWaits(now); ok {
		n.pulse.wakeAt(due)
	}
	if due, ok := n.large.tick(now); ok {
		n.pulse.wakeAt(due)
	}
	if n.calls.lookAfter(now) {
		n.pulse.wakeAt(now + beat)
	}
	if n.leader.left.Swap(false) {
		n.pulse.wakeAt(now + beat) // somebody has just sat there
		return
	}
	n.leader.standIn()
}

// lookAfter promotes a handler that has held the reader for too long, and reports
// whether one holds it still.
func (c *callReader) lookAfter(now time.Duration) (more bool) {
	e := c.running.Load()
	return e != nil && !e.promoteAfter(now, patience)
}
