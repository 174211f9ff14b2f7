package gatekeeper

import (
	"encoding/json"
	"maps"
	"net/netip"
	"slices"

	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/fault"
)

// grantLedger chooses where a node keeps its ledger, once, and has the machine keep it. A
// node whose ledger is lost gets a new one, as soon as there is a machine for it. If the states
// of its services were in the ledger, its programs fail to join, rather than begin anew, and
// calls to it fail. If states or checkpoints are in the ledger, and the machine is not in service, the
// node waits for the machine: nothing is lost yet.
func (c *controller) grantLedger(n *node) {
	if n.ledger != nil && c.birthOf(n.ledger.Machine) != n.ledger.Birth {
		if c.birthOf(n.ledger.Machine) == 0 && c.keeps(n) {
			c.logger.Warn("the memory machine that has a node's ledger is not in service: the node cannot return yet", "node", n.address, "machine", n.ledger.Machine,
				"remedy", "have the machine return; if it is gone for good, "+n.anew())
			return
		}
		if n.serial() {
			c.loseStates(n)
			return
		}
		place := c.chooseLedger(n)
		if place == nil {
			c.logger.Warn("no machine is in service that can keep a node's ledger: the node cannot return yet", "node", n.address)
			return // without a ledger it would not take the direct calls that wait for it
		}
		c.logger.Warn("a node's ledger is lost", "node", n.address, "machine", n.ledger.Machine)
		n.ledger = place
	}
	if n.ledger == nil {
		n.ledger = c.chooseLedger(n)
	}
	if n.ledger == nil {
		return // no machine is in service: the node has no ledger
	}
	for _, b := range c.copiesOf(n.ledger.Machine) {
		c.grantAt(b, n)
	}
	for _, b := range c.servers {
		c.forsakeAt(b, n)
	}
}

// placeLedger tells a node where it keeps its ledger. A node that has joined before a memory machine was in service gets one
// as soon as one is.
func (c *controller) placeLedger(p *port, m control.Message) error {
	var q control.LedgerQuery
	if err := m.Decode(&q); err != nil {
		return err
	}
	n, err := p.nodeAt("ledger", q.Node, q.Incarnation)
	if err != nil {
		return err
	}
	if n.ledger == nil {
		if c.grantLedger(n); n.ledger != nil {
			c.keepNode(n)
		}
	}
	p.answer(m, control.LedgerReply{Ledger: n.ledger})
	return nil
}

// forsakeAt has a memory blade take back what incarnations of a node did whose ledger is lost. It may be repeated.
func (c *controller) forsakeAt(b *blade, n *node) {
	if n.ledger != nil && n.ledger.Since > n.first {
		c.command(b, control.KindFence, control.Fence{Node: n.address, Incarnation: n.ledger.Since - 1, Forsaken: true}, nil)
	}
}

// loseStates says that the ledger is lost which has the states of a node's services. No incarnation
// can ever run again what waits for the node, nor what is still to come: it fails, until somebody
// deploys the services anew. Memory machines take back what earlier incarnations did.
func (c *controller) loseStates(n *node) {
	c.logger.Error("a node's ledger is lost, and with it the states of its services: the node cannot return, and calls to it fail", "node", n.address, "machine", n.ledger.Machine, "remedy", n.anew())
	n.lost, n.ledger.Since = true, n.incarnation
	for _, b := range c.servers {
		c.forsakeAt(b, n)
	}
}

// keeps reports whether the states of a node's services or the checkpoints of its durable mains are in its
// ledger, or one-ways that a node of a program started by hand owes. The last checkpoint of a main that is over may owe one-ways, until the node has left.
func (p *population) keeps(n *node) bool {
	mains, _ := p.mains.At(n.address)
	return n.ledger != nil && !n.going && (n.owes || n.serial() || mains > 0)
}

// keptAt counts the nodes whose states or checkpoints a memory blade has, and no other blade. Who drains the
// blade is not to lose them.
func (p *population) keptAt(b *blade) (kept int) {
	if copies := p.copiesOf(b.hello.Machine); len(copies) != 1 || copies[0] != b {
		return 0
	}
	for n := range p.everyone {
		if p.keeps(n) && n.ledger.Machine == b.hello.Machine && n.ledger.Birth == p.birthOf(b.hello.Machine) {
			kept++
		}
	}
	return kept
}

// serial reports whether a service of the node has a state.
func (n *node) serial() bool {
	for _, x := range n.exports {
		if x.stateful {
			return true
		}
	}
	return false
}

// grantAt has a blade keep a node's ledger. It may be repeated.
func (c *controller) grantAt(b *blade, n *node) {
	name := control.LedgerOf(n.address)
	q := control.LedgerGrant{Birth: n.ledger.Birth, Name: name, Node: n.address, Incarnation: n.incarnation, Owner: n.charged()}
	birth, node := n.ledger.Birth, n.address
	c.command(b, control.KindLedgerGrant, q, func(reply control.Message) {
		c.ledgerAnswered(b, "grant", name, reply)
		if !c.keepsLedger(node, birth) {
			c.deleteAt(b, birth, node) // the grant has come after the node's end
		}
	})
}

