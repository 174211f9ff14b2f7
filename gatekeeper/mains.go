package gatekeeper

import (
	"net/netip"

	"github.com/bifrost-rack/bifrost/gatekeeper/mains"
	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/rpc/endpoint"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// Durable mains: what they do is in their nodes' ledgers. The Gatekeeper says who may run one, and hears when it is over.
//
//	"may I run it?" ─▶ mains.Table ─▶ no call has leases that the former run gave ─▶ logged ─▶ answer
//	"it is over"    ─▶ mains.Table ─▶ its regions are freed                        ─▶ logged ─▶ answer

// beginning is a question for a durable main that waits until no call has leases that the former run gave.
type beginning struct {
	port *port
	ask  control.Message
	node netip.Addr // that asks
}

// askedForMain lets a node run a durable main.
func (c *controller) askedForMain(p *port, m control.Message) error {
	var q control.BeginMain
	if err := m.Decode(&q); err != nil {
		return err
	}
	n, err := c.nodeAt(p, "main", q.Node, q.Incarnation)
	if err != nil {
		return err
	}
	if err := checkName("main", q.Name); err != nil {
		return err
	}
	if err := c.claim(n, claim{claimMain, q.Name}); err != nil {
		return err
	}
	if err := c.mayKeep(n, "main "+q.Name); err != nil {
		return err
	}
	ask := mains.Question{Main: endpoint.MainID(q.Name), Name: q.Name, At: n.logged(), Run: m.ID}
	if n.ledger != nil {
		ask.Birth = n.ledger.Birth
	}
	known := c.mains.Known(ask.Main)
	wait, err := c.mains.Begin(ask)
	if err != nil {
		return err
	}
	if !known {
		c.disownOrigins(ask.Main)
	}
	c.beginnings[ask.Main] = beginning{p, m, n.address}
	if !wait || !c.lends(ask.Main, n.address) {
		c.beginMain(ask.Main)
	}
	return nil
}

// beginMain lets a run of a durable main begin.
func (c *controller) beginMain(id rpcpacket.ID) {
	o := c.mains.Admit(id)
	c.keepAll(o.Put, o.Delete)
	q := c.beginnings[id]
	delete(c.beginnings, id)
	v, _ := c.mains.View(id)
	c.answer(q.port, q.ask, control.BegunMain{
		Over: v.Over, Index: v.Index, Key: c.secret.Main(id), Memory: control.ExecutionID(c.secret.ToMemory(id)), Run: v.Run,
	})
}

// lends reports whether calls that an execution has made at a node have leases. Those of other nodes only say that they are the
// execution's.
func (c *controller) lends(execution rpcpacket.ID, at netip.Addr) bool {
	for call, k := range c.calls {
		if k.header.Parent == execution && k.caller == at && (k.stage == stageWaiting || c.leases.Lends(call)) {
			return true
		}
	}
	for _, k := range c.loans {
		if k.header.Parent == execution && k.caller == at && !k.over() {
			return true
		}
	}
	return false
}

// lentOver goes on with a question for a main when the last call has ended to which its former run has lent regions.
func (c *controller) lentOver(id rpcpacket.ID) {
	if q, waits := c.beginnings[id]; waits && !c.lends(id, q.node) {
		c.beginMain(id)
	}
}

// mainsFailed forgets the questions of a node that has failed.
func (c *controller) mainsFailed(n *node) {
	c.mains.Fail(n.logged())
	for id := range c.beginnings {
		if _, asked := c.mains.Asked(id); !asked {
			delete(c.beginnings, id)
		}
	}
}

// mainEnded takes a node's word that a durable main is over. Who has told it is answered when that is logged.
func (c *controller) mainEnded(p *port, m control.Message, n *node, q *control.EndedMain) error {
	id := rpcpacket.ID(q.Execution)
	o, err := c.mains.Over(id, n.logged(), q.Index)
	if err != nil {
		return err
	}
	c.keepAll(o.Put, o.Delete)
	c.endHoldings(id, n.address, false)
	c.answer(p, m, nil)
	return nil
}

// mainOver reports whether an execution is a durable main that is over.
func (c *controller) mainOver(id rpcpacket.ID) bool {
	v, begun := c.mains.View(id)
	return begun && v.Over
}

// leaveMains says that a node leaves in order: nobody asks for its mains that are over.
func (c *controller) leaveMains(n *node) {
	o := c.mains.Leave(n.logged())
	c.keepAll(o.Put, o.Delete)
}

// disownMains forgets the durable mains of a node that is gone for good.
func (c *controller) disownMains(n *node) {
	ids, o := c.mains.Disown(n.address)
	c.keepAll(o.Put, o.Delete)
	for _, id := range ids {
		c.endHoldings(id, n.address, false)
	}
}
