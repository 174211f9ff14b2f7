package endpoint

import (
	"time"

	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// Commit ends an exactly-once call whose answer the Gatekeeper has to log. The
// answer, a whole datagram, comes out of Tick until Acknowledge says that it is
// logged; it is kept whatever the limits. The tag replaces the entry's.
func (c *Callee) Commit(now time.Duration, e *Entry, reply []byte, tag any) {
	e.running, e.Tag, e.reply = false, tag, reply
	e.waits, e.again = true, now+InitialTimeout
	c.uncommitted.push(&e.kept)
}

// maxDoublings of InitialTimeout are more than MaxTimeout.
const maxDoublings = 8

// Acknowledge takes an ACK: the Gatekeeper has logged the answer to the call that it
// has delivered under that number, and delivers it no more. So the call is
// forgotten, and late copies of it are known by the number. Acknowledge returns the
// tag of a call that has thereby been committed, or nil.
//
// A Gatekeeper that does not know the call any more tells its run only. If the call
// was last heard of from a former run, a copy under a number that is not known may
// be on its way: the call is then remembered until the next run.
func (c *Callee) Acknowledge(id rpcpacket.ID, delivery uint64) (tag any) {
	run, _ := rpcpacket.Delivered(delivery)
	c.begin(run)
	e := c.exact[id]
	if e == nil || e.running || e.settled {
		return nil
	}
	tag, e.Tag = e.Tag, nil
	c.dropReply(e)
	known, number := rpcpacket.Delivered(max(delivery, e.number))
	if known != c.over.run || number == 0 {
		e.settled = true
		return tag
	}
	c.over.settle(number)
	delete(c.exact, id)
	e.gone = true
	return tag
}

// begin notes a run of the Gatekeeper. Of calls that are settled, no copy that it
// sends is new.
func (c *Callee) begin(run uint64) {
	if !c.over.begin(run) {
		return
	}
	for id, e := range c.exact {
		if e.settled {
			delete(c.exact, id)
			e.gone = true
		}
	}
}

// Uncommitted is how many answers wait to be acknowledged.
func (c *Callee) Uncommitted() int { return c.uncommitted.len }

// Tick appends the calls whose answers are to be sent again. Their replies do not
// change any more.
func (c *Callee) Tick(now time.Duration, resend []*Entry) []*Entry {
	for l := c.uncommitted.head.next; l != nil && l != &c.uncommitted.head; l = l.next {
		if e := l.value; e.again <= now {
			e.resent = min(e.resent+1, maxDoublings)
			e.again = now + min(InitialTimeout<<e.resent, MaxTimeout)
			resend = append(resend, e)
		}
	}
	return resend
}

// Due is when Tick has something to do next; false means not before a Commit.
func (c *Callee) Due() (at time.Duration, ok bool) {
	for l := c.uncommitted.head.next; l != nil && l != &c.uncommitted.head; l = l.next {
		if e := l.value; !ok || e.again < at {
			at, ok = e.again, true
		}
	}
	return at, ok
}

// Reply is the answer that is kept, nil if there is none.
func (e *Entry) Reply() []byte { return e.reply }
