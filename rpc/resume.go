package rpc

import (
	"net/netip"
	"slices"

	"github.com/bifrost-rack/bifrost/internal/rackaddr"
	"github.com/bifrost-rack/bifrost/rpc/direct"
	"github.com/bifrost-rack/bifrost/rpc/record"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// This file is about what an incarnation of a node does because of what the ledger has of earlier
// ones.

// resumption is what an incarnation has to do because of earlier ones.
type resumption struct {
	direct.Resumption
	rest      map[uint64][]*record.Execution // Rerun and GiveUp, by service
	memory    map[rpcpacket.ID]*owed         // of Commit and Rollback
	forwarded chan struct{}                  // closed when the Gatekeeper knows those of Forward
}

// resume begins to do what earlier incarnations have left: what they owed, and what the
// Gatekeeper decides about. What is to be run again waits for its service.
func (n *Node) resume() {
	l := n.ledger
	if !n.goesDirect() {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.resumes.rest = map[uint64][]*record.Execution{}
	for _, e := range slices.Concat(l.resumes.Rerun, l.resumes.GiveUp) {
		m, err := rpcpacket.Parse(e.Begun.Call)
		if err != nil {
			n.log.Error("rpc: the ledger has a call that is no message", "call", e.ID.String(), "err", err)
			continue
		}
		l.resumes.rest[m.Service] = append(l.resumes.rest[m.Service], e)
	}
	l.add(l.resumes.Over...)
	l.tellLater()
	for _, e := range l.resumes.Oneways {
		if !l.settling[e.ID] {
			l.table.Leave(e.ID)
		}
	}
	go n.sendOneways(l.table.Next())
	l.settleOwed()
	n.stats.resumed.Add(uint64(len(l.resumes.Rerun) + len(l.resumes.Forward) + len(l.resumes.GiveUp)))
	l.resumes.forwarded = make(chan struct{})
	go func() {
		defer close(l.resumes.forwarded)
		for _, e := range l.resumes.Forward {
			n.forward(e)
		}
	}()
	if l.table.Owes() {
		l.forgets.hurry(n)
	}
}

// forward asks the Gatekeeper to go on with an execution about which it decides. It may never have
// heard of it.
func (n *Node) forward(e *record.Execution) {
	m, err := rpcpacket.Parse(e.Begun.Call)
	if err == nil {
		err = n.tellEnlisted(netip.AddrFrom16(e.Begun.Caller), &m, false)
	}
	if n.base.Err() == nil { // it has it, or has refused it for good
		n.ledger.write(&record.Logged{Execution: e.ID})
	}
	if err != nil {
		n.log.Warn("rpc: an execution was not handed over", "call", e.ID.String(), "err", err)
	}
}

// resume runs the executions of a service again that earlier incarnations have begun. One that has
// seen the service's state comes before all that have not, and before the Gatekeeper's next call: no
// other has seen the state since. The rest waits for the gate.
func (x *export) resume() {
	l := x.node.ledger
	if !x.node.goesDirect() || x.config.stateful() && !x.inLedger() {
		return
	}
	l.mu.Lock()
	rest := l.resumes.rest[x.hash]
	delete(l.resumes.rest, x.hash)
	for _, e := range rest {
		l.table.Resumes(e.ID)
	}
	l.mu.Unlock()
	var first []*record.Execution
	if x.config.stateful() {
		first = slices.DeleteFunc(slices.Clone(rest), untouched)
		rest = slices.DeleteFunc(rest, func(e *record.Execution) bool { return !untouched(e) })
	}
	switch {
	case !x.rerun(first): // the node has ended
	case x.gate.Load():
		go x.lift(rest)
	default:
		x.rerun(rest)
	}
}

// untouched reports whether nothing is known of what an execution's former runs have seen or done:
// they may never have had the service's slot.
func untouched(e *record.Execution) bool { return len(e.Journal)+len(e.Called)+len(e.Machines) == 0 }

// rerun runs executions again, in this order. It reports false if the node has ended.
func (x *export) rerun(all []*record.Execution) bool {
	l := x.node.ledger
	for _, known := range all {
		m, _ := rpcpacket.Parse(known.Begun.Call)                       // it was parsed before
		m.Attempt = uint16(min(known.Begun.Attempt+1, direct.Attempts)) //nolint:gosec // small
		e := x.node.directExecution(x, netip.AddrPortFrom(netip.AddrFrom16(known.Begun.Caller), rackaddr.PortRPC), &m, known.Begun.Arguments, known)
		if e.journal, _ = newJournal(known.Journal); e.journal == nil {
			x.node.log.Error("rpc: the ledger has a journal that is none", "call", m.Call.String())
			continue
		}
		l.mu.Lock()
		l.takeUp(e)
		_, _, waits := l.table.Waits(known.ID)
		l.mu.Unlock()
		owed := !l.resumes.memory[known.ID].over()
		switch {
		case slices.Contains(l.resumes.GiveUp, known) && owed:
			go x.giveUp(e)
			continue
		case slices.Contains(l.resumes.GiveUp, known):
			x.giveUp(e)
			continue
		case (waits || owed) && !x.config.stateful(): // another call takes its slot meanwhile
			go func() {
				if e.takenBack() && e.awaitCaller() {
					x.takeAgain(e)
				}
			}()
			continue
		}
		if !waits {
			l.mu.Lock()
			last := e.beginAgain()
			l.mu.Unlock()
			if !l.settle(last) {
				return false
			}
		}
		x.takeAgain(e)
	}
	return true
}

// takeAgain has an execution run that earlier incarnations have begun.
func (x *export) takeAgain(e *execution) {
	if e := x.accept(e); e != nil {
		go x.pool.work(e)
	}
}

// giveUp answers a call that has killed too many nodes, when what it did is taken back.
func (x *export) giveUp(e *execution) {
	if e.takenBack() {
		x.answerException(e, Unavailable, "several nodes failed while they executed it")
	}
}
