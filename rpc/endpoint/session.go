package endpoint

import (
	"cmp"
	"net/netip"
	"slices"
	"time"

	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// sessionKey names a session: the node that it is of, and the number it drew.
type sessionKey struct {
	node   netip.Addr
	number uint64
}

// session is the window of one caller's session: every sequence number below
// floor is settled and refused for ever; those above are new unless in calls. It
// is not a high-water mark: a lower number that arrives late is still new.
type session struct {
	key   sessionKey
	floor uint64
	calls map[uint64]*Entry
	heard time.Duration
	queue links[*session]
}

// receiveSession decides by the session's window.
func (c *Callee) receiveSession(now time.Duration, from netip.Addr, m *rpcpacket.Message) Arrival {
	seq := m.Call.Sequence()
	if m.Floor == 0 || m.Floor-1 > seq { // 1 above it: the caller has given the call up
		return Arrival{Verdict: Malformed}
	}
	s := c.session(sessionKey{from, m.Call.Session()})
	if s == nil {
		return Arrival{Verdict: Full}
	}
	s.heard = now
	c.aging.remove(&s.queue)
	c.aging.push(&s.queue)
	c.raise(s, m.Floor)
	a := c.decide(s, seq, m.Call)
	a.Abandoned = c.abandoned
	return a
}

// session returns a session, a new one if need be, or nil if there is no room.
func (c *Callee) session(key sessionKey) *session {
	if s := c.sessions[key]; s != nil {
		return s
	}
	if c.held.Held(key.node) >= uint64(c.limits.NodeSessions) || !c.held.Take(key.node, 1) { //nolint:gosec // not negative
		return nil
	}
	s := &session{key: key, calls: make(map[uint64]*Entry)}
	s.queue.value = s
	c.sessions[key] = s
	return s
}

// decide looks a sequence number up in its session's window.
func (c *Callee) decide(s *session, seq uint64, id rpcpacket.ID) Arrival {
	if seq < s.floor {
		return Arrival{Verdict: Late}
	}
	if e := s.calls[seq]; e != nil {
		return e.known()
	}
	if len(s.calls) >= c.limits.Window {
		return Arrival{Verdict: Full}
	}
	e := newEntry(id, s)
	s.calls[seq] = e
	return Arrival{Verdict: Run, Entry: e}
}

// raise moves a session's floor up and forgets what it passes. The calls passed
// that are still running are left in c.abandoned, the oldest first.
func (c *Callee) raise(s *session, floor uint64) {
	c.abandoned = c.abandoned[:0]
	if floor <= s.floor {
		return
	}
	from := s.floor
	s.floor = floor
	if floor-from <= uint64(len(s.calls)) { // as for a caller that makes one call after the other
		for seq := from; seq < floor; seq++ {
			c.pass(s, s.calls[seq])
		}
		return
	}
	for seq, e := range s.calls {
		if seq < floor {
			c.pass(s, e)
		}
	}
	slices.SortFunc(c.abandoned, func(a, b *Entry) int { return cmp.Compare(a.ID.Sequence(), b.ID.Sequence()) })
}

// pass forgets a call that its session's floor has passed; nil is none.
func (c *Callee) pass(s *session, e *Entry) {
	if e == nil {
		return
	}
	delete(s.calls, e.ID.Sequence())
	c.dropReply(e)
	e.gone = true
	if e.running {
		c.abandoned = append(c.abandoned, e)
	}
}

// forgetOld forgets sessions of which nothing has been heard for longer than a
// packet lives. What runs is kept.
func (c *Callee) forgetOld(now time.Duration) {
	for c.aging.len > 0 {
		s := c.aging.first()
		if now-s.heard <= c.limits.Lifetime {
			break
		}
		c.aging.remove(&s.queue)
		if s.running() {
			s.heard = now
			c.aging.push(&s.queue)
			continue
		}
		c.forget(s)
	}
}

func (s *session) running() bool {
	for _, e := range s.calls {
		if e.running {
			return true
		}
	}
	return false
}

func (c *Callee) forget(s *session) {
	for _, e := range s.calls {
		c.dropReply(e)
		e.gone = true
	}
	delete(c.sessions, s.key)
	c.held.Release(s.key.node, 1)
}
