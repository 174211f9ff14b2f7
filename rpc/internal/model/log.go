package model

import (
	"bytes"
	"net/netip"

	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/internal/join"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
	"github.com/bifrost-rack/bifrost/rpc/trailer"
)

// hold deals with a message that asks for the Gatekeeper.
func (g *Gatekeeper) hold(from netip.Addr, m rpcpacket.Message) {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case m.Type == rpcpacket.Reply || m.Type == rpcpacket.Exception:
		if m.CalleeIncarnation == g.nodes[from] {
			g.settle(from, m)
		}
	case m.CallerIncarnation != g.nodes[from]: // fenced
	case m.Flags&rpcpacket.FlagSettled != 0: // it keeps everything
		g.ack(from, m.Call, 0, m.Floor)
	case m.Flags&rpcpacket.FlagCheckpoint != 0:
		g.checkpoint(from, m)
	case g.calls[m.Call] != nil:
		g.again(from, g.calls[m.Call], &m)
	default:
		g.admit(from, m)
	}
}

// parent is the logged execution that a call belongs to; nil for a session's.
func (g *Gatekeeper) parent(from netip.Addr, m *rpcpacket.Message) (e *execution, ok bool) {
	if m.Parent.IsZero() {
		return nil, m.Flags&rpcpacket.FlagSession != 0
	}
	if p := g.mains[m.Parent]; p != nil {
		return &p.execution, p.node == from && m.Floor == uint64(p.logged.Index)
	}
	p := g.calls[m.Parent]
	if p == nil || p.done || p.service.node != from || !p.released {
		return nil, false
	}
	return &p.execution, true
}

// admit logs a new call and releases it.
func (g *Gatekeeper) admit(from netip.Addr, m rpcpacket.Message) {
	parent, ok := g.parent(from, &m)
	service := g.services[m.Service]
	if !ok || service == nil {
		g.complain("call %s of %s: no parent that runs there, or no such service", m.Call, from)
		return
	}
	c := &call{message: m, caller: from, service: service}
	if parent != nil {
		journal, _ := entries(m.Trailer)
		parent.journal = append(parent.journal, journal...)
	}
	g.calls[m.Call] = c
	g.log = append(g.log, c)
	if m.Type == rpcpacket.Oneway {
		g.ack(from, m.Call, 0, 0)
		if parent != nil {
			parent.oneways = append(parent.oneways, c)
			return
		}
	}
	g.allow(c)
}

// allow numbers a call and releases it. A one-way gets its number no earlier: the
// calls that it is released after would wait for it.
func (g *Gatekeeper) allow(c *call) {
	c.ready = true
	if s := c.service; s.stateful {
		s.last++
		c.order = s.last
	}
	g.release(c, false)
}

// release hands a call to its callee, if there is one now.
func (g *Gatekeeper) release(c *call, replay bool) {
	if !c.service.up || !c.ready || c.done {
		return
	}
	m := c.message
	m.Flags |= rpcpacket.FlagReleased
	if replay {
		m.Flags |= rpcpacket.FlagReplay
	}
	m.Trailer = nil
	if c.attempt > 0 {
		if m.Trailer = c.journal; m.Size() > g.budget {
			m.Trailer = trailer.Spilled(len(c.journal))
		}
	}
	if c.number == 0 {
		g.delivered++
		c.number = g.delivered
	}
	m.Floor = rpcpacket.DeliveryNumber(1, c.number)
	m.CalleeIncarnation, m.Order, m.Attempt = g.nodes[c.service.node], c.order, c.attempt
	c.released = true
	g.sendFirst(c.caller, rackaddr.Service(c.service.name), &m)
}

