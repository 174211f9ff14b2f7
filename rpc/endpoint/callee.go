package endpoint

import (
	"net/netip"
	"time"

	"github.com/bifrost-rack/bifrost/internal/share"
	"github.com/bifrost-rack/bifrost/rpc/internal/sent"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// Verdict is what to do with a call that has arrived.
type Verdict uint8

// The verdicts.
const (
	// Run it: it is new. The shell ends it with Finish or Forget.
	Run Verdict = iota
	// Resend the Arrival's reply: the call has been answered before.
	Resend
	// Duplicate of a call that is running: drop it, the answer will come.
	Duplicate
	// Late duplicate of a call that its caller has settled: drop it.
	Late
	// Stale: meant for another incarnation of this node. Drop it.
	Stale
	// Gone: it is bound to an incarnation that is no more, by name or because it
	// is older than this one: another may have run it. Refuse it as unavailable.
	Gone
	// Lost: it was answered, but the answer had to make room for others. Refuse
	// it as unavailable; never run it again.
	Lost
	// Full: there is no room to remember the call, so it cannot be run at most
	// once. Drop it; its caller will ask again.
	Full
	// Malformed: its id is no id. Drop it.
	Malformed
)

// String returns the verdict's name.
func (v Verdict) String() string {
	names := [...]string{"run", "resend", "duplicate", "late", "stale", "gone", "lost", "full", "malformed"}
	if int(v) < len(names) {
		return names[v]
	}
	return "verdict ?"
}

// Limits bound what a Callee remembers.
type Limits struct {
	// Sessions is how many callers' sessions are remembered, which the nodes' owners share (package share), and
	// NodeSessions how many of one node. A session costs some 200 bytes.
	Sessions, NodeSessions int
	// Window is how many calls of one session are remembered above its floor.
	Window int
	// ReplyBytes is how many bytes of answers are kept for re-sending.
	ReplyBytes int
	// Lifetime is for how long nothing must have been heard of a session until it
	// is forgotten. No packet may live as long in the network, and no caller be
	// silent as long while it waits.
	Lifetime time.Duration
}

// DefaultLimits let a rack's busiest service remember 64 callers with 4096
// concurrent calls each.
var DefaultLimits = Limits{
	Sessions: 1 << 18, NodeSessions: 1 << 16, Window: 1 << 10,
	ReplyBytes: 64 << 20, Lifetime: 10 * time.Minute,
}

// Entry is one call that a Callee knows.
type Entry struct {
	ID rpcpacket.ID
	// Tag is the shell's; it is cleared by Finish.
	Tag any

	session *session
	reply   []byte        // the answer, as a datagram; nil while there is none
	payload *sent.Payload // the answer's whole payload, if reply is only its first packet
	running bool
	gone    bool          // forgotten: its session's floor has passed it
	settled bool          // the caller has all of a large answer
	kept    links[*Entry] // in Callee.replies while reply is kept
}

func newEntry(id rpcpacket.ID, s *session) *Entry {
	e := &Entry{ID: id, session: s, running: true}
	e.kept.value = e
	return e
}

// Arrival is what became of a call that has arrived.
type Arrival struct {
	Verdict Verdict
	Entry   *Entry // for Run
	Reply   []byte // for Resend; it does not change any more
	// Abandoned are running calls that their caller has given up: its floor has
	// passed them. Valid until the next Receive.
	Abandoned []*Entry
}

// Callee is the called side of a node: it decides which calls to run.
type Callee struct {
	incarnation uint32
	limits      Limits
	sessions    map[sessionKey]*session
	held        *share.Nodes   // how many sessions
	aging       list[*session] // least recently heard of first
	replies     list[*Entry]   // answers kept, the oldest first
	replyBytes  int
	abandoned   []*Entry
}

// NewCallee returns the Callee of a node's incarnation. A function, which must not call it back, says whose a caller is; nil
// stands for share.Stranger.
func NewCallee(incarnation uint32, limits Limits, ownerOf func(node netip.Addr) share.Owner) *Callee {
	return &Callee{
		incarnation: incarnation, limits: limits, sessions: make(map[sessionKey]*session),
		held: share.NewNodes(uint64(max(limits.Sessions, 0)), ownerOf), //nolint:gosec // not negative
	}
}

// Crowded reports whether it matters whose callers are.
func (c *Callee) Crowded() bool { return c.held.Crowded() }

// Learn has a caller's sessions charged to its owner, of whom there is news.
func (c *Callee) Learn(caller netip.Addr) { c.held.Learn(caller) }

// Running returns the calls with an id that have arrived and are not answered: one, or none.
// Ids of sessions are unique for a caller; those that callers draw alike are all returned.
func (c *Callee) Running(id rpcpacket.ID) (all []*Entry) {
	for _, s := range c.sessions {
		if e := s.calls[id.Sequence()]; s.key.number == id.Session() && e != nil && e.running && e.ID == id {
			all = append(all, e)
		}
	}
	return all
}

// Receive takes a call or one-way that has arrived from a node, for a service that
// runs here since then.
func (c *Callee) Receive(now, since time.Duration, from netip.Addr, m *rpcpacket.Message) Arrival {
	c.forgetOld(now)
	if m.CalleeIncarnation != 0 && m.CalleeIncarnation != c.incarnation {
		if m.Flags&rpcpacket.FlagReleased != 0 {
			return Arrival{Verdict: Stale}
		}
		return Arrival{Verdict: Gone}
	}
	a := c.lookUp(now, from, m)
	if a.Verdict == Run && m.Older(now-since) {
		c.Forget(a.Entry)
		return Arrival{Verdict: Gone, Abandoned: a.Abandoned}
	}
	return a
}

// lookUp decides by what is known of the call. Exactly-once calls come to another port, and
// the ledger decides about them.
func (c *Callee) lookUp(now time.Duration, from netip.Addr, m *rpcpacket.Message) Arrival {
	if m.Flags.Exact() || m.Flags&rpcpacket.FlagSession == 0 {
		return Arrival{Verdict: Malformed}
	}
	return c.receiveSession(now, from, m)
}

// known is what to do with a call that is known already.
func (e *Entry) known() Arrival {
	switch {
	case e.settled:
		return Arrival{Verdict: Late}
	case e.reply != nil:
		return Arrival{Verdict: Resend, Reply: e.reply}
	case e.running:
		return Arrival{Verdict: Duplicate}
	}
	return Arrival{Verdict: Lost}
}

// Answer keeps the answer to a call that goes on running, such as the receipt
// of a one-way: duplicates are answered with it from now on.
func (c *Callee) Answer(e *Entry, reply []byte) {
	if e.gone || e.reply != nil {
		return
	}
	e.reply = reply
	c.replies.push(&e.kept)
	c.replyBytes += len(reply) + len(e.payload.Bytes())
	for c.replyBytes > c.limits.ReplyBytes && c.replies.len > 1 {
		c.dropReply(c.replies.first())
	}
}

// Finish ends a call. The reply, a whole datagram, is kept
// until the caller settles the call, or a lifetime has passed; it must not change
// any more. It is nil if the call has an Answer already. The reply may be the first
// packet of an answer whose whole payload is given, too; see Payload.
func (c *Callee) Finish(e *Entry, reply []byte, payload *sent.Payload) {
	e.running, e.Tag = false, nil
	if !e.gone && e.reply == nil {
		e.payload = payload
	} else {
		payload.Release()
	}
	if reply != nil {
		c.Answer(e, reply)
	}
}

// Forget undoes the Run of a call that was not run after all: when it arrives
// again it is new. No Answer to it must have been sent.
func (c *Callee) Forget(e *Entry) {
	e.running, e.Tag = false, nil
	c.dropReply(e)
	if !e.gone {
		delete(e.session.calls, e.ID.Sequence())
	}
	e.gone = true
}

// dropReply forgets an answer, not the call.
func (c *Callee) dropReply(e *Entry) {
	if e.reply == nil {
		return
	}
	c.replies.remove(&e.kept)
	c.replyBytes -= len(e.reply) + len(e.payload.Bytes())
	e.payload.Release()
	e.reply, e.payload = nil, nil
}

// find returns the call of a session that is remembered, or nil.
func (c *Callee) find(from netip.Addr, id rpcpacket.ID) *Entry {
	if s := c.sessions[sessionKey{from, id.Session()}]; s != nil {
		return s.calls[id.Sequence()]
	}
	return nil
}

// Payload is the payload of the answer to a call of a node, if the answer exceeds a
// packet and is kept; else nil. It does not change.
func (c *Callee) Payload(from netip.Addr, id rpcpacket.ID) *sent.Payload {
	if e := c.find(from, id); e != nil {
		return e.payload
	}
	return nil
}

// Settle forgets an answer that exceeds a packet: the caller says that it has it. The
// call stays known.
func (c *Callee) Settle(from netip.Addr, id rpcpacket.ID) {
	if e := c.find(from, id); e != nil && e.payload != nil {
		c.dropReply(e)
		e.settled = true
	}
}