// keepsLedger reports whether a node has its ledger in the memory of a birth number. If not,
// the node is gone for good, or it has got a ledger elsewhere while that memory was out of
// service.
func (p *population) keepsLedger(node netip.Addr, birth uint64) bool {
	n := p.nodeOrFallen(node)
	return n != nil && n.ledger != nil && n.ledger.Birth == birth
}

// reconcileLedgers repeats to a memory blade that has come into service, or after a restart
// of ours, what may not have reached it: it keeps the ledgers that nodes have there, and no
// others, and nothing of which only lost ledgers knew.
func (c *controller) reconcileLedgers(b *blade) {
	c.listLedgers(b, control.Ledgers{})
	nodes := slices.SortedFunc(maps.Values(c.nodes), func(a, b *node) int { return a.address.Compare(b.address) })
	for _, n := range nodes {
		c.forsakeAt(b, n)
		if n.ledger != nil && n.ledger.Machine == b.hello.Machine && n.ledger.Birth == c.birthOf(b.hello.Machine) {
			c.grantAt(b, n)
		}
	}
}

// chooseLedger spreads ledgers over the machines in service: over those of two blades, if
// there are any, so that either may die, else over those that do not drain, if there are any. A machine
// that is about to delete a former ledger of the node is none of them, for the command could delete the
// new one.
func (e *estate) chooseLedger(n *node) *control.LedgerPlace {
	var in, stay, paired []uint8
	for i, b := range e.machines {
		if machine := uint8(i); b != nil && b.alive() && e.birthOf(machine) != 0 && !e.deletes(machine, n.address) { //nolint:gosec // there are 256
			if in = append(in, machine); b.mirror != nil {
				paired = append(paired, machine)
			}
			if status, _ := e.bladeStatus(b); status != StatusDraining {
				stay = append(stay, machine)
			}
		}
	}
	if len(paired) > 0 {
		in = paired
	} else if len(stay) > 0 {
		in = stay
	}
	if len(in) == 0 {
		return nil
	}
	a := n.address.As16()
	machine := in[int(a[15])%len(in)]
	return &control.LedgerPlace{Machine: machine, Birth: e.birthOf(machine), Since: n.incarnation, ByHand: n.byHand()}
}

// deletes reports whether a blade of a machine has not yet answered that it has deleted a
// node's ledger.
func (e *estate) deletes(machine uint8, node netip.Addr) bool {
	name := control.LedgerOf(node)
	return slices.ContainsFunc(e.copiesOf(machine), func(b *blade) bool {
		return slices.ContainsFunc(b.commands, func(m *command) bool {
			d, ok := m.body.(control.LedgerDelete)
			return ok && d.Name == name
		})
	})
}

// listLedgers has a blade drop the ledgers that no node has there.
func (c *controller) listLedgers(b *blade, from control.Ledgers) {
	c.command(b, control.KindLedgers, from, func(reply control.Message) {
		var l control.LedgerList
		if err := json.Unmarshal(reply.Body, &l); err != nil {
			return // it has no ledgers: it does not serve yet
		}
		for _, kept := range l.Ledgers {
			node := netip.AddrFrom16(kept.Name)
			then := func(control.Message) {}
			if !c.keepsLedger(node, l.Birth) {
				then = func(control.Message) {
					if !c.keepsLedger(node, l.Birth) {
						c.deleteAt(b, l.Birth, node)
					}
				}
			}
			if dead := c.deadUpTo(node, kept.Run); !kept.Sealed && kept.Run > 0 && kept.Run <= dead {
				// It was not in service when that one was fenced, and has the ledger on disk.
				c.command(b, control.KindFence, control.Fence{Node: node, Incarnation: dead}, then)
			} else {
				then(control.Message{})
			}
		}
		if l.Next != (control.LedgerName{}) {
			c.listLedgers(b, control.Ledgers{From: l.Next})
		}
	})
}

// deleteLedger drops the ledger of a node that is gone for good.
func (c *controller) deleteLedger(n *node) {
	if n.ledger == nil {
		return
	}
	for _, b := range c.copiesOf(n.ledger.Machine) {
		c.deleteAt(b, n.ledger.Birth, n.address)
	}
	n.ledger = nil
}

func (c *controller) deleteAt(b *blade, birth uint64, node netip.Addr) {
	name := control.LedgerOf(node)
	c.command(b, control.KindLedgerDelete, control.LedgerDelete{Birth: birth, Name: name}, func(reply control.Message) {
		c.ledgerAnswered(b, "delete", name, reply)
	})
}

// ledgerAnswered reads the answer to a command about a ledger.
func (c *controller) ledgerAnswered(b *blade, what string, name control.LedgerName, reply control.Message) {
	var a control.LedgerAnswer
	if err := json.Unmarshal(reply.Body, &a); err == nil && a.Code != fault.OK {
		c.count.Failures++
		c.logger.Error("a memory blade refuses a command about a ledger", "blade", b.hello.Blade, "command", what, "ledger", name, "code", a.Code, "why", a.Message)
	}
}
