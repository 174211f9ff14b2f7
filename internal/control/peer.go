package control

import (
	"slices"
	"time"

	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/internal/wirefmt"
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
	// MaxDatagram is the largest message in bytes, header included; 0 is no limit.
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
	body  []byte
	retry time.Time
	wait  time.Duration
}

// served is a request of the other side's; reply is nil while it is handled.
type served struct{ reply []byte }

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
// outstanding, and with BadRequest when the body is too large.
func (p *Peer) Ask(now time.Time, kind Kind, body []byte) (uint64, error) {
	if most := p.cfg.MaxDatagram; most > 0 && HeaderSize+len(body) > most {
		return 0, fault.New(fault.BadRequest, kind.String(), "body of %d bytes, at most %d fit", len(body), most-HeaderSize)
	}
	if p.next-p.lowest() >= Window {
		return 0, fault.New(fault.Overloaded, kind.String(), "%d requests since the oldest without reply", Window)
	}
	id := p.next
	p.next++
	a := &asked{kind: kind, body: body, wait: FirstRetry}
	p.asked[id] = a
	p.sendRequest(now, id, a)
	return id, nil
}

// Cancel gives a request up. Its outcome stays unknown, but a copy that is still
// on its way will not be served after the next request has arrived.
func (p *Peer) Cancel(id uint64) { delete(p.asked, id) }

// Answer replies to a request from Ready.Requests: with body, or, if status is
// not fault.OK, with a message for people. A body that is too large becomes an
// Internal error.
func (p *Peer) Answer(request Message, status fault.Code, body []byte) {
	if most := p.cfg.MaxDatagram; most > 0 && HeaderSize+len(body) > most {
		status, body = fault.Internal, []byte("the reply does not fit a packet")
	}
	reply := p.reply(request, status, body)
	s := p.served[request.ID]
	if request.Sender != p.boot || s == nil || s.reply != nil {
		return // the asker has restarted or given up
	}
	s.reply = reply
	p.ready.Send = append(p.ready.Send, reply)
}

// Forget takes a request from Ready.Requests back as if it had never come: it is
// served when it is sent again.
func (p *Peer) Forget(request Message) {
	if s := p.served[request.ID]; request.Sender == p.boot && s != nil && s.reply == nil {
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
		p.inputReply(m)
		return nil
	}
	return p.inputRequest(m)
}

// Election returns the Gatekeeper's election id, or the highest seen.
func (p *Peer) Election() Election { return p.cfg.Election }

// Tick sends again what has waited long enough.
func (p *Peer) Tick(now time.Time) {
	for _, id := range p.outstanding() {
		a := p.asked[id]
		if now.Before(a.retry) {
			continue
		}
		a.wait = min(2*a.wait, MaxRetry)
		p.sendRequest(now, id, a)
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
	if !m.Reply {
		p.ready.Send = append(p.ready.Send, p.reply(m, fault.Stale, []byte("a newer Gatekeeper is in charge")))
	}
}

func (p *Peer) inputReply(m Message) {
	a := p.asked[m.ID]
	if m.Sender != p.cfg.Boot || a == nil || a.kind != m.Kind {
		return // a duplicate, or for an earlier boot of ours
	}
	delete(p.asked, m.ID)
	m.Body = slices.Clone(m.Body)
	p.ready.Replies = append(p.ready.Replies, m)
}

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
	if s := p.served[m.ID]; s != nil {
		if s.reply != nil {
			p.ready.Send = append(p.ready.Send, s.reply)
		}
		return nil
	}
	p.served[m.ID] = &served{}
	m.Body = slices.Clone(m.Body)
	p.ready.Requests = append(p.ready.Requests, m)
	return nil
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

func (p *Peer) sendRequest(now time.Time, id uint64, a *asked) {
	a.retry = now.Add(a.wait)
	m := Message{Kind: a.kind, ID: id, Floor: p.lowest(), Sender: p.cfg.Boot, Election: p.cfg.Election, Body: a.body}
	p.ready.Send = append(p.ready.Send, m.Append(nil))
}

func (p *Peer) reply(request Message, status fault.Code, body []byte) []byte {
	m := Message{
		Kind: request.Kind, Reply: true, Status: status, ID: request.ID, Sender: request.Sender, Election: p.cfg.Election, Body: body,
	}
	return m.Append(nil)
}
