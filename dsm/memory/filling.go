package memory

import (
	"context"
	"encoding/binary"
	"errors"
	"net/netip"
	"os"
	"time"

	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
	"github.com/bifrost-rack/bifrost/dsm/memory/fill"
	"github.com/bifrost-rack/bifrost/dsm/memory/store"
	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/internal/netio"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
)

// A server fills another copy of its machine, or is filled, over a UDP port of its own,
// so that neither clients nor the Gatekeeper's commands wait behind the content.
//
//	KindFill to the target, then to the source ─▶ items ─▶ FillProgress.Ready, in a heartbeat
//	KindComplete to the source ─▶ it closes ─▶ last items ─▶ both are copies in the new epoch
//	KindLevel to the first copy ─▶ items ─▶ both are equal
//
// The stream of items goes on for as long as both are copies of the same epoch. So what is sent for a Level comes behind all before it,
// once, and never to a copy that goes on alone.

const (
	// readyBytes is how little must be left for a copy to be completed: sent without a
	// limit, it takes some milliseconds.
	readyBytes = 1 << 20
	// readyRounds is after how many times as much as there was at first a copy is
	// completed anyway: clients write faster than the rate allows to copy.
	readyRounds = 3
	// maxClosing is how long a source changes nothing at most; then the copy is given up.
	// commandWait is how long a command waits for that, and a Level for the second copy.
	maxClosing, commandWait = 2 * time.Second, 3 * time.Second
	// fillPause is how often a source looks whether there is something more to copy.
	fillPause = 20 * time.Millisecond
)

// part is one kind of content of a copy. The parts are filled in their order, and
// completed together.
type part interface {
	// Fill begins to note what changes, EndFill ends that.
	Fill()
	EndFill()
	// CloseFill has the part change nothing until EndFill.
	CloseFill()
	// FillNext returns the next item of at most limit bytes. It is false if there is nothing
	// now; after CloseFill, that all has been given.
	FillNext(limit int) (item []byte, ok bool)
	// FillLeft is how many bytes are to be copied, as far as is known, and how many have been.
	FillLeft() (left, done uint64)
	// BeFilled empties the part, which is a part of the incarnation's copy then. Take takes
	// the source's next item.
	BeFilled(incarnation uint32)
	Take(item []byte) error
}

// parts returns the parts of the copy in the order in which they are filled.
func (s *Server) parts() []part { return []part{s.ledgers, s.store} }

// filler is a server's end of a filling; the server's mu guards it.
type filler struct {
	conn    netio.Conn
	started time.Time
	maxItem int
	changed func() // Config.FillChanged

	job      control.Fill
	own      netip.Addr // this blade's, in the job
	peer     netip.AddrPort
	sender   *fill.Sender   // of the source, then of the first copy
	receiver *fill.Receiver // of the target, then of the second copy
	first    uint64         // bytes that there were to copy at first
	ready    bool
	closing  *closing // set while the copy is being completed
	levels   []*level // in the order of their items
	failed   error
}

// closing is a command to complete a copy.
type closing struct {
	mirror control.Mirror
	last   uint64     // the number of the item that completes it, 0 if it has not been sent
	over   chan error // has room for one
}

// level is a command to make the second copy equal.
type level struct {
	fence control.Fence
	items []levelItems // to be sent
	last  uint64       // the number of the last item, 0 if it has not been sent
	over  chan error   // has room for one
}

// levelItems gives items of a part, one at a time, until it gives nil.
type levelItems struct {
	part uint8
	give func(limit int) []byte
}

func (f *filler) init(conn netio.Conn, cfg *Config) {
	f.conn, f.started, f.changed = conn, time.Now(), cfg.FillChanged
	f.maxItem = min(cfg.Stack.MTU()-netio.Overhead, netio.MaxDatagram) - fill.HeaderSize
}

func (f *filler) now() time.Duration { return time.Since(f.started) }

// tell says that the progress is worth a heartbeat.
func (f *filler) tell() {
	if f.changed != nil {
		f.changed()
	}
}

// FillProgress is how far the copy has got that is being filled from here, nil if none is.
func (s *Server) FillProgress() *control.FillProgress {
	s.mu.Lock()
	defer s.mu.Unlock()
	f := &s.fill
	if s.store == nil || !f.job.Source {
		return nil
	}
	p := &control.FillProgress{Token: f.job.Token, Ready: f.ready}
	if f.failed != nil {
		p.Failed, p.Message = fault.CodeOf(f.failed), f.failed.Error()
	}
	for _, part := range s.parts() {
		left, done := part.FillLeft()
		p.Left += left
		p.Done += done
	}
	return p
}

