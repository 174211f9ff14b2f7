package endpoint

import (
	"time"

	"github.com/bifrost-rack/bifrost/rpc/packet"
)

// Commit ends an exactly-once call whose answer the Gatekeeper has to log. The
// answer, a whole datagram, comes out of Tick until Acknowledge says that it is
// logged; it is kept whatever the limits. The tag replaces the entry's.
func (c *Callee) Commit(now time.Duration, e *Entry, reply []byte, tag any) {
	e.running, e.Tag, e.reply = false, tag, reply
	e.waits, e.heard = true, now+InitialTimeout
	c.uncommitted.push(&e.kept)
}

// maxDoublings of InitialTimeout are more than MaxTimeout.
const maxDoublings = 8

// Acknowledge takes an ACK: the Gatekeeper has logged the answer to a call, so it
// need not be kept. It returns the tag of a call that has thereby been committed,
// or nil.
func (c *Callee) Acknowledge(now time.Duration, id packet.ID) (tag any) {
	e := c.hashed[id]
	if e == nil || e.running {
		return nil
	}
	tag, e.Tag = e.Tag, nil
	c.dropReply(e)
	e.settled = true
	c.touch(now, e)
	return tag
}

// Uncommitted is how many answers wait to be acknowledged.
func (c *Callee) Uncommitted() int { return c.uncommitted.len }

// Tick appends the calls whose answers are to be sent again. Their replies do not
// change any more.
func (c *Callee) Tick(now time.Duration, resend []*Entry) []*Entry {
	for l := c.uncommitted.head.next; l != nil && l != &c.uncommitted.head; l = l.next {
		if e := l.value; e.heard <= now {
			e.resent = min(e.resent+1, maxDoublings)
			e.heard = now + min(InitialTimeout<<e.resent, MaxTimeout)
			resend = append(resend, e)
		}
	}
	return resend
}

// Due is when Tick has something to do next; false means not before a Commit.
func (c *Callee) Due() (at time.Duration, ok bool) {
	for l := c.uncommitted.head.next; l != nil && l != &c.uncommitted.head; l = l.next {
		if e := l.value; !ok || e.heard < at {
			at, ok = e.heard, true
		}
	}
	return at, ok
}

// Reply is the answer that is kept, nil if there is none.
func (e *Entry) Reply() []byte { return e.reply }
