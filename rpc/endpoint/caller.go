package endpoint

import (
	"net/netip"
	"time"

	"github.com/bifrost-rack/bifrost/internal/pace"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// Call is one message that its sender repeats until it is answered. The Caller
// fills in ID and Floor; the rest that is exported belongs to the shell, which
// must leave a Call alone from Begin until it comes back from Receive, Tick or
// End.
type Call struct {
	ID      rpcpacket.ID
	Floor   uint64
	Session bool // ID is (session, sequence): the header's FlagSession
	// Released makes only an answer count that the Gatekeeper has released: it has judged the call's
	// rights. The shell sets it before Begin.
	Released bool
	// Held says that the Gatekeeper keeps a record of the call until the session has moved
	// on. The shell sets it before Begin.
	Held bool

	// RTT is the estimate for the method that is called.
	RTT *RTT
	// Node is whom the call goes to. The shell sets it before Begin.
	Node [16]byte
	// Kept says that the node's ledger keeps the call of a session until it is told to forget it. The shell sets it before Begin.
	Kept bool
	// Expires is when Tick gives the call up; 0 is never. A call that somebody
	// waits for is ended by the shell instead.
	Expires time.Duration
	// Tag is what the shell likes to find again.
	Tag any

	lane       *lane
	named      bool // and has not begun
	sent, due  time.Duration
	interval   time.Duration
	restarted  time.Duration // before, no word of its node makes a copy due
	again      bool
	prev, next *Call
}

// waits is after how long a pause between two copies it is asked whether the callee is there.
const waits = 250 * time.Millisecond

// Waits reports whether the call has waited for so long that somebody should ask whether its callee is there.
func (c *Call) Waits() bool { return c.interval >= waits }

// Resent reports whether the call was sent more than once.
func (c *Call) Resent() bool { return c.again }

// Due is when Tick has something to do for the call.
func (c *Call) Due() time.Duration {
	if c.Expires != 0 {
		return min(c.due, c.Expires)
	}
	return c.due
}

// lane is a session in which one call at a time is out.
type lane struct {
	session, sequence uint64
	// owes: the Gatekeeper keeps a record of a call, which the lane's next call will settle. If
	// there is none until due, the Gatekeeper is told so, later and later.
	owes     bool
	due      time.Duration
	interval time.Duration
	// node has answered the direct call that was the lane's last one, if any. The lane's
	// next call to it settles that, or word to it (Left).
	node [16]byte
	last rpcpacket.ID
}

// Left is a direct call of a session that no later one settles.
type Left struct {
	Node [16]byte
	Call rpcpacket.ID
}

// SettleAfter is how long a session is idle until the Gatekeeper is told that its
// records of the session's calls are not needed any more.
const SettleAfter = 500 * time.Millisecond

// Settlement says that a session's calls below the floor will not be asked for again.
type Settlement struct{ Session, Floor uint64 }

// ID is the id of the message that tells the Gatekeeper.
func (s Settlement) ID() rpcpacket.ID { return rpcpacket.SessionID(s.Session, 0) }

// Caller is the calling side of a node.
type Caller struct {
	node   netip.Addr
	random func() uint64
	drawn  uint32  // of the next session
	idle   []*lane // the last used is the last, and used first, so that few stay in use
	owing  int     // lanes that owe a settlement, idle or not
	noted  int     // lanes with a node
	left   []Left
	calls  map[rpcpacket.ID]*Call
	head   Call // ring of the calls that are out, the oldest first
}

// NewCaller returns the Caller of a node, which draws what distinguishes its sessions from
// random: that must not repeat between incarnations of the node.
func NewCaller(node netip.Addr, random func() uint64) *Caller {
	c := &Caller{node: node, random: random, drawn: uint32(random()), calls: make(map[rpcpacket.ID]*Call)}
	c.head.prev, c.head.next = &c.head, &c.head
	return c
}

// Outstanding is how many calls are out.
func (c *Caller) Outstanding() int { return len(c.calls) }

// Name gives a call its id within a session before it begins, so that the shell can write the id down. Begin or
// Unname follows.
func (c *Caller) Name(call *Call) {
	l := c.lane()
	l.sequence++
	call.lane, call.Session, call.named = l, true, true
	call.ID, call.Floor = rpcpacket.SessionID(l.session, l.sequence), l.sequence
}

// Unname gives the session of a call back that has its id and does not begin. The id is not used again.
func (c *Caller) Unname(call *Call) {
	c.idle = append(c.idle, call.lane)
	call.lane, call.named = nil, false
}

// Begin begins a call in a session, under the id that Name has given it, or a new one. The shell sends it at once.
func (c *Caller) Begin(now time.Duration, call *Call) {
	if !call.named {
		c.Name(call)
	}
	call.named = false
	l := call.lane
	if call.Held || !l.owes {
		l.due, l.interval = now+SettleAfter, SettleAfter
	}
	if call.Held && !l.owes {
		l.owes = true
		c.owing++
	}
	if call.Kept {
		c.goesTo(l, call.Node, call.ID)
	} else {
		c.goesTo(l, [16]byte{}, rpcpacket.ID{})
	}
	c.start(now, call)
}

// BeginIn begins a call whose id is a hash that the shell has derived (ChildID), with a place in a lane.
// It reports false, and nothing has begun, if a call with that id is out.
func (c *Caller) BeginIn(now time.Duration, call *Call, id rpcpacket.ID) bool {
	if c.calls[id] != nil {
		return false
	}
	l := c.lane()
	l.sequence++
	call.lane, call.Session = l, false
	call.ID, call.Floor = id, l.sequence
	c.start(now, call)
	return true
}

// Lane is the lane that a call is in; its number there is Floor.
func (c *Call) Lane() uint64 { return c.lane.session }

// goesTo notes whom a lane's next call goes to. Nobody is told so of one to the node of the
// last one.
func (c *Caller) goesTo(l *lane, node [16]byte, id rpcpacket.ID) {
	none := [16]byte{}
	if l.node != none {
		c.noted--
		if l.node != node {
			c.left = append(c.left, Left{Node: l.node, Call: l.last})
		}
	}
	if l.node, l.last = node, id; node != none {
		c.noted++
	}
}

// Left returns direct calls that the nodes which have answered them are to be told to
// forget: the lanes that they were in have gone on to others, or are idle.
func (c *Caller) Left(now time.Duration) []Left {
	if c.noted > 0 {
		for _, l := range c.idle {
			if l.node != ([16]byte{}) && l.due <= now {
				c.goesTo(l, [16]byte{}, rpcpacket.ID{})
			}
		}
	}
	left := c.left
	c.left = nil
	return left
}

func (c *Caller) lane() *lane {
	if n := len(c.idle); n > 0 {
		l := c.idle[n-1]
		c.idle = c.idle[:n-1]
		return l
	}
	// Sequence numbers begin with 1; 0 is the Settlement's. They begin anywhere, so that a
	// stranger who has seen no call of the session guesses no id of it.
	c.drawn++
	return &lane{session: rpcpacket.SessionOf(c.node, c.drawn), sequence: c.random() >> 16}
}

func (c *Caller) start(now time.Duration, call *Call) {
	call.interval = call.RTT.Timeout()
	call.sent, call.due, call.restarted, call.again = now, now+call.interval, 0, false
	call.RTT.out++
	call.prev, call.next = c.head.prev, &c.head
	call.prev.next, c.head.prev = call, call
	c.calls[call.ID] = call
}

// Receive takes a reply or exception from an address and returns the call that it answers,
// which is thereby ended. It returns nil for what answers no call: a duplicate, an
// answer to a call given up, or a stranger's packet.
func (c *Caller) Receive(now time.Duration, from netip.Addr, m *rpcpacket.Message) *Call {
	if m.Type != rpcpacket.Reply && m.Type != rpcpacket.Exception {
		return nil
	}
	call := c.Find(from, m)
	if call != nil {
		c.answered(now, call)
	}
	return call
}

// Out returns the call with an id, nil if none is out.
func (c *Caller) Out(id rpcpacket.ID) *Call { return c.calls[id] }

// Find returns the call that an answer is to, without ending it; nil if none is out. A call is answered by the node that it was
// sent to, or by what the Gatekeeper has released. A node refuses one place in a lane: it may run the same call when that is sent
// again, in another place.
func (c *Caller) Find(from netip.Addr, m *rpcpacket.Message) *Call {
	call := c.calls[m.Call]
	if call == nil || call.Session != (m.Flags&rpcpacket.FlagSession != 0) {
		return nil
	}
	if (call.Released || from.As16() != call.Node) && m.Flags&rpcpacket.FlagReleased == 0 {
		return nil // forged
	}
	if !call.Session && m.Refuses() && m.Flags&rpcpacket.FlagReleased == 0 && (m.Order != call.Lane() || m.Floor != call.Floor) {
		return nil
	}
	return call
}

// Postpone starts the wait for a call's answer afresh: the other side has asked for
// more of the call, or a part of the answer has come. It returns the call, nil if it
// is not out.
func (c *Caller) Postpone(now time.Duration, id rpcpacket.ID) *Call {
	call := c.calls[id]
	if call != nil {
		call.due = now + call.interval
	}
	return call
}

// answered learns from a call's answer and ends it.
func (c *Caller) answered(now time.Duration, call *Call) {
	if call.lane != nil && (call.Held || !call.lane.owes) {
		call.lane.due = now + SettleAfter
	}
	if call.again {
		call.RTT.answeredLate(now - call.sent)
	} else {
		call.RTT.answered(now - call.sent)
	}
	c.End(call)
}

// Age is for how long the call has been out.
func (c *Call) Age(now time.Duration) time.Duration { return now - c.sent }

// End gives a call up: it is not sent again, and an answer to it is ignored. In a
// session its sequence number counts as settled. Ending a call that is not out
// does nothing and reports false.
func (c *Caller) End(call *Call) bool {
	if c.calls[call.ID] != call {
		return false
	}
	delete(c.calls, call.ID)
	call.RTT.out--
	call.prev.next, call.next.prev = call.next, call.prev
	call.prev, call.next = nil, nil
	if call.lane != nil {
		c.idle = append(c.idle, call.lane)
	}
	return true
}

// Detach leaves a call to the Caller until it is answered or, unless that is 0,
// expires: nobody waits for it any more. It reports false if it is not out.
func (c *Caller) Detach(call *Call, expires time.Duration) bool {
	if c.calls[call.ID] != call {
		return false
	}
	call.Expires = expires
	return true
}

// Due is when Tick has something to do next; false means not before a Begin. It
// looks at every call that is out.
func (c *Caller) Due() (at time.Duration, ok bool) {
	for call := c.head.next; call != &c.head; call = call.next {
		if due := call.Due(); !ok || due < at {
			at, ok = due, true
		}
	}
	for _, l := range c.owingLanes() {
		if (l.owes || l.node != [16]byte{}) && (!ok || l.due < at) {
			at, ok = l.due, true
		}
	}
	return at, ok
}

// owingLanes are the idle lanes, if some of them may owe a settlement.
func (c *Caller) owingLanes() []*lane {
	if c.owing+c.noted == 0 {
		return nil
	}
	return c.idle
}

// Settle appends what the Gatekeeper is to be told now about sessions that are idle.
func (c *Caller) Settle(now time.Duration, s []Settlement) []Settlement {
	for _, l := range c.owingLanes() {
		if l.owes && l.due <= now {
			s = append(s, Settlement{l.session, l.sequence + 1})
			l.interval = settlePauses.Next(l.interval)
			l.due = now + l.interval
		}
	}
	return s
}

// settlePauses are those between settlements that nobody answers.
var settlePauses = pace.Pauses{First: SettleAfter, Most: time.Minute}

// Settled takes the Gatekeeper's word that it knows of a settlement.
func (c *Caller) Settled(s Settlement) {
	for _, l := range c.owingLanes() {
		if l.owes && l.session == s.Session && l.sequence+1 == s.Floor {
			l.owes = false
			c.owing--
		}
	}
}

// Tick appends the calls to send again to resend, and those that have expired,
// and are thereby ended, to expired.
func (c *Caller) Tick(now time.Duration, resend, expired []*Call) (r, e []*Call) {
	for call := c.head.next; call != &c.head; {
		this := call
		call = call.next
		switch {
		case this.Expires != 0 && this.Expires <= now:
			c.End(this)
			expired = append(expired, this)
		case this.due <= now && !this.again && this.sent+this.interval+this.RTT.crowded() > now:
			this.due = this.sent + this.interval + this.RTT.crowded() // its callee may be busy with the others
		case this.due <= now:
			this.again = true
			this.interval = pace.Pauses{Most: MaxTimeout}.Next(this.interval)
			this.due = now + this.interval
			resend = append(resend, this)
		}
	}
	return resend, expired
}

// Restarted takes a node's word that it has restarted and takes direct calls: the copies sent
// before are lost. Each call to the node is due at once, but MinTimeout after the node's last
// word at the earliest, and is repeated from then on like one that has just begun. Restarted
// returns when the first of these calls is due, false if there is none.
func (c *Caller) Restarted(now time.Duration, node [16]byte) (at time.Duration, ok bool) {
	for call := c.head.next; call != &c.head; call = call.next {
		if call.Node != node {
			continue
		}
		call.interval = min(call.interval, call.RTT.Timeout())
		if at := max(now, call.restarted); at < call.due {
			call.due, call.restarted = at, at+MinTimeout
		}
		if !ok || call.due < at {
			at, ok = call.due, true
		}
	}
	return at, ok
}

// All appends every call that is out, the oldest first.
func (c *Caller) All(calls []*Call) []*Call {
	for call := c.head.next; call != &c.head; call = call.next {
		calls = append(calls, call)
	}
	return calls
}