// Fill has the server fill another copy, or be filled. It is idempotent.
func (s *Server) Fill(q control.Fill) error {
	return s.durably(s.now, func(*store.Store) error { return s.beginFill(q) })
}

// beginFill is Fill under the server's mutex.
func (s *Server) beginFill(q control.Fill) error {
	f := &s.fill
	switch {
	case !q.From.IsValid() || !q.To.IsValid():
		return fault.New(fault.BadRequest, "fill", "from %s to %s: both must be valid addresses", q.From, q.To)
	case q == f.job && f.failed == nil:
		return nil
	case q.Epoch < s.store.Mirror().Epoch:
		return fault.New(fault.Stale, "fill", "epoch %d is older than this copy's epoch %d", q.Epoch, s.store.Mirror().Epoch)
	case q.Source && q.Epoch > s.store.Mirror().Epoch:
		// The epoch would begin in the middle of the filling, and end it in the store only.
		return fault.New(fault.Unavailable, "fill", "epoch %d has not reached this copy, which is in epoch %d", q.Epoch, s.store.Mirror().Epoch)
	}
	s.endFill(fault.New(fault.Canceled, "fill", "another copy is to be filled"))
	if b := s.backup; b != nil && (!b.made || !b.until.IsZero()) {
		s.dropBackup() // it would be of two fillings
	}
	f.job, f.failed, f.ready, f.first = q, nil, false, 0
	if !q.Source {
		f.own, f.peer = q.To, netip.AddrPortFrom(q.From, rackaddr.PortFill)
		f.receiver = fill.NewReceiver(q.Token)
		for _, p := range s.parts() {
			p.BeFilled(q.Incarnation)
		}
		return nil
	}
	f.own, f.peer = q.From, netip.AddrPortFrom(q.To, rackaddr.PortFill)
	f.sender = fill.NewSender(fill.SenderConfig{Token: q.Token, MaxItem: f.maxItem, Rate: q.Rate})
	for _, p := range s.parts() {
		p.Fill()
		left, _ := p.FillLeft()
		f.first += left
	}
	return f.conn.SetReadDeadline(time.Now()) // wakes serveFill
}

// endFill gives up what this server does for another copy.
func (s *Server) endFill(why error) {
	f := &s.fill
	if f.sender != nil {
		for _, p := range s.parts() {
			p.EndFill()
		}
	}
	if f.closing != nil {
		f.closing.over <- why
	}
	for _, l := range f.levels {
		l.over <- why
	}
	f.sender, f.receiver, f.closing, f.levels, f.failed = nil, nil, nil, nil, why
}

// Complete completes the copy that is filled from here, and returns when both are copies of
// the machine, or with why they are not: then the server is what it was before.
func (s *Server) Complete(ctx context.Context, q control.Complete) error {
	c, err := s.beginClosing(q)
	if err != nil || c == nil {
		return err
	}
	return s.await(ctx, "complete", c.over, maxClosing)
}

// Level has the second copy made what this one is, and returns when it is, or with why it is not: then the machine must have other copies.
// It may be repeated.
func (s *Server) Level(ctx context.Context, q control.Level) error {
	var over chan error
	err := s.durably(s.with, func(st *store.Store) (err error) {
		over, err = s.beginLevel(st, q)
		return err
	})
	if err != nil {
		return err
	}
	return s.await(ctx, "level", over, commandWait)
}

// beginLevel is Level under the server's mutex.
func (s *Server) beginLevel(st *store.Store, q control.Level) (over chan error, err error) {
	f := &s.fill
	if m := st.Mirror(); q.Epoch != m.Epoch || m.Copy != 0 || m.Members != dsmpacket.MaxMembers || f.sender == nil {
		return nil, fault.New(fault.Stale, "level", "copy %d of %d in epoch %d, the command is for epoch %d; there is a stream: %t", m.Copy, m.Members, m.Epoch, q.Epoch, f.sender != nil)
	}
	l := &level{fence: q.Fence, over: make(chan error, 1)}
	regions, err := st.Level(q)
	if err != nil {
		return nil, err
	}
	ledgers, err := s.ledgers.level(&q)
	if err != nil {
		return nil, err
	}
	for _, item := range ledgers {
		l.items = append(l.items, levelItems{0, store.Once(item)})
	}
	for _, give := range regions {
		l.items = append(l.items, levelItems{1, give})
	}
	f.levels = append(f.levels, l)
	return l.over, f.conn.SetReadDeadline(time.Now())
}