// again answers a call that is known.
func (g *Gatekeeper) again(from netip.Addr, c *call, m *rpcpacket.Message) {
	switch {
	case m.Method != c.message.Method || !bytes.Equal(m.Payload, c.message.Payload):
		g.complain("call %s of %s was another before", m.Call, from)
		e := rpcpacket.Message{Header: m.Header, Payload: []byte("the call was another before")}
		e.Type, e.Code, e.Flags = rpcpacket.Exception, fault.Nondeterminism, e.Flags|rpcpacket.FlagReleased
		g.send(rackaddr.Gatekeeper, from, &e)
	case m.Type == rpcpacket.Oneway:
		g.ack(from, m.Call, 0, 0)
	case c.done:
		c.caller = from
		g.answer(c)
	default:
		c.caller = from
		g.release(c, c.released)
	}
}

// settle logs an answer.
func (g *Gatekeeper) settle(from netip.Addr, m rpcpacket.Message) {
	c := g.calls[m.Call]
	if c == nil || !c.released || c.service.node != from {
		g.complain("%s answers call %s, which it was not given", from, m.Call)
		return
	}
	if !c.done {
		c.done, c.from = true, from
		g.commit(c, m)
	}
	g.ack(from, m.Call, rpcpacket.FlagDone, rpcpacket.DeliveryNumber(1, c.number))
	if c.message.Type != rpcpacket.Oneway {
		g.answer(c)
	}
}

// commit makes an execution's outcome final: one record.
func (g *Gatekeeper) commit(c *call, m rpcpacket.Message) {
	_, rest := entries(m.Trailer)
	s := &c.service.state
	for _, section := range rest {
		switch section.Type {
		case trailer.Snapshot:
			*s = join.State{Base: section.Data}
		case trailer.Delta:
			s.Deltas = append(s.Deltas, section.Data)
		default: // no part of the state
		}
	}
	if c.order != 0 {
		if c.order != c.service.done+1 {
			g.complain("call %d of %s is answered after %d", c.order, c.service.name, c.service.done)
		}
		c.service.done = c.order
	}
	m.Trailer = nil
	c.reply = m.Append(nil)
	g.releaseOneways(&c.execution)
}

func (g *Gatekeeper) releaseOneways(e *execution) {
	for _, o := range e.oneways {
		g.allow(o)
	}
	e.oneways = nil
}

// answer sends the logged reply to whoever calls now.
func (g *Gatekeeper) answer(c *call) {
	m, err := rpcpacket.Parse(c.reply)
	if err != nil {
		panic(err)
	}
	m.Flags |= rpcpacket.FlagReleased
	g.sendFirst(c.from, c.caller, &m)
}

// sendFirst sends a message, or its first packet: the receiver asks for the rest.
func (g *Gatekeeper) sendFirst(from, to netip.Addr, m *rpcpacket.Message) {
	if m.Size() > g.budget {
		b, ok := rpcpacket.First(m.Append(nil), g.budget, 0, 0)
		first, err := rpcpacket.Parse(b)
		if !ok || err != nil {
			panic(err)
		}
		m = &first
	}
	g.send(from, to, m)
}

// checkpoint commits a main.
func (g *Gatekeeper) checkpoint(from netip.Addr, m rpcpacket.Message) {
	p := g.mains[m.Parent]
	if p == nil || p.node != from {
		g.complain("%s checkpoints a main that does not run there", from)
		return
	}
	if m.Index > p.logged.Index {
		p.journal, p.logged = nil, join.Main{Index: m.Index, Done: m.Flags&rpcpacket.FlagDone != 0}
		if _, rest := entries(m.Trailer); len(rest) > 0 {
			p.logged.State = rest[0].Data
		}
		g.releaseOneways(&p.execution)
	}
	g.ack(from, m.Call, 0, 0)
}

func (g *Gatekeeper) ack(to netip.Addr, id rpcpacket.ID, flags rpcpacket.Flags, delivery uint64) {
	g.send(rackaddr.Gatekeeper, to, &rpcpacket.Message{Header: rpcpacket.Header{
		Type: rpcpacket.Ack, Call: id, Flags: flags | rpcpacket.FlagReleased, Floor: delivery,
	}})
}

// Remind releases again what runs: the network may have lost it, and nobody else
// asks for one-ways, or for calls that their callers have given up.
func (g *Gatekeeper) Remind() {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, c := range g.log {
		if c.released {
			g.release(c, true)
		}
	}
}
