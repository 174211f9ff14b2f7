package control

import (
	"fmt"
	"slices"
	"time"

	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/p4switch/shared/wirefmt"
)

// PeerConfig says who one end of a conversation is.
type PeerConfig struct {
	// Boot tells this start of the program from all others; not 0.
	Boot uint64
	// Election is the Gatekeeper's election id; zero for a daemon.
	Election Election
	// Follow is set in a daemon: it follows the highest election id it has seen
	// and refuses what comes with a lower one.
	Follow bool
	// MaxDatagram is the largest packet in bytes, header included; 0 is no limit.
	MaxDatagram int
}

// Peer is one end of a conversation, as a pure core: it does no I/O, starts no
// goroutine and reads no clock. Ask, Answer, Input and Tick go in; what is to be
// done comes out of Ready. A Peer has one owner; Endpoint is one, with
// goroutines.
//
//	Ask ───────▶ asked ── request, again until answered ──▶ Send
//	Input ─ reply ──▶ asked ──▶ Ready.Replies
//	Input ─ request ▶ served: new ──▶ Ready.Requests ──▶ Answer ──▶ Send
//	                          done ── the same reply again ──▶ Send
//	                          running, or below the floor ──▶ nothing
type Peer struct {
	cfg   PeerConfig
	next  uint64 // id of the next request
	asked map[uint64]*asked
	// What the other side asks: of its present boot, by id. Those below floor are
	// settled for it and never looked at again.
	boot    uint64
	floor   uint64
	served  map[uint64]*served
	retired []uint64 // earlier boots, the latest last
	ready   Ready
}

// asked is a request of ours without reply.
type asked struct {
	kind  Kind
	body  outgoing
	got   int      // bytes of body that the other side has
	reply incoming // what has come of the reply
	acked int      // bytes of the reply that we have acknowledged, -1 for nothing
	moved bool     // got or reply has grown since the last Tick that was due
	retry time.Time
	wait  time.Duration
}

// served is a request of the other side's.
type served struct {
	request incoming // what has come of it in parts
	whole   bool     // it has been handed out
	done    bool     // and answered: reply, with body
	reply   Message
	body    outgoing
}

// Ready is what a Peer wants done, in order. The slices belong to the caller.
type Ready struct {
	Send     [][]byte  // datagrams to the other side
	Requests []Message // to be answered with Answer, or given back with Forget
	Replies  []Message // to requests of Ask, by ID
}

// NewPeer returns one end of a conversation with nothing said.
func NewPeer(cfg PeerConfig) *Peer {
	return &Peer{cfg: cfg, next: 1, asked: map[uint64]*asked{}, served: map[uint64]*served{}}
}

// Ask sends a request and keeps sending it until Ready.Replies has the reply to
// the id returned, or Cancel. It fails with Overloaded when too many are
// outstanding, and with BadRequest when the body is larger than MaxMessage.
func (p *Peer) Ask(now time.Time, kind Kind, body []byte) (uint64, error) {
	if len(body) > MaxMessage {
		return 0, fault.New(fault.BadRequest, kind.String(), "body of %d bytes, at most %d", len(body), MaxMessage)
	}
	if p.next-p.lowest() >= Window {
		return 0, fault.New(fault.Overloaded, kind.String(), "%d requests since the oldest without reply", Window)
	}
	id := p.next
	p.next++
	a := &asked{kind: kind, body: newOutgoing(body), acked: -1, wait: Retries.First, retry: now.Add(Retries.First)}
	p.asked[id] = a
	p.sendRequest(id, a)
	return id, nil
}

// Room is how many requests Ask takes until it fails as Overloaded, if no reply comes.
func (p *Peer) Room() int { return Window - int(p.next-p.lowest()) } //nolint:gosec // at most Window

// Cancel gives a request up. Its outcome stays unknown, but a copy that is still
// on its way will not be served after the next request has arrived.
func (p *Peer) Cancel(id uint64) { delete(p.asked, id) }

