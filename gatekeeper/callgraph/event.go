package callgraph

import (
	"slices"
	"time"

	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// Delivered says that a node has received a call (b1). If that is another one
// than where it was before, the call has moved there: the service runs it as its
// last one. It reports whether the call is under way and not finished.
func (g *Graph) Delivered(id rpcpacket.ID, callee Node, at time.Time) bool {
	i := g.index[id]
	if i == 0 || g.calls.at(i).finished() {
		return false
	}
	c := g.calls.at(i)
	if s := g.servers.key(c.server); g.nodes.key(s.node) != callee.key() {
		service, serial := g.serviceOf(c)
		g.leaveServer(i)
		g.enqueue(i, callee, service, serial)
		if c.attempts++; c.attempts == 0 {
			c.attempts-- // it stays at the most that it can count
		}
	}
	c.times[B1] = nanos(at)
	return true
}

// Finished says that the callee has finished a call (b2); a serial service goes
// on to its next. A one-way call, and one whose caller is gone, is removed. It
// reports whether the call was under way and not finished.
func (g *Graph) Finished(id rpcpacket.ID, at time.Time) bool {
	i := g.index[id]
	if i == 0 || g.calls.at(i).finished() {
		return false
	}
	c := g.calls.at(i)
	g.unlink(byServer, &g.servers.value(c.server).calls, i)
	c.times[B2] = nanos(at)
	if c.is(oneway | orphan) {
		g.remove(i)
	}
	return true
}

// Returned says that the caller has received the reply (a2). The call is
// removed, and given back as it was at its end. Known is false if it is not
// under way (any more).
func (g *Graph) Returned(id rpcpacket.ID, at time.Time) (v View, known bool) {
	i := g.index[id]
	if i == 0 {
		return View{}, false
	}
	v = g.view(i)
	v.Stage, v.Times[A2] = A2, at.UTC()
	g.remove(i)
	return v, true
}

// Remove takes out a call that will not return: it was refused, or cut off.
func (g *Graph) Remove(id rpcpacket.ID) (v View, known bool) {
	i := g.index[id]
	if i == 0 {
		return View{}, false
	}
	v = g.view(i)
	g.remove(i)
	return v, true
}

// NodeGone says that a node is gone for good. The unfinished calls that it had
// received are removed and returned, oldest first, so that their callers can be
// told. The calls that it had sent run on as orphans; those that are finished
// are removed.
func (g *Graph) NodeGone(n Node) (cut []View) {
	k := g.nodes.find(n.key())
	if k == 0 {
		return nil
	}
	for _, i := range g.served(k) {
		cut = append(cut, g.view(i))
	}
	for _, v := range cut {
		g.Remove(v.ID)
	}
	if g.nodes.find(n.key()) == 0 {
		return cut
	}
	g.each(byCaller, g.nodes.value(k).sent, func(i int32) {
		c := g.calls.at(i)
		c.flags |= orphan
		if c.finished() {
			g.remove(i)
		}
	})
	return cut
}

// NodeMoved says that a node goes on as another incarnation (or address): it
// still serves and still waits for the same calls.
func (g *Graph) NodeMoved(from, to Node) {
	k := g.nodes.find(from.key())
	switch {
	case k == 0 || from == to:
	case g.nodes.find(to.key()) == 0:
		g.nodes.rename(k, to.key())
	default:
		g.merge(k, to)
	}
}

// merge moves the calls of node k to one that has calls already. The order of
// each service's calls becomes that of Sent.
func (g *Graph) merge(k int32, to Node) {
	from, t := g.nodes.key(k), g.nodes.find(to.key())
	g.nodes.use(from) // neither may go while its calls are taken apart
	g.nodes.use(to.key())
	g.each(byAge, g.age, func(i int32) {
		c := g.calls.at(i)
		if callee := g.calleeOf(c); callee == k || callee == t {
			service, serial := g.serviceOf(c)
			g.leaveServer(i)
			g.enqueue(i, to, service, serial)
		}
		if c.caller == k {
			g.unlink(byCaller, &g.nodes.value(k).sent, i)
			c.caller = g.nodes.use(to.key())
			g.push(byCaller, &g.nodes.value(t).sent, i)
			g.nodes.release(k)
		}
	})
	g.nodes.release(k)
	g.nodes.release(t)
}

// Expire removes the loose calls that were last sent before a time, and returns
// their ids, that of the longest silence first: a caller that waits sends its call
// again and again, so the digest that told of the end was probably lost.
func (g *Graph) Expire(before time.Time) (expired []rpcpacket.ID) {
	for i := g.heard.first; i != 0 && g.calls.at(i).heard < before.UnixNano(); i = g.heard.first {
		expired = append(expired, g.calls.at(i).id)
		g.remove(i)
	}
	return expired
}

// remove takes a call out of everything.
func (g *Graph) remove(i int32) {
	c := g.calls.at(i)
	delete(g.index, c.id)
	g.unlink(byAge, &g.age, i)
	if c.is(loose) {
		g.unlink(byHeard, &g.heard, i)
	}
	g.unlink(byCaller, &g.nodes.value(c.caller).sent, i)
	if siblings, ok := g.parents[c.parent]; ok && !c.parent.IsZero() {
		g.unlink(byParent, &siblings, i)
		if siblings.first == 0 {
			delete(g.parents, c.parent)
		} else {
			g.parents[c.parent] = siblings
		}
	}
	g.uncarry(c)
	g.leaveServer(i)
	g.methods.release(c.method)
	g.nodes.release(c.caller)
	g.calls.remove(i)
}

func (g *Graph) serviceOf(c *call) (name string, serial bool) {
	return g.services.key(g.servers.key(c.server).service), g.servers.value(c.server).serial
}

// leaveServer ends what a call has to do with its service.
func (g *Graph) leaveServer(i int32) {
	c := g.calls.at(i)
	k, s := c.server, g.servers.key(c.server)
	if !c.finished() {
		g.unlink(byServer, &g.servers.value(k).calls, i)
	}
	if g.servers.release(k) {
		n := g.nodes.value(s.node)
		n.servers = slices.DeleteFunc(n.servers, func(o int32) bool { return o == k })
	}
	g.services.release(s.service)
	g.nodes.release(s.node)
}