// await waits for the other copy to have what is sent for a command. The stream is given up if that takes too long.
func (s *Server) await(ctx context.Context, op string, over <-chan error, most time.Duration) (err error) {
	patience := time.NewTimer(most)
	defer patience.Stop()
	select {
	case err := <-over:
		return err
	case <-patience.C:
		err = fault.New(fault.Deadline, op, "the other copy has not taken all within %s", most)
	case <-ctx.Done():
		err = fault.FromContext(op, ctx.Err())
	}
	s.mu.Lock()
	defer s.unlock()
	select {
	case err := <-over: // meanwhile
		return err
	default:
	}
	if s.store != nil {
		s.endFill(err)
	}
	return err
}

// beginClosing has the store change nothing any more. The closing is nil if that is over.
func (s *Server) beginClosing(q control.Complete) (*closing, error) {
	s.mu.Lock()
	defer s.unlock()
	f := &s.fill
	switch {
	case s.store == nil:
		return nil, errStopped
	case s.store.Mirror() == packetMirror(q.Mirror):
		return nil, nil //nolint:nilnil // it is done
	case q.Token != f.job.Token || f.sender == nil || f.closing != nil:
		return nil, fault.New(fault.Stale, "complete", "no copy is being filled, or another one than this command names")
	case q.Mirror.Members != dsmpacket.MaxMembers || q.Mirror.Copy != 0:
		return nil, fault.New(fault.BadRequest, "complete", "copy %d of %d", q.Mirror.Copy, q.Mirror.Members)
	}
	f.closing = &closing{mirror: q.Mirror, over: make(chan error, 1)}
	f.sender.Unlimited()
	for _, p := range s.parts() {
		p.CloseFill()
	}
	return f.closing, f.conn.SetReadDeadline(time.Now())
}

func packetMirror(m control.Mirror) dsmpacket.Mirror {
	return dsmpacket.Mirror{Epoch: m.Epoch, Incarnation: m.Incarnation, Copy: m.Copy, Members: m.Members}
}

// serveFill carries items, and takes them, until the endpoint is closed.
func (s *Server) serveFill() {
	in := make([]netio.Message, largeBatch)
	bufs := make([][]byte, len(in))
	for i := range bufs {
		bufs[i] = make([]byte, s.fill.maxItem+fill.HeaderSize)
	}
	for n := 0; ; {
		out, complete := s.fillStep(in[:n])
		if complete && s.ledgers.waitForDisk() != nil {
			return // the server ends
		}
		for len(out) > 0 {
			sent, err := s.fill.conn.WriteBatch(out)
			if err != nil {
				s.metrics.unsent.Add(1) // it is sent again
				sent++
			}
			out = out[min(max(sent, 1), len(out)):]
		}
		for i := range in {
			in[i] = netio.Message{Buf: bufs[i]}
		}
		var err error
		n, err = s.fill.conn.ReadBatch(in)
		if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
			return
		}
	}
}

// fillStep takes packets and returns those to be sent. It sets when to go on without any. Those of a complete copy, also of one that has
// just become complete, are to be sent when its ledgers are on disk: it may be the copy that is needed.
func (s *Server) fillStep(in []netio.Message) (out []netio.Message, complete bool) {
	s.mu.Lock()
	defer s.unlock()
	f := &s.fill
	if s.store == nil {
		return nil, false
	}
	now := f.now()
	for i := range in {
		p, err := fill.Parse(in[i].Buf)
		switch {
		case err != nil:
			s.metrics.drop(in[i].Remote.Addr(), store.Malformed)
		case in[i].Remote != f.peer:
			s.metrics.drop(in[i].Remote.Addr(), store.Foreign)
		case f.sender != nil:
			f.sender.Receive(now, &p)
		case f.receiver != nil && s.backup.holds(): // the item comes again
			s.metrics.drops[store.Filling].Add(1)
		case f.receiver != nil:
			if ack, ok := f.receiver.Receive(&p, s.takeItem); ok {
				out, complete = append(out, f.message(&ack)), complete || s.store.Mirror().Copy > 0
			}
		}
	}
	s.ledgers.flush()
	_ = f.conn.SetReadDeadline(time.Time{})
	if f.sender != nil {
		out = append(out, s.pump(now)...)
	}
	return out, complete
}

