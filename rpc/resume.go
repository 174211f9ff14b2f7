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
	rest   map[uint64][]*record.Execution // Rerun and GiveUp, by service
	memory map[rpcpacket.ID]*owed         // of Commit and Rollback
}

// resume begins to do what earlier incarnations have left. What is to be run again waits for its service.
func (n *Node) resume() {
	l := n.ledger
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
	n.stats.resumed.Add(uint64(len(l.resumes.Rerun) + len(l.resumes.GiveUp)))
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
	if x.config.stateful() {
		slices.SortStableFunc(rest, func(a, b *record.Execution) int {
			switch {
			case untouched(a) == untouched(b):
				return 0
			case untouched(a):
				return 1
			}
			return -1
		})
	}
	x.rerun(rest)
}

// untouched reports whether nothing is known of what an execution's former runs have seen or done:
// they may never have had the service's slot.
func untouched(e *record.Execution) bool { return len(e.Journal)+len(e.Called)+len(e.Machines) == 0 }

// rerun runs executions again, in this order.
func (x *export) rerun(all []*record.Execution) {
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
				return // the node has ended
			}
		}
		x.takeAgain(e)
	}
}

// takeAgain has an execution run that earlier incarnations have begun.
func (x *export) takeAgain(e *execution) {
	if e := x.accept(e); e != nil {
		go x.pool.work(e)
	}
}

// giveUp answers a call that has killed too many nodes, or whose node has an heir, when what the call did is taken back.
func (x *export) giveUp(e *execution) {
	why := "several nodes failed while they executed it"
	if x.node.heir != nil {
		why = "its node failed, or was stopped, while it executed the call, and does not come back: the deployment is taken back"
	}
	if e.takenBack() {
		x.answerException(e, Unavailable, why)
	}
}