// Answer replies to a request from Ready.Requests: with body, or, if status is
// not fault.OK, with a message for people. A body that is larger than MaxMessage
// becomes an Internal error.
func (p *Peer) Answer(request Message, status fault.Code, body []byte) {
	if len(body) > MaxMessage {
		status, body = fault.Internal, fmt.Appendf(nil, "the reply has %d bytes, at most %d", len(body), MaxMessage)
	}
	s := p.served[request.ID]
	if request.Sender != p.boot || s == nil || !s.whole || s.done {
		return // the asker has restarted or given up
	}
	s.done, s.reply, s.body = true, reply(request, status), newOutgoing(body)
	p.sendReply(s, 0)
}

// Forget takes a request from Ready.Requests back as if it had never come: it is
// served when it is sent again.
func (p *Peer) Forget(request Message) {
	if s := p.served[request.ID]; request.Sender == p.boot && s != nil && !s.done {
		delete(p.served, request.ID)
	}
}

// Input takes a datagram from the other side. The error, which wraps
// wirefmt.ErrFormat, is for counting only; a duplicate or late one is no error.
func (p *Peer) Input(b []byte) error {
	m, err := Parse(b)
	if err != nil {
		return err
	}
	if p.cfg.Follow {
		if m.Election.Less(p.cfg.Election) {
			p.refuse(m)
			return nil
		}
		p.cfg.Election = m.Election
	}
	if m.Reply {
		return p.inputReply(m)
	}
	return p.inputRequest(m)
}

// Rule changes the Gatekeeper's election id, which what it sends from now on has.
func (p *Peer) Rule(e Election) { p.cfg.Election = e }

// Election returns the Gatekeeper's election id, or the highest seen.
func (p *Peer) Election() Election { return p.cfg.Election }

// Tick sends again what has waited long enough.
func (p *Peer) Tick(now time.Time) {
	for _, id := range p.outstanding() {
		a := p.asked[id]
		if now.Before(a.retry) {
			continue
		}
		if a.moved {
			a.wait = Retries.First
		} else {
			a.wait = Retries.Next(a.wait)
			a.got, a.acked = 0, -1
			p.sendRequest(id, a)
		}
		a.moved, a.retry = false, now.Add(a.wait)
	}
}

// Deadline is when Tick is due next, and false when it is not.
func (p *Peer) Deadline() (at time.Time, ok bool) {
	for _, a := range p.asked {
		if !ok || a.retry.Before(at) {
			at, ok = a.retry, true
		}
	}
	return at, ok
}

// Ready returns what is to be done, and forgets it.
func (p *Peer) Ready() Ready {
	r := p.ready
	p.ready = Ready{}
	return r
}

// refuse answers a deposed Gatekeeper's command, and leaves its reply unheard.
func (p *Peer) refuse(m Message) {
	if m.Reply || m.Part.More {
		return
	}
	stale := newOutgoing([]byte("a newer Gatekeeper is in charge"))
	p.push(reply(m, fault.Stale), &stale, 0)
}

func (p *Peer) inputReply(m Message) error {
	a := p.asked[m.ID]
	if m.Sender != p.cfg.Boot || a == nil || a.kind != m.Kind {
		return nil // a duplicate, or for an earlier boot of ours
	}
	if m.Part.Ack {
		if got := int(m.Part.Offset); got > a.got && got <= len(a.body.body) {
			a.got, a.moved = got, true
			if got < len(a.body.body) {
				p.sendRequest(m.ID, a)
			}
		}
		return nil
	}
	if m.Part != (Part{}) {
		more, had := m.Part.More, len(a.reply.body)
		if len(a.reply.body) == 0 && p.kept()+int(m.Part.Total) > maxKept {
			return errKept
		}
		whole, err := a.reply.take(&m)
		a.moved = a.moved || len(a.reply.body) != had
		if !whole {
			if n := len(a.reply.body); !more && n > a.acked {
				a.acked = n
				p.push(Message{Kind: a.kind, ID: m.ID, Floor: p.lowest(), Sender: p.cfg.Boot, Part: a.reply.ack()}, nil, 0)
			}
			return err
		}
		m.Body, m.Part = a.reply.body, Part{}
	} else {
		m.Body = slices.Clone(m.Body)
	}
	delete(p.asked, m.ID)
	p.ready.Replies = append(p.ready.Replies, m)
	return nil
}

// errKept refuses what would make the Peer keep too much.
var errKept = fault.New(fault.Overloaded, "control", "the other side has %d bytes of messages under way", maxKept)

