package gatekeeper

import (
	"context"
	"net/netip"
	"slices"
	"time"

	"github.com/bifrost-rack/bifrost/gatekeeper/mains"
	"github.com/bifrost-rack/bifrost/gatekeeper/recovery"
	"github.com/bifrost-rack/bifrost/gatekeeper/resources"
	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/rpc/endpoint"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// Durable mains: what they do is in their nodes' ledgers. The Gatekeeper says who may run one, and hears when it is over.
//
//	"may I run it?", "it is over" ─▶ mains.Table ─▶ logged ─▶ answer

// askedForMain lets a node run a durable main.
func (c *controller) askedForMain(p *port, m control.Message) error {
	var q control.BeginMain
	if err := m.Decode(&q); err != nil {
		return err
	}
	n, err := p.nodeAt("main", q.Node, q.Incarnation)
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
	if _, err := c.mains.Begin(ask); err != nil {
		return err
	}
	c.fleet.Began(n.address)
	o := c.mains.Admit(ask.Main)
	c.keepAll(o.Put, o.Delete)
	v, _ := c.mains.View(ask.Main)
	p.answer(m, control.BegunMain{
		Over: v.Over, Index: v.Index, Key: c.secret.Main(ask.Main), Memory: control.ExecutionID(c.secret.ToMemory(ask.Main)), Run: v.Run,
	})
	return nil
}

// mainEnded takes a node's word that a durable main is over. Who has told it is answered when that is logged.
func (c *controller) mainEnded(p *port, m control.Message, n *node, q *control.EndedMain) error {
	id := rpcpacket.ID(q.Execution)
	o, err := c.mains.Over(id, n.logged(), q.Index)
	if err != nil {
		return err
	}
	c.keepAll(o.Put, o.Delete)
	p.answer(m, nil)
	return nil
}

// disownMains forgets the durable mains of a node that is gone for good.
func (c *controller) disownMains(n *node) {
	o := c.mains.Disown(n.address)
	c.keepAll(o.Put, o.Delete)
}

// Programs that somebody starts by hand end when they like, and nobody starts them again. The node of such a program
// goes with the program, unless the node's ledger keeps the state of a service, the checkpoints of a durable main, or one-ways that the
// node owes (owes).
// Then the node is awaited: it is fenced, and its ledger, regions, address and names stay.
//
//	program dies or leaves ─▶ fall ─▶ fenced, awaited ─▶ a program of that name joins on that blade ─▶ next incarnation
//	                                       └─▶ ForgetNode ─▶ gone for good
//
// While a node is awaited, calls that are under way to it wait. New calls wait too if the program has failed; if it has
// left by itself, they fail as unavailable.

// byHand reports whether somebody has started the node's program by hand: it belongs to no deployment.
func (n *node) byHand() bool { return n.instance == "" }

// hasLeft reports whether the node's program, which was started by hand, has left by itself: its services are withdrawn.
func (n *node) hasLeft() bool { return n.byHand() && n.orderly }

// comesBack reports whether a node that has fallen is to have a next incarnation.
func (p *population) comesBack(n *node) bool {
	if n.byHand() {
		_, awaited := p.recoveries.Awaits(n.address)
		return awaited
	}
	return p.fleet.Keeps(n.address)
}

// awaitedBy returns the node that a program which joins is the next incarnation of, the oldest of several; nil for
// none. It is not ready while the former incarnation can still do something.
func (p *population) awaitedBy(b *blade, j *control.Join) (n *node, ready bool) {
	if j.Instance != "" {
		return nil, true
	}
	for _, n := range p.sortedFallen() {
		if n.byHand() && n.name == j.Name && n.blade.hello.Blade == b.hello.Blade && p.comesBack(n) {
			v, _ := p.recoveries.Recovery(n.address)
			return n, v.Phase != recovery.Fencing
		}
	}
	return nil, true
}

// joining is a join that waits until a node's former incarnation is cut off. A blade has at most control.Window requests
// under way.
type joining struct {
	node netip.Addr
	port *port
	ask  control.Message
}

// admitJoins goes on with joins that have waited for a node.
func (c *controller) admitJoins(node netip.Addr) {
	var ready []joining
	c.joins = slices.DeleteFunc(c.joins, func(a joining) bool {
		if a.node == node {
			ready = append(ready, a)
		}
		return a.node == node
	})
	for _, a := range ready {
		if err := c.join(a.port, a.ask); err != nil {
			a.port.fail(a.ask, err)
		}
	}
}

// mayKeep refuses a node more to keep something of a program that was started by hand, if its blade has as many such
// nodes as it may.
func (p *population) mayKeep(n *node, op string) error {
	if !n.byHand() || n.ledger == nil || p.keeps(n) {
		return nil
	}
	kept := 0
	for o := range p.everyone {
		if o.byHand() && o.blade.hello.Blade == n.blade.hello.Blade && p.keeps(o) {
			kept++
		}
	}
	if kept < control.MaxKeptByHand {
		return nil
	}
	return fault.New(fault.NoSpace, op, "blade %s has %d nodes with states, durable mains or one-ways to deliver of programs that were started by hand, its maximum: "+
		"have the Gatekeeper forget one that is awaited (bifrost nodes, bifrost forget NODE), or deploy the program", n.blade.hello.Blade, kept)
}

// owes keeps the node of a program that was started by hand until it has left in order, since its ledger is about to have one-ways.
func (c *controller) owes(n *node) error {
	if !n.byHand() || n.owes {
		return nil
	}
	if err := c.mayKeep(n, "one-way"); err != nil {
		return err
	}
	n.owes = true
	c.keepNode(n)
	return nil
}

// yieldMain gives up the node that is awaited for a main which a deployment is about to run. It stays if it keeps anything
// else: then the deployment's main waits for an operator.
func (c *controller) yieldMain(k claim, by owner) {
	if k.Kind != claimMain || by.App == "" {
		return
	}
	for _, n := range c.sortedFallen() {
		if mains, _ := c.mains.At(n.address); n.byHand() && c.comesBack(n) && !n.serial() && !n.owes && mains == 1 && c.mains.Runs(endpoint.MainID(k.Name), n.address) {
			n.why = "a deployment runs its main " + k.Name
			c.unwanted(n, n.why)
		}
	}
}

// awaitedSince is since when the program of a node that has fallen is awaited; the zero time if it is not.
func (p *population) awaitedSince(n *node) time.Time {
	if !n.byHand() || !p.comesBack(n) {
		return time.Time{}
	}
	v, _ := p.recoveries.Recovery(n.address)
	return v.Since
}

// recovering are the recoveries that are under way, without those of nodes for which nothing is left to be done until
// somebody starts their programs.
func (p *population) recovering() (all []recovery.View) {
	for _, v := range p.recoveries.Recoveries() {
		n := p.fallen[v.Node.Address]
		if n == nil || !n.byHand() || !v.Waits.Spare {
			all = append(all, v)
		}
	}
	return all
}

// ForgetNode gives up a node that is awaited: its state, its durable mains, its regions and its ledger go, and calls to
// it fail. So it does with the heir of a node whose deployment is taken back. NotFound means that there is no such node;
// any other node is refused.
func (g *Gatekeeper) ForgetNode(ctx context.Context, node netip.Addr) error {
	return g.operate(ctx, Event{}, func(c *controller) ([]resources.Action, error) { // NodeLeft
		op := "forget " + node.String()
		n := c.nodeOrFallen(node)
		switch {
		case n == nil:
			return nil, fault.New(fault.NotFound, op, "there is no node %s", node)
		case !n.byHand():
			if actions, ok := c.fleet.Forget(node, c.now); ok {
				c.logger.Info("operator", "action", "forget", "node", node, "name", n.name, "blade", n.blade.hello.Blade)
				return actions, nil
			}
			return nil, fault.New(fault.BadRequest, op, "node %s belongs to deployment %s: undeploy that", node, n.owner().App)
		case !n.gone:
			return nil, fault.New(fault.BadRequest, op, "the program of node %s runs: end it first", node)
		case !c.comesBack(n):
			return nil, fault.New(fault.NotFound, op, "node %s is going already", node)
		}
		c.logger.Info("operator", "action", "forget", "node", node, "name", n.name, "blade", n.blade.hello.Blade)
		n.why = "an operator has forgotten it"
		c.unwanted(n, n.why)
		return nil, nil
	})
}

// unwanted ends the recovery of a node that nobody wants back.
func (c *controller) unwanted(n *node, why string) {
	c.recover(c.recoveries.Fail(c.now, recovery.Failure{Node: n.logged(), Gone: true, Cause: why}))
}

// anew says how somebody begins anew with a node whose ledger is lost.
func (n *node) anew() string {
	if n.byHand() {
		return "end its program, forget the node (bifrost forget " + n.address.String() + "), and start the program again"
	}
	return "undeploy its program, and deploy it anew"
}
