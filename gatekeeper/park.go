package gatekeeper

import (
	"time"

	"github.com/bifrost-rack/bifrost/internal/fault"
	rpc "github.com/bifrost-rack/bifrost/rpc/packet"
)

// A call into a stateful service is refused if it would wait for itself. To see that,
// the graph has to know on whose behalf it is made; but the digest of a call that is
// not held comes up to digestWait later than the call, which may have called on by
// then. So a held call whose parent is not known waits for the parent's digest, for
// digestPatience at most: the digest may be lost, or the parent be over.
//
//	call, parent unknown ─▶ parked ─┬─ parent's digest ─▶ judged
//	      or would wait, as         └─ patience ends ───▶ judged, for good
//	      digests have it
//
// Likewise a call that would wait for itself over calls that are known from digests
// only: the digest of their end may be under way. If it is so, it stays so.

// digestPatience is how long a call waits: as long as a digest takes, and some more.
const digestPatience = 5 * digestWait

// maxParked bounds the calls that wait so; others are judged at once.
const maxParked = 1024

// parked is a held call that waits for its parent's digest.
type parked struct {
	call, parent rpc.ID
	h            *held
	until        time.Time
}

// park has a call wait, if its parent is not known and may come to be. A copy of one
// that waits already waits for the same.
func (c *controller) park(h *held, m *rpc.Message) bool {
	s := c.services[h.dst]
	if c.unparking || s == nil || !s.stateful() || m.Parent.IsZero() {
		return false
	}
	if _, known := c.graph.Call(m.Parent); known {
		return false
	}
	if _, known := c.table.Where(m.Parent); known {
		return false // it is exactly-once, or a durable main
	}
	return c.wait(h, m, m.Parent)
}

// doubtful says that a call would wait for itself, if what digests have told still
// holds.
var doubtful = fault.New(fault.Deadlock, "call", "it would wait for itself")

// wait parks a call. A copy of one that waits already waits for the same.
func (c *controller) wait(h *held, m *rpc.Message, parent rpc.ID) bool {
	if len(c.parked) >= maxParked {
		return false
	}
	for i := range c.parked {
		if c.parked[i].call == m.Call {
			c.count.Duplicates++
			return true
		}
	}
	c.parked = append(c.parked, parked{m.Call, parent, h, c.now.Add(digestPatience)})
	c.timers = true
	return true
}

// parentSeen judges the calls that waited for a digest.
func (c *controller) parentSeen(parent rpc.ID) {
	if len(c.parked) > 0 {
		c.unpark(func(p *parked) bool { return p.parent == parent })
	}
}

// giveUpParents judges the calls whose patience has ended.
func (c *controller) giveUpParents() {
	c.unpark(func(p *parked) bool { return !c.now.Before(p.until) })
}

// unpark judges some of the calls that wait, oldest first, as if they came now.
func (c *controller) unpark(ready func(*parked) bool) {
	var due, waiting []parked
	for _, p := range c.parked {
		if ready(&p) {
			due = append(due, p)
		} else {
			waiting = append(waiting, p)
		}
	}
	c.parked = waiting
	c.unparking = true
	defer func() { c.unparking = false }()
	for _, p := range due {
		if p.h.reason == reasonNoRoute {
			c.heldNoRoute(p.h)
		} else {
			c.heldCall(p.h)
		}
	}
}
