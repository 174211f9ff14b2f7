package gatekeeper

import (
	"slices"
	"time"

	"github.com/bifrost-rack/bifrost/gatekeeper/callgraph"
	"github.com/bifrost-rack/bifrost/gatekeeper/resources"
	"github.com/bifrost-rack/bifrost/internal/fault"
	rpc "github.com/bifrost-rack/bifrost/rpc/packet"
)

// A program that is to be stopped, because its blade drains or its deployment is made
// smaller or taken back, finishes its calls first. Its routes go to the others that
// serve the same; what only its own next incarnation can serve waits for that. The
// Registry decides who empties, and for how long it may.
//
//	EmptyNode ─▶ no routes, Table.Empty if it moves ─▶ empty? every drainInterval ─▶ Emptied ─▶ StopNode
//
// A node that is about to leave by itself is emptied likewise, and told when it is; what
// it has begun of other calls than exactly-once ones it knows itself.
//
// If it ends before, or its patience does, it is recovered like any node: its next
// incarnation finishes what it has not. A node that has nothing to finish then, and
// does not move, is not brought back.

// drainInterval is how often the Gatekeeper looks whether a node has finished its
// calls: longer than the digest of one takes that was on its way when the routes went.
const drainInterval = 20 * time.Millisecond

// quietLooks is how many times in a row that must have been so.
const quietLooks = 2

// emptying is a node that finishes its calls.
type emptying struct {
	node     *node
	wanted   bool   // by the Registry, which stops it then
	answer   func() // to the node itself, which is about to leave; nil if that has not asked
	unrouted bool   // the switch sends it no calls any more
	quiet    int    // looks in a row that have found no call
	next     time.Time
}

// moving says that a service's node is on its way to another blade: a call of policy
// none waits for it by being sent again.
var moving = fault.New(fault.Unavailable, "call", "the service is moving to another blade")

// emptyNode lets a node finish its calls, without new ones.
func (c *controller) emptyNode(a resources.EmptyNode) {
	n := c.nodes[a.Node.Address]
	if n == nil || n.incarnation != a.Node.Incarnation {
		return
	}
	c.empty(n, a.Moves).wanted = true
}

// withdrawNode lets a node finish its calls that is about to leave, and then tells it.
func (c *controller) withdrawNode(n *node, answer func()) {
	c.empty(n, c.fleet.Wants(n.address)).answer = answer
}

// empty takes a node's routes away, if it has not been done, and looks from then on
// whether it has finished its calls.
func (c *controller) empty(n *node, moves bool) *emptying {
	if i := slices.IndexFunc(c.emptying, func(e *emptying) bool { return e.node == n }); i >= 0 {
		return c.emptying[i]
	}
	n.empties, n.moves = true, moves
	if moves && !c.resuming.cores { // resumeCores does it when it has delivered what runs there
		c.table.Empty(n.logged())
	}
	e := &emptying{node: n, next: c.now}
	c.emptying, c.timers = append(c.emptying, e), true
	var phases []phase
	for _, s := range sortedServices(n.exports) {
		n.exports[s].moves = moves
		phases = append(phases, c.reroute(c.services[s])...)
	}
	c.keepExports(n)
	c.change(func(error) { e.unrouted = true }, phases...)
	c.log.Info("node empties", "node", n.address, "name", n.name, "blade", n.blade.hello.Blade, "moves", moves)
	return e
}

// emptied tells the Registry which nodes have finished their calls.
func (c *controller) emptied() {
	var done []*emptying
	c.emptying = slices.DeleteFunc(c.emptying, func(e *emptying) bool {
		switch {
		case e.node.gone:
			return true
		case c.now.Before(e.next) || !c.connected:
			return false
		case !e.unrouted || c.resuming.due() || c.table.Busy(e.node.address) || e.wanted && c.serves(e.node):
			e.quiet = 0
		default:
			e.quiet++
		}
		e.next = c.now.Add(drainInterval)
		if e.quiet < quietLooks {
			return false
		}
		done = append(done, e)
		return true
	})
	for _, e := range done {
		if e.answer != nil {
			e.answer()
		}
		if e.wanted {
			c.act(c.fleet.Emptied(e.node.address, e.node.incarnation, c.now))
		}
	}
}

// serves reports whether a node has calls to finish that are not exactly-once, as far
// as is known.
func (c *controller) serves(n *node) bool {
	return slices.ContainsFunc(c.graph.Serves(n.identity()), func(v callgraph.View) bool {
		_, exact := c.table.View(v.ID)
		return !exact
	})
}

// goesOn reports whether a node that ends is to have a next incarnation.
func (c *controller) goesOn(n *node) bool {
	// Of direct calls the node alone knows: if it has not said goodbye, its next incarnation
	// finishes them.
	if n.empties && !n.moves && !c.table.Busy(n.address) && (n.orderly || c.cfg.Ledgers != LedgersTruth) {
		return false
	}
	return c.fleet.GoesOn(n.address)
}

// has reports whether a node of the service has a method.
func (s *service) has(method rpc.Method) bool {
	return slices.ContainsFunc(s.exports, func(x *exported) bool { _, ok := x.methods[method]; return ok })
}

// waits finds a node that serves a method, but not now: it has failed and is to come
// back, or it moves.
func (s *service) waits(method rpc.Method, id rpc.ID) *exported {
	var all []*exported
	for _, x := range s.exports {
		if _, ok := x.methods[method]; ok && (x.away || x.moves) {
			all = append(all, x)
		}
	}
	if len(all) == 0 {
		return nil
	}
	return all[int(id[len(id)-1])%len(all)]
}
