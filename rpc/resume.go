package rpc

import (
	"cmp"
	"context"
	"maps"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
	"github.com/bifrost-rack/bifrost/rpc/direct"
	"github.com/bifrost-rack/bifrost/rpc/internal/bridge"
	"github.com/bifrost-rack/bifrost/rpc/record"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// This file is about what an incarnation of a node does because of what the ledger has of earlier
// ones.
//
// The two nodes of an unfinished call of policy fate-share or tainted may share a fate (rpc/direct/fate.go): when one of them
// has failed, the other one is taken back. The latter tells the Gatekeeper so, which fences it and starts its program anew.
//
//	callee, next incarnation ── ACK, unbegun, call ──▶ caller ─▶ taken back ─▶ next incarnation ── CALL ──▶ callee runs it
//	                         ◀── the same, done ──────    or it is not, and the callee runs it
//	caller, next incarnation ── CALL ──▶ callee ── who is the caller? ──▶ Gatekeeper
//	                                     callee ── caller dead ──▶ ledger, settled ─▶ taken back
//
// A node whose deployment is taken back may fail before it has finished its calls, or be stopped. Its next incarnation
// is an heir then: a program of the rack's own, which runs no handler and no durable main. The heir has the node's ledger.
//
//	a call that is done          ─▶ the recorded answer
//	one that had begun           ─▶ memory takes back what it did ─▶ done: unavailable
//	one that is not known        ─▶ refused for good: its caller chooses another node
//	what executions and mains owe ─▶ commits, one-ways, words about regions and to forget
//
// The heir leaves when nobody asks for an answer any more, and nothing is owed. Then the ledger is deleted.

// resumption is what an incarnation has to do because of earlier ones.
type resumption struct {
	direct.Resumption
	rest   map[uint64][]*record.Execution // Rerun, by service
	memory map[rpcpacket.ID]*owed         // of Commit and Rollback
}

// resume begins to do what earlier incarnations have left. What is to be run again waits for its service.
func (n *Node) resume() {
	l := n.ledger.lock()
	defer l.unlock()
	l.resumes.rest = map[uint64][]*record.Execution{}
	for _, e := range l.resumes.Rerun {
		m, err := rpcpacket.Parse(e.Begun.Call)
		if err != nil {
			n.log.Error("rpc: the ledger has a call that is no message", "call", e.ID.String(), "err", err)
			continue
		}
		l.resumes.rest[m.Service] = append(l.resumes.rest[m.Service], e)
	}
	l.add(l.resumes.Over...)
	l.freeDue()
	for _, e := range l.resumes.Oneways {
		if !l.settling[e.ID] {
			l.table.Leave(e.ID)
		}
	}
	go n.oneways.send(l.table.Next())
	l.settleOwed()
	n.stats.resumed.Add(uint64(len(l.resumes.Rerun)))
	if l.table.Owes() {
		l.forgets.hurry(n)
	}
}

// resume runs the executions of a service again that earlier incarnations have begun. One that has
// seen the service's state comes before all that have not: no other has seen the state since.
func (x *export) resume() {
	l := x.node.ledger
	l.mu.Lock()
	rest := l.resumes.rest[x.hash]
	delete(l.resumes.rest, x.hash)
	for _, e := range rest {
		l.table.Resumes(e.ID)
	}
	l.mu.Unlock()
	if x.config.stateful() { // which runs one at a time
		slices.SortStableFunc(rest, func(a, b *record.Execution) int {
			switch {
			case untouched(a) == untouched(b):
				return 0
			case untouched(a):
				return 1
			}
			return -1
		})
	} else if x.node.self.Exited {
		if x.node.self.Incarnation%2 != 0 { // of those that have failed alike, another one is first each time
			slices.Reverse(rest)
		}
		slices.SortStableFunc(rest, func(a, b *record.Execution) int {
			return cmp.Compare(failures(&x.node.self, b), failures(&x.node.self, a))
		})
		go x.oneByOne(rest)
		return
	}
	for _, e := range rest {
		x.again(e, nil)
	}
}

// untouched reports whether nothing is known of what an execution's former runs have seen or done:
// they may never have had the service's slot.
func untouched(e *record.Execution) bool { return len(e.Journal)+len(e.Called)+len(e.Machines) == 0 }

// takeAgain has an execution run that earlier incarnations have begun.
func (x *export) takeAgain(e *execution) {
	if e := x.accept(e); e != nil {
		go x.pool.work(e)
	}
}

// fates is what a node knows of executions that share fates.
type fates struct {
	telling atomic.Bool // the Gatekeeper is being told that the node is to be taken back
	// waiting are the executions that wait for their callers to be taken back. The ledger's mutex guards it.
	waiting map[rpcpacket.ID]chan struct{}
}

// restarts reports whether the node's program is started anew if the node is taken back: nobody starts one that was started by
// hand, and an heir runs nothing.
func (n *Node) restarts() bool { return n.heir == nil && n.deployed() }

// deployed reports whether the node's program belongs to a deployment, as far as the node knows.
func (n *Node) deployed() bool {
	place := n.ledger.place.Load()
	return place != nil && !place.ByHand
}

// takeBack has the Gatekeeper fence the node and start its program anew, when all records so far are settled and if it is true
// that it must. Until then the node goes on: what comes to its end meanwhile has not failed.
func (n *Node) takeBack(why string, must func() bool) {
	if !n.restarts() || !n.fates.telling.CompareAndSwap(false, true) {
		return
	}
	go func() {
		defer n.fates.telling.Store(false)
		last, _ := n.ledger.unsettled()
		if !must() || !n.ledger.settle(last) {
			return
		}
		n.log.Info("rpc: the node is taken back", "node", n.self.Name, "why", why)
		n.stats.takenBack.Add(1)
		if err := n.session.Calls(n.life.base, control.NodeCalls{TakeBack: why}); err != nil && n.life.base.Err() == nil {
			n.log.Warn("rpc: the Gatekeeper has not heard that the node is to be taken back", "node", n.self.Name, "err", err) // it is asked again
		}
	}()
}

// heedFates does what follows from a record, or a caller's word.
func (l lockedLedger) heedFates() {
	for id, released := range l.node.fates.waiting {
		if _, _, waits := l.table.Waits(id); !waits {
			close(released)
			delete(l.node.fates.waiting, id)
		}
	}
	if caller, incarnation, outlived := l.table.Outlived(); outlived {
		node := netip.AddrFrom16(caller)
		l.node.takeBack("it runs a call of "+node.String()+", which has failed", func() bool {
			// A caller may say anything of its incarnation, and others suffer if the node is taken back.
			info, err := l.node.session.Who(l.node.life.base, node)
			return err == nil && info.Incarnation > incarnation
		})
	}
}

// superseded takes a copy of a call that comes from a later incarnation than the one for which the call runs, or is to run
// again.
func (n *Node) superseded(from netip.Addr, m *rpcpacket.Message) {
	l := n.ledger.lock()
	defer l.unlock()
	if r := l.table.Bury(from.As16(), m.CallerIncarnation-1, false); r != nil {
		l.add(r)
	} else {
		l.heedFates()
	}
}

// started writes down that the handler of a direct call starts which is run again, or shares its caller's fate, or may have ended the
// program before. It reports false if the node ends.
func (e *execution) started() bool {
	l := e.node.ledger
	if e.journal != nil && e.resumed && !e.again {
		b := l.lock()
		if _, _, waits := l.table.Waits(e.call.Call); !waits {
			last := e.beginAgain(b)
			b.unlock()
			e.promote()
			return l.settle(last)
		}
		b.unlock()
	}
	if e.journal != nil && !e.resumed && e.export.suspects() && !e.durable(record.Call{}) && e.node.life.base.Err() != nil {
		return false
	}
	if e.journal == nil || e.call.Flags.Policy() == PolicyRecover && e.call.Flags&rpcpacket.FlagTainted == 0 {
		return true
	}
	l.mu.Lock()
	shares := l.table.Shares(e.call.Call)
	if shares && !e.resumed {
		e.calledBy(l.table.Starts(e.call.Call))
	}
	l.mu.Unlock()
	switch {
	case !shares:
		return true
	case e.resumed:
		return e.again || e.awaitCaller()
	}
	return e.durable(record.Call{})
}

// awaitCaller waits until an execution that is run again may be: until its caller has been taken back, if that shares the
// execution's fate. Then it writes down that the execution runs again. It reports false if the node ends.
func (e *execution) awaitCaller() bool {
	n, l, id := e.node, e.node.ledger, e.call.Call
	for interval := wordPauses.First; ; interval = wordPauses.Next(interval) {
		b := l.lock()
		caller, incarnation, waits := l.table.Waits(id)
		if !waits {
			last := e.beginAgain(b)
			b.unlock()
			e.promote()
			return l.settle(last)
		}
		released := n.fates.waiting[id]
		if released == nil {
			if n.fates.waiting == nil {
				n.fates.waiting = map[rpcpacket.ID]chan struct{}{}
			}
			released = make(chan struct{})
			n.fates.waiting[id] = released
		}
		b.askAll(map[[16]byte]uint32{caller: incarnation})
		b.unlock()
		e.promote()
		ask := rpcpacket.Message{Header: rpcpacket.Header{
			Type: rpcpacket.Ack, Flags: rpcpacket.FlagUnbegun.WithPolicy(e.call.Flags.Policy()), Call: id,
			CallerIncarnation: n.self.Incarnation, CalleeIncarnation: incarnation,
		}}
		n.ports.sendDirect(netip.AddrFrom16(caller), &ask)
		timer := time.NewTimer(interval)
		select {
		case <-released:
		case <-timer.C:
		case <-n.life.done:
			timer.Stop()
			return false
		}
		timer.Stop()
	}
}

// beginAgain writes that an execution is run again which the ledger has as begun, and for which incarnation of its caller.
func (e *execution) beginAgain(l lockedLedger) (record uint64) {
	known := l.table.State().Execution(e.call.Call)
	begun := *known.Begun
	begun.Attempt++
	begun.Run, begun.Failures = e.node.self.Incarnation, failures(&e.node.self, known)
	begun.Incarnation = l.table.Starts(e.call.Call)
	e.calledBy(begun.Incarnation)
	e.again = true
	return l.write(l.cost(len(begun.Call)) > l.left(), &begun)
}

// askedBack takes the word of a callee's next incarnation that an earlier one has begun a call of this node's, and that it
// shares the fate of whoever waits for the call.
func (n *Node) askedBack(from netip.Addr, m *rpcpacket.Message) {
	if m.CalleeIncarnation != n.self.Incarnation {
		return // an earlier one is meant: that it has ended, copies of the call say, or the Gatekeeper
	}
	known, waits := n.out.sharesFate(m.Call, from)
	switch {
	case known && !waits:
		n.stats.countForeign(from) // it is another node's call, or its failure is nobody else's
	case waits && n.restarts():
		n.takeBack("it shares the fate of "+from.String(), func() bool { return true })
		return
	}
	answer := rpcpacket.Message{Header: rpcpacket.Header{
		Type: rpcpacket.Ack, Flags: (rpcpacket.FlagUnbegun | rpcpacket.FlagDone).WithPolicy(m.Flags.Policy()), Call: m.Call,
		CallerIncarnation: n.self.Incarnation, CalleeIncarnation: m.CallerIncarnation,
	}}
	n.ports.sendDirect(from, &answer)
}

// shares reports whether a call that is out goes direct to a node, and whoever waits for it shares that one's fate.
func (p *pending) shares(node netip.Addr) bool {
	if p.of == nil || p.Node != node.As16() {
		return false
	}
	sent, err := rpcpacket.Parse(p.datagram)
	return err == nil && direct.SharesUp(&sent.Header)
}

// spared takes a caller's word that it is not taken back.
func (n *Node) spared(from netip.Addr, m *rpcpacket.Message) {
	if m.CalleeIncarnation != n.self.Incarnation {
		return
	}
	l := n.ledger.lock()
	defer l.unlock()
	l.table.Spare(from.As16(), m.Call)
	l.heedFates()
}

// taints reports whether calls that an execution makes are on behalf of a tainted one.
func (e *execution) taints() bool {
	return e.call.Flags.Policy() == PolicyTainted || e.call.Flags&rpcpacket.FlagTainted != 0
}

func init() { bridge.Heir = inherit }

// heir is what an heir knows of the node that was.
type heir struct {
	services map[uint64]string // names of services, by their hashes
}

// inherit is the program of an heir. It returns when nothing is left to be done, and the node has left; with an error it has
// not, and another heir goes on.
func inherit(ctx context.Context, services []string) error {
	h := &heir{services: map[uint64]string{}}
	for _, name := range services {
		h.services[serviceHash(rackaddr.Service(name))] = name
	}
	n, err := Join(ctx, WithName("heir"), joinFunc(func(c *joinConfig) { c.heir = h }))
	if err != nil {
		return err
	}
	n.drainDirect(ctx)
	return n.Close(ctx)
}

// inherited is a service that the node had. It takes no calls.
func (n *Node) inherited(hash uint64) *export {
	x := &export{node: n, name: n.heir.services[hash], address: rackaddr.ServiceOf(hash), hash: hash}
	x.pool.closed = true
	x.offer.Store(&offer{methods: map[rpcpacket.Method]*served{}})
	return x
}

// endBegun ends the executions that earlier incarnations have begun.
func (n *Node) endBegun() {
	l := n.ledger
	l.mu.Lock()
	services := slices.Sorted(maps.Keys(l.resumes.rest))
	l.mu.Unlock()
	n.announce()
	for _, hash := range services {
		n.inherited(hash).resume()
	}
}