// takeItem takes an item of the source's.
func (s *Server) takeItem(p *fill.Packet) error {
	parts := s.parts()
	switch {
	case p.Kind == fill.Last && len(p.Data) == 4 && !s.ledgers.store.Filling():
		err := s.store.Complete(control.Mirror{
			Epoch: binary.BigEndian.Uint32(p.Data), Incarnation: s.fill.job.Incarnation, Copy: 1, Members: dsmpacket.MaxMembers,
		})
		return err
	case p.Kind == fill.Last || int(p.Part) >= len(parts):
		return fault.New(fault.BadRequest, "fill", "part %d of %d", p.Part, len(parts))
	}
	return parts[p.Part].Take(p.Data)
}

// pump sends what the window and the rate let go, and says when to go on.
func (s *Server) pump(now time.Duration) (out []netio.Message) {
	f := &s.fill
	f.sender.Tick(now)
	next := now + fillPause
	for {
		open, at := f.sender.Open(now)
		if !open {
			if at > now {
				next = min(next, at)
			}
			break
		}
		if !s.sendItem(now) {
			break
		}
	}
	for _, p := range f.sender.Out() {
		out = append(out, f.message(&p))
	}
	if at, ok := f.sender.Wake(); ok {
		next = min(next, at)
	}
	s.judgeFill()
	if f.sender != nil && (f.job.Source || len(f.levels) > 0) {
		_ = f.conn.SetReadDeadline(f.started.Add(next))
	}
	return out
}

// sendItem sends the next item of a filling, or of a level. It is false if there is none.
func (s *Server) sendItem(now time.Duration) bool {
	f := &s.fill
	if f.job.Source {
		for i, p := range s.parts() {
			if item, ok := p.FillNext(f.maxItem); ok {
				f.sender.Send(now, uint8(i), item, false) //nolint:gosec // few
				return true
			}
		}
		if f.closing == nil || f.closing.last > 0 {
			return false
		}
		f.closing.last = f.sender.Send(now, 0, binary.BigEndian.AppendUint32(nil, f.closing.mirror.Epoch), true)
		return true
	}
	for _, l := range f.levels {
		for ; len(l.items) > 0; l.items = l.items[1:] {
			if item := l.items[0].give(f.maxItem); item != nil {
				l.last = f.sender.Send(now, l.items[0].part, item, false)
				return true
			}
		}
	}
	return false
}

// judgeFill sees whether the filling has got somewhere: the copy is complete, or cannot be
// filled, or little is left.
func (s *Server) judgeFill() {
	f := &s.fill
	left, done := uint64(0), uint64(0)
	for _, p := range s.parts() {
		l, d := p.FillLeft()
		left, done = left+l, done+d
	}
	switch {
	case f.sender.Err() != nil:
		s.endFill(f.sender.Err())
		f.tell()
	case f.closing != nil && f.closing.last > 0 && f.sender.Taken(f.closing.last):
		c := f.closing
		f.closing, f.job = nil, control.Fill{}
		for _, p := range s.parts() {
			p.EndFill()
		}
		c.over <- s.store.Become(c.mirror)
	case f.job.Source && !f.ready && (left <= readyBytes || done > readyRounds*(f.first+readyBytes)):
		f.ready = true
		f.tell()
	}
	for len(f.levels) > 0 && len(f.levels[0].items) == 0 && f.sender.Taken(f.levels[0].last) {
		l := f.levels[0]
		f.levels = f.levels[1:]
		s.store.Levelled(l.fence.Node, l.fence.Incarnation)
		l.over <- nil
	}
}

// message puts a packet into a datagram.
func (f *filler) message(p *fill.Packet) netio.Message {
	head := fill.Packet{Kind: p.Kind, Status: p.Status, Part: p.Part, Token: p.Token, Number: p.Number}
	return netio.Message{Buf: head.Append(make([]byte, 0, fill.HeaderSize)), More: [netio.MaxMore][]byte{p.Data}, Remote: f.peer, Local: f.own}
}
