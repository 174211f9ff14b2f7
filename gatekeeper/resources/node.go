package resources

import (
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/bifrost-rack/bifrost/internal/fault"
)

// Join makes a program on a blade a node. A program that StartNode has started
// joins under its instance's name and may get its former address back; any other
// program gets the address that is passed. All get the incarnation that is passed.
//
// A blade that is full, spares counted, refuses with code Overloaded; one that
// is draining or gone with Unavailable; an instance that is not expected on this
// blade (any more) is Stale.
func (r *Registry) Join(blade, name string, next Node, now time.Time) (Node, []Action, error) {
	op := "join of " + name
	b, err := r.known(op, blade)
	if err != nil {
		return Node{}, nil, err
	}
	if b.Kind != Compute || name == "" || len(name) > 4*MaxName {
		return Node{}, nil, fault.New(fault.BadRequest, op, "a %s blade, a name of %d bytes", b.Kind, len(name))
	}
	if !b.up() {
		return Node{}, nil, fault.New(fault.Unavailable, op, "blade %s has failed: %s", blade, b.Cause)
	}
	n := &Node{Name: name, Blade: blade, Address: next.Address, Incarnation: next.Incarnation}
	if strings.Contains(name, "/") {
		err = r.joinInstance(op, n, now)
	} else {
		err = r.joinFree(op, b)
	}
	if err != nil {
		return Node{}, nil, err
	}
	r.nodes[n.Address] = n
	r.version++
	if _, i := r.instance(n.Instance); i != nil && i.empties() {
		r.emptyNode(i)
	}
	r.converge(now)
	return *n, r.flush(), nil
}

// joinInstance ties a node to the instance that was started for it. Its place is
// taken already.
func (r *Registry) joinInstance(op string, n *Node, now time.Time) error {
	p, i := r.instance(n.Name)
	if i == nil || i.Status != Starting || i.Blade != n.Blade {
		return fault.New(fault.Stale, op, "blade %s is not to run it", n.Blade)
	}
	if i.Keep.Address.IsValid() {
		n.Address = i.Keep.Address
	}
	n.Instance = i.Name
	i.Node, i.Keep, i.Avoid = n.Address, Keep{}, ""
	i.Worked = i.Heir || len(p.work(i).Services) == 0
	i.Owes = i.Owes || i.Worked
	i.set(Running, now)
	return nil
}

// Began says that a node may have begun something from now on that its next incarnation has to finish: it exports a service, or
// runs a durable main. A node that has not is started anew with another program at once, if there is one.
func (r *Registry) Began(node netip.Addr) {
	if _, i := r.instanceAt(node); i != nil && !i.Worked {
		i.Worked, i.Owes = true, true
		r.version++
	}
}

// joinFree takes a program in that nobody deployed.
func (r *Registry) joinFree(op string, b *Blade) error {
	if b.Mark == Draining {
		return fault.New(fault.Unavailable, op, "blade %s is draining: %s", b.Name, b.Cause)
	}
	if used := r.survey(nil).rooms[b.Name].used; used >= b.Capacity {
		return fault.New(fault.Overloaded, op, "blade %s runs or keeps room for %d nodes, its capacity", b.Name, used)
	}
	return nil
}

// Leave says that a node has ended, by itself or by a crash. Nothing happens if
// that incarnation is gone or going already.
func (r *Registry) Leave(node netip.Addr, incarnation uint32, crashed bool, cause string, now time.Time) []Action {
	n := r.nodes[node]
	if n == nil || n.Incarnation != incarnation || n.Ending {
		return nil
	}
	if p, i := r.instance(n.Instance); i != nil {
		switch {
		case crashed || !p.spec.Job && !i.Stopped:
			r.failed(i, cause, now)
		case p.spec.Job && !i.Stopped:
			i.Done = true
		}
		if i.Heir && !crashed {
			i.Owes = false
		}
	}
	r.endNode(n, cause, crashed, now)
	r.converge(now)
	return r.flush()
}

// Finish says that the program of a node has done what it is for: a job is done when it
// leaves, also if it has been told to stop meanwhile.
func (r *Registry) Finish(node netip.Addr) {
	if n := r.nodes[node]; n != nil && !n.Ending {
		if p, i := r.instance(n.Instance); i != nil && p.spec.Job {
			i.Done = true
			r.version++
		}
	}
}

// endNode cuts a node off. Its instance waits for Ended.
func (r *Registry) endNode(n *Node, cause string, crashed bool, now time.Time) {
	if n.Ending {
		return
	}
	n.Ending, n.Cause, n.Crashed = true, cause, crashed
	if _, i := r.instance(n.Instance); i != nil {
		if i.Owes, i.Paused = i.Owes || crashed && !i.Paused && i.Worked, false; i.Owes {
			i.Tries++
		}
		if crashed && i.Owes && i.Retired && !i.empties() { // it was stopped, and has not finished in time
			i.Draining = now
		}
		i.set(Ending, now)
	}
	r.emit(EndNode{*n})
}

// Ended answers EndNode: the node is fenced and its rules are gone. With keep,
// an instance's next node takes over the address with the next incarnation;
// otherwise it joins anew.
func (r *Registry) Ended(node netip.Addr, incarnation uint32, keep bool, now time.Time) []Action {
	n := r.nodes[node]
	if n == nil || n.Incarnation != incarnation || !n.Ending {
		return nil
	}
	r.version++
	delete(r.nodes, node)
	p, i := r.instance(n.Instance)
	if i != nil && keep && (i.goesOn() || p.owes(i)) {
		i.Keep = Keep{Address: n.Address, After: n.Incarnation}
	}
	if i != nil {
		r.next(p, i, now)
	}
	r.converge(now)
	if b := r.blades[n.Blade]; b != nil {
		r.checkVacated(b)
	}
	return r.flush()
}

// next is what becomes of an instance whose node is gone.
func (r *Registry) next(p *running, i *Instance, now time.Time) {
	i.Node = netip.Addr{}
	if !p.owes(i) {
		i.Draining = time.Time{} // it was to move, and does; or it is over
	}
	switch {
	case i.Done && !i.Retired:
		i.set(Finished, now)
	case !i.goesOn() && !i.Keep.Address.IsValid():
		r.drop(p, i)
	default:
		i.Stopped = false
		i.set(Waiting, now)
	}
}

// MayExport refuses a service that a node may not export: with code Stale if the node is
// gone or going, and with BadRequest if the node's blade has another node of the service, or is
// to have one. Once the node exports it, Exported is to be called.
func (r *Registry) MayExport(node netip.Addr, incarnation uint32, service string) error {
	op := "export of " + service
	n := r.nodes[node]
	if n == nil || n.Incarnation != incarnation || n.Ending {
		return fault.New(fault.Stale, op, "node %s, incarnation %d, is not there", node, incarnation)
	}
	if r.survey(n).rooms[n.Blade].serves(service) {
		return fault.New(fault.BadRequest, op, "blade %s has another node of it", n.Blade)
	}
	return nil
}

// Exported says that what nodes export has changed: a node may be ready now.
func (r *Registry) Exported(now time.Time) []Action {
	r.converge(now)
	return r.flush()
}

// nodesOn returns a blade's nodes, ordered by address.
func (r *Registry) nodesOn(blade string) []*Node {
	var all []*Node
	for _, n := range r.nodes {
		if n.Blade == blade {
			all = append(all, n)
		}
	}
	slices.SortFunc(all, func(a, b *Node) int { return a.Address.Compare(b.Address) })
	return all
}
