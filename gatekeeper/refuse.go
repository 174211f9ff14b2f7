package gatekeeper

import (
	"strings"

	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/internal/frame"
	rpc "github.com/bifrost-rack/bifrost/rpc/packet"
)

// maxMessage bounds the text of an exception, in bytes.
const maxMessage = 1024

// release lets a held packet go on, with the checksum that it needs after a
// change or if its host had left it to the network card.
func (c *controller) release(h *held, to hop) {
	if err := frame.Fix(h.frame); err != nil {
		c.count.Malformed++ // it was parsed before, so this does not happen
		return
	}
	c.count.Released++
	c.send(to, h.frame)
}

// exception builds the message that answers a call in its callee's place: a refusal of a
// call that nobody has got.
func exception(m *rpc.Header, why *fault.Error) []byte {
	h := *m
	h.Type, h.Code, h.Timeout = rpc.Exception, why.Code, 0
	h.Flags = m.Flags&rpc.FlagSession | rpc.FlagReleased | rpc.FlagUnbegun
	h.Flags = h.Flags.WithPolicy(m.Flags.Policy())
	text := why.Msg
	if len(text) > maxMessage {
		text = text[:maxMessage]
	}
	e := rpc.Message{Header: h, Payload: []byte(strings.ToValidUTF8(text, "?"))}
	return e.Append(make([]byte, 0, e.Size()))
}

// except answers a held call with an exception, as from the service's address.
func (c *controller) except(h *held, m *rpc.Header, why *fault.Error) {
	c.send(0, h.reply(exception(m, why)))
}

// refuse is except for a call that never came on record.
func (c *controller) refuse(h *held, m *rpc.Header, why *fault.Error) {
	c.count.Refused++
	c.traceRefused(h, m, why)
	c.event(Event{Kind: CallRefused, Node: h.src, Method: m.Method.String(), Call: m.Call.String(), Code: why.Code, Message: why.Msg})
	c.except(h, m, why)
}

// refuseCall ends a call on record with its refusal.
func (c *controller) refuseCall(k *call, h *held, m *rpc.Header) {
	c.count.Refused++
	c.callEvent(CallRefused, k)
	c.keepRefusal(k, k.refusal)
	c.except(h, m, k.refusal)
	c.finish(k)
}

// heldNoRoute takes a call without pointers that found no route: there is none to
// a stateful service, and one to another may have come up meanwhile. It goes on
// if it may, or is answered.
func (c *controller) heldNoRoute(h *held) {
	n := c.caller(h)
	if n == nil {
		return
	}
	m, err := rpc.Parse(h.payload)
	if err != nil {
		c.malformedCall(h, &m.Header, err)
		return
	}
	callee, why := c.choose(h, &m.Header)
	if why == moving || why == nil && c.park(h, &m) {
		return
	}
	if why == nil {
		why = c.unheld(n, callee, c.services[h.dst], &m.Header)
	}
	if why == doubtful && c.wait(h, &m, rpc.ID{}) {
		return
	}
	if why != nil {
		c.refuse(h, &m.Header, why)
		return
	}
	c.release(h, hopOf(callee.blade.port.num))
}