func (p *Peer) inputRequest(m Message) error {
	if m.ID == 0 || m.Floor > m.ID || m.ID-m.Floor >= Window {
		return wirefmt.Errorf("control header: request %d with floor %d, at most %d above", m.ID, m.Floor, Window-1)
	}
	if m.Sender != p.boot {
		if slices.Contains(p.retired, m.Sender) {
			return nil
		}
		p.restarted(m.Sender)
	}
	p.raiseFloor(m.Floor)
	if m.ID < p.floor || m.ID-p.floor >= Window {
		return nil // long settled, or ahead of what a late packet's floor allows
	}
	s := p.served[m.ID]
	switch {
	case m.Part.Ack:
		if s != nil && s.done && int(m.Part.Offset) < len(s.body.body) {
			p.sendReply(s, int(m.Part.Offset))
		}
		return nil // an asker whom we do not know begins anew by itself
	case s == nil:
		if p.kept()+int(m.Part.Total) > maxKept {
			return errKept
		}
		s = &served{}
		p.served[m.ID] = s
	case s.done:
		if !m.Part.More {
			p.sendReply(s, 0)
		}
		return nil
	}
	return p.gather(s, m)
}

// gather takes a request, or a part of one, that is not answered.
func (p *Peer) gather(s *served, m Message) error {
	more := m.Part.More
	if m.Part != (Part{}) {
		whole, err := false, error(nil)
		if !s.whole {
			whole, err = s.request.take(&m)
		}
		if !whole {
			if !more {
				ack := reply(m, fault.OK)
				ack.Part = s.request.ack()
				p.push(ack, nil, 0)
			}
			return err
		}
		m.Body, m.Part = s.request.body, Part{}
	} else {
		m.Body = slices.Clone(m.Body)
	}
	if s.whole {
		return nil
	}
	s.whole = true
	p.ready.Requests = append(p.ready.Requests, m)
	return nil
}

// kept is how many bytes of the other side's messages, and of replies to it, there are.
func (p *Peer) kept() (n int) {
	for _, a := range p.asked {
		n += int(a.reply.total)
	}
	for _, s := range p.served {
		n += int(s.request.total) + len(s.body.body)
	}
	return n
}

// restarted begins anew with another boot of the other side.
func (p *Peer) restarted(boot uint64) {
	if p.boot != 0 {
		p.retired = append(p.retired, p.boot)
		if len(p.retired) > retiredBoots {
			p.retired = p.retired[1:]
		}
	}
	p.boot, p.floor = boot, 0
	clear(p.served)
}

func (p *Peer) raiseFloor(floor uint64) {
	if floor <= p.floor {
		return
	}
	p.floor = floor
	for id := range p.served {
		if id < floor {
			delete(p.served, id)
		}
	}
}

// lowest is the floor of our own requests.
func (p *Peer) lowest() uint64 {
	low := p.next
	for id := range p.asked {
		low = min(low, id)
	}
	return low
}

// outstanding returns the ids without reply in order.
func (p *Peer) outstanding() []uint64 {
	ids := make([]uint64, 0, len(p.asked))
	for id := range p.asked {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	return ids
}

// sendRequest sends the next burst of a request.
func (p *Peer) sendRequest(id uint64, a *asked) {
	p.push(Message{Kind: a.kind, ID: id, Floor: p.lowest(), Sender: p.cfg.Boot}, &a.body, a.got)
}

// sendReply sends the burst of a reply from an offset on.
func (p *Peer) sendReply(s *served, from int) { p.push(s.reply, &s.body, from) }

// push sends a burst of a message, or, without body, a packet that has none.
func (p *Peer) push(m Message, body *outgoing, from int) {
	m.Election = p.cfg.Election
	if body == nil {
		p.ready.Send = append(p.ready.Send, m.Append(nil))
		return
	}
	p.ready.Send = append(p.ready.Send, body.burst(m, from, p.cfg.MaxDatagram)...)
}

// reply is the header of a request's reply.
func reply(request Message, status fault.Code) Message {
	return Message{Kind: request.Kind, Reply: true, Status: status, ID: request.ID, Sender: request.Sender}
}
