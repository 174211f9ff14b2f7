package gatekeeper

import (
	"encoding/json"
	"maps"
	"net/netip"
	"slices"

	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/internal/frame"
	"github.com/bifrost-rack/bifrost/internal/netio"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
)

// port is a switch port from which a daemon has spoken.
type port struct {
	num    uint16
	mac    frame.MAC
	ready  bool           // its next_hop entry is in place
	remote netip.AddrPort // where the daemon speaks from
	peer   *control.Peer
	blade  *blade                           // nil before a hello was accepted
	asked  map[uint64]func(control.Message) // our requests without reply
}

// heldControl takes a control packet. Every one is held, whoever it is from and
// wherever it goes. Those that are not for the Gatekeeper end here, and so do
// those that no daemon has sent: it alone has the control port of its blade, and
// speaks from a link-local address until it has one of the rack's.
func (c *controller) heldControl(h *held) {
	daemon := h.src.IsLinkLocalUnicast() || rackaddr.BladePrefix.Contains(h.src)
	if h.dst != rackaddr.Gatekeeper || h.srcPort != rackaddr.PortControl || !daemon {
		c.count.Foreign++
		return
	}
	c.timers = true
	p := c.ports[h.port]
	if p == nil {
		p = c.newPort(h.port)
	}
	p.remote = netip.AddrPortFrom(h.src, h.srcPort)
	if p.mac != h.srcMAC {
		p.mac, p.ready = h.srcMAC, false
		c.change(func(error) {
			p.ready = true
			c.deliver(p, h)
		}, c.base.want(hopEntry(hopOf(p.num), p.num, p.mac, c.cfg.MAC)))
		return
	}
	if p.ready { // else the daemon will say it again
		c.deliver(p, h)
	}
}

// newPort makes a port known, with nothing said.
func (c *controller) newPort(num uint16) *port {
	p := &port{num: num, asked: map[uint64]func(control.Message){}, peer: control.NewPeer(control.PeerConfig{
		Boot: c.cfg.Boot, Election: c.cfg.Election, MaxDatagram: c.cfg.MTU - netio.Overhead,
	})}
	c.ports[num] = p
	return p
}

// deliver hands a control packet to its port's end of the conversation.
func (c *controller) deliver(p *port, h *held) {
	if err := p.peer.Input(h.payload); err != nil {
		c.count.Malformed++
		c.log.Debug("control packet dropped", "port", p.num, "error", err)
	}
	c.converse(p)
}

// converse carries out what a peer wants done.
func (c *controller) converse(p *port) {
	for {
		r := p.peer.Ready()
		if len(r.Send)+len(r.Requests)+len(r.Replies) == 0 {
			return
		}
		for _, b := range r.Send {
			c.send(hopOf(p.num), frame.UDP6{
				Src: netip.AddrPortFrom(rackaddr.Gatekeeper, rackaddr.PortControl), Dst: p.remote, Payload: b,
			}.Append(nil))
		}
		for _, m := range r.Replies {
			then := p.asked[m.ID]
			delete(p.asked, m.ID)
			if then != nil {
				then(m)
			}
		}
		for _, m := range r.Requests {
			c.request(p, m)
		}
	}
}

// request carries out a daemon's request.
func (c *controller) request(p *port, m control.Message) {
	var err error
	switch m.Kind {
	case control.KindHello:
		err = c.hello(p, m)
	case control.KindHeartbeat:
		err = c.heartbeat(p, m)
	case control.KindJoin:
		err = c.join(p, m)
	case control.KindExport:
		err = c.export(p, m)
	case control.KindLeave:
		err = c.leave(p, m)
	case control.KindState:
		err = c.state(p, m)
	case control.KindPolicies:
		err = c.policies(p, m)
	case control.KindWho:
		err = c.who(p, m)
	case control.KindService:
		err = c.describe(p, m)
	case control.KindServing:
		err = c.serving(p, m)
	default:
		err = fault.New(fault.Unsupported, m.Kind.String(), "the Gatekeeper does not take this request")
	}
	if err != nil {
		c.count.Refused++
		c.log.Warn("request refused", "port", p.num, "request", m.Kind, "error", err)
		c.fail(p, m, err)
	}
}

// sortedPorts returns all ports by number.
func (c *controller) sortedPorts() []*port {
	return slices.SortedFunc(maps.Values(c.ports), func(a, b *port) int { return int(a.num) - int(b.num) })
}

// answer replies to a request; body nil is an empty one.
func (c *controller) answer(p *port, m control.Message, body any) {
	var b []byte
	if body != nil {
		var err error
		if b, err = json.Marshal(body); err != nil {
			c.fail(p, m, err)
			return
		}
	}
	p.peer.Answer(m, fault.OK, b)
	c.converse(p)
}

// fail replies with an error.
func (c *controller) fail(p *port, m control.Message, err error) {
	p.peer.Answer(m, fault.CodeOf(err), []byte(err.Error()))
	c.converse(p)
}

// ask sends a request to a daemon until it is answered.
func (c *controller) ask(p *port, kind control.Kind, body any, then func(control.Message)) error {
	b, err := json.Marshal(body)
	if err != nil {
		return err
	}
	id, err := p.peer.Ask(c.now, kind, b)
	if err != nil {
		return err
	}
	p.asked[id] = then
	c.timers = true
	c.converse(p)
	return nil
}
