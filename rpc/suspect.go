package rpc

import (
	"fmt"
	"net/netip"
	"sync"
	"time"

	"github.com/bifrost-rack/bifrost/internal/join"
	"github.com/bifrost-rack/bifrost/internal/pace"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
	"github.com/bifrost-rack/bifrost/rpc/direct"
	"github.com/bifrost-rack/bifrost/rpc/record"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// An execution may end its program each time that it runs: by os.Exit, by a panic in a goroutine of its own, by taking all memory. It is
// given up after some such failures, and an execution that machines fail under is not. So the node has to know which execution it was:
//
//	program ends ─▶ daemon ─▶ Gatekeeper ── "it ended with its program" ──▶ the next incarnation
//	the next incarnation:
//	    each new call ── begun ──▶ ledger, before its handler runs; for a while after the service is exported
//	    begun executions ─▶ run again one by one, those first that have failed most
//	    begun there, and the program has ended again ─▶ a failure counts
//
// A failure counts for what ran in the incarnation that ended, as far as its ledger knows. Of those that have begun together, each is soon
// alone when the program ends, so that failures of others do not go on to count. Calls of an incarnation that follows another end of its predecessor cost
// no more than ever.

// WithMaxFailures says after how many failures an exactly-once call of these methods, or of all others if none is named, is given
// up: it then fails as [Unavailable], and what it has done is taken back. A failure is an end of the service's program while the call ran; failures of machines, and of
// nodes that are taken back, are none. 0 is never. What an operator or a deployment says of a method goes before. The default is [DefaultFailures].
func WithMaxFailures(n int, methods ...string) ExportOption {
	return exportFunc(func(c *exportConfig) { c.failures.set(n, methods) })
}

// suspectFor is for how long after its export a service writes begun before it runs a handler, if the incarnation before ended with
// its program: callers send a call again after endpoint.MaxTimeout at most, unless they are away.
const suspectFor = 10 * time.Second

// suspects reports whether a new call may have ended the program in the incarnation before, which did not write it down.
func (x *export) suspects() bool {
	return x.node.self.Exited && x.node.pulse.now() < x.since+suspectFor
}

// failures is with how many runs of an execution the program of a node has ended.
func failures(self *join.Identity, e *record.Execution) uint32 {
	return direct.Failures(e, self.Before, self.Exited)
}

// hopeless reports whether an execution has failed too often.
func (x *export) hopeless(e *record.Execution, method rpcpacket.Method) bool {
	most := DefaultFailures
	if m := x.offer.Load().methods[method]; m != nil {
		if n, ok := x.config.failures.of(m.name); ok {
			most = n
		}
		if n, ok := x.node.session.Policies().MaxFailures(x.name, rpcpacket.PlainMethod(m.name)); ok {
			most = n
		}
	}
	return most > 0 && int64(failures(&x.node.self, e)) >= int64(most)
}

// alone is the time for which an execution runs alone, of those that are run again.
type alone struct {
	once sync.Once
	over chan struct{}
}

// end lets the next one begin: the execution has ended, or waits for a call, which may need another one's slot. nil is none.
func (a *alone) end() {
	if a != nil {
		a.once.Do(func() { close(a.over) })
	}
}

// aloneFor is for how long an execution runs alone, twice as long with each failure.
var aloneFor = pace.Pauses{First: time.Second, Most: time.Minute}

// oneByOne runs executions again, each alone for a while.
func (x *export) oneByOne(all []*record.Execution) {
	n := x.node
	for _, known := range all {
		select {
		case n.turn <- struct{}{}:
		case <-n.life.done:
			return
		}
		a, failures := &alone{over: make(chan struct{})}, failures(&n.self, known) // which changes as soon as it runs
		if x.again(known, a) {
			t := time.NewTimer(aloneFor.After(int(failures)))
			select {
			case <-a.over:
			case <-t.C:
			case <-n.life.done:
			}
			t.Stop()
		}
		<-n.turn
	}
}

// again runs an execution again that earlier incarnations have begun, or gives it up. It reports whether it runs, or is to.
func (x *export) again(known *record.Execution, a *alone) bool {
	n, l := x.node, x.node.ledger
	m, _ := rpcpacket.Parse(known.Begun.Call)                   // it was parsed before
	m.Attempt = uint16(min(known.Begun.Attempt+1, maxAttempts)) //nolint:gosec // bounded
	e := n.directExecution(x, netip.AddrPortFrom(netip.AddrFrom16(known.Begun.Caller), rackaddr.PortRPC), &m, known.Begun.Arguments, known)
	e.alone = a
	if e.journal, _ = newJournal(known.Journal, n.life); e.journal == nil {
		n.log.Error("rpc: the ledger has a journal that is none", "call", m.Call.String())
		return false
	}
	n.reports.takeUp(e)
	b := l.lock()
	b.promiseAgain(e)
	_, _, waits := l.table.Waits(known.ID)
	b.unlock()
	owed := !l.resumes.memory[known.ID].over()
	ends := n.heir != nil || x.hopeless(known, m.Method)
	switch {
	case ends && owed:
		go x.giveUp(e, failures(&n.self, known))
		return false
	case ends:
		x.giveUp(e, failures(&n.self, known))
		return false
	case (waits || owed) && !x.config.stateful(): // another call takes its slot meanwhile
		go func() {
			if e.takenBack() && e.awaitCaller() {
				x.takeAgain(e)
			}
		}()
	default:
		x.takeAgain(e)
	}
	return true
}

// maxAttempts is how many runs the header of a call counts.
const maxAttempts = 1<<16 - 1

// giveUp answers a call that has failed too often, or whose node has an heir, when what the call did is taken back.
func (x *export) giveUp(e *execution, failures uint32) {
	why := fmt.Sprintf("service %s, method %s: its program has ended %d times while it executed the call", x.name, e.method(), failures)
	if x.node.heir != nil {
		why = "its node failed, or was stopped, while it executed the call, and does not come back: the deployment is taken back"
	} else {
		e.failures = failures
		x.node.stats.givenUp.Add(1)
		x.node.log.Error("rpc: a call is given up", "call", e.call.Call.String(), "why", why)
	}
	if e.takenBack() {
		x.answerException(e, Unavailable, why)
	}
}
