package gatekeeper

import (
	"net/netip"

	"github.com/bifrost-rack/bifrost/gatekeeper/execution"
	"github.com/bifrost-rack/bifrost/gatekeeper/log"
	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
	"github.com/bifrost-rack/bifrost/rpc/endpoint"
	rpc "github.com/bifrost-rack/bifrost/rpc/packet"
)

// beginning is a question for a durable main that waits until what the former run
// did is rolled back.
type beginning struct {
	port *port
	ask  control.Message
	node netip.Addr // that asks
}

// state tells a node what is logged for it.
func (c *controller) state(p *port, m control.Message) error {
	var q control.State
	if err := m.Decode(&q); err != nil {
		return err
	}
	n, err := c.nodeAt(p, "state", q.Node, q.Incarnation)
	if err != nil {
		return err
	}
	if q.Message == (control.ExecutionID{}) && q.Execution == (control.ExecutionID{}) {
		if err := checkName("state", q.Name); err != nil {
			return err
		}
	}
	switch {
	case q.Message != control.ExecutionID{}:
		return c.payload(p, m, &q, n)
	case q.Execution != control.ExecutionID{}:
		journal, ok := c.table.Journal(rpc.ID(q.Execution), n.logged())
		if !ok {
			return fault.New(fault.Stale, "state", "execution %s does not run at node %s", q.Execution, n.address)
		}
		c.answer(p, m, control.PartOf(journal, q.Offset, 0))
		return nil
	case !q.Main:
		if err := c.claim(n, claim{claimService, q.Name}); err != nil {
			return err
		}
		sections, next := c.table.State(serviceHash(rackaddr.Service(q.Name)))
		c.answer(p, m, control.PartOf(sections, q.Offset, next))
		return nil
	}
	if err := c.claim(n, claim{claimMain, q.Name}); err != nil {
		return err
	}
	id := endpoint.MainID(q.Name)
	if q.Offset > 0 { // it has begun
		c.answerMain(beginning{p, m, n.address}, id, q.Offset, false)
		return nil
	}
	o, err := c.table.Begin(id, q.Name, n.logged(), m.ID)
	if former, ok := c.beginnings[id]; ok && former.node != n.address && err == nil {
		c.fail(former.port, former.ask, fault.New(fault.BadRequest, "main "+q.Name, "node %s begins it", n.address))
	}
	c.beginnings[id] = beginning{p, m, n.address}
	if err != nil {
		delete(c.beginnings, id)
		return err
	}
	c.execute(o)
	return nil
}

// payload tells a node a part of the payload of a logged call that it serves, or of
// the logged answer to one that it has made.
func (c *controller) payload(p *port, ask control.Message, q *control.State, n *node) error {
	id, kind := rpc.ID(q.Message), log.KindCall
	v, known := c.table.View(id)
	its := v.Callee == n.logged()
	if q.Answer {
		kind, its = log.KindReply, v.Caller == n.address
	}
	b, ok := c.packetOf(kind, id)
	if !known || !its || !ok {
		return fault.New(fault.Stale, "state", "%s is not logged for node %s", q.Of(), n.address)
	}
	m, err := rpc.Parse(b)
	if err != nil {
		return err
	}
	c.answer(p, ask, control.PartOf(m.Payload, q.Offset, 0))
	return nil
}

// begun answers the question for a main that may go on.
func (c *controller) begun(a execution.Begun) {
	q, ok := c.beginnings[a.Main]
	if !ok || q.ask.ID != a.Run {
		return // it asks again
	}
	delete(c.beginnings, a.Main)
	c.answerMain(q, a.Main, 0, a.Over)
}

func (c *controller) answerMain(q beginning, id rpc.ID, offset uint64, over bool) {
	state, journal, index := c.table.Main(id)
	part := control.PartOf(append(state[:len(state):len(state)], journal...), offset, uint64(index))
	part.Done = over
	c.answer(q.port, q.ask, part)
}
