package gatekeeper

import (
	"bytes"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
	"github.com/bifrost-rack/bifrost/gatekeeper/lease"
	"github.com/bifrost-rack/bifrost/gatekeeper/wal"
	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/internal/frame"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
	"github.com/bifrost-rack/bifrost/rpc/endpoint"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// Direct calls and one-ways with pointers come here for their rights alone: what becomes of them is in their
// callee's ledger. The switch holds the call and its answer, since both have to follow the rules.
//
//	CALL with pointers ─▶ lease machine ─▶ logged ─▶ callee (its port for direct calls)
//	REPLY              ─▶ leases end    ─▶ logged ─▶ caller
//	ONEWAY             ─▶ control moves ─▶ logged ─▶ callee
//	REPLY: it has come ─▶ logged ─▶ caller
//	EXCEPTION: it has not, and never will ─▶ control returns ─▶ logged ─▶ caller
//
// A loan is the record of such a call or one-way, by its id. It names the callee's address, not its
// incarnation: the next incarnation has the call in its ledger, and the leases with it. It
// outlives its caller's incarnations, too: the execution that has made the call is run again, and
// sends it again. A one-way is sent again by the next incarnation, too.

// loan is a direct call that lends its callee regions, or a one-way that hands some over.
type loan struct {
	header         rpcpacket.Header // of the latest attempt that was let through
	caller, callee lease.Node
	charged        lease.Node // whose quota it takes: who has sent the packet that it was made for
	stage          loanStage
	lent           []dsmpacket.Pointer
	returned       []dsmpacket.Pointer // what its answer has handed over
	refusal        *fault.Error        // loanRefused, and loanVoid if its callee has gone
	forgotten      bool                // nobody asks for it any more: it goes when it is over
	returning      bool                // it is over, but the switch has not given its caller all rights back yet
	probe          time.Time           // when its callee is asked next, while it is open
	asked          time.Time           // when it was asked last
}

// loanStage is how far a loan has come; the numbers are on the log.
type loanStage uint32

const (
	loanJudged   loanStage = 0 // the lease machine has the call, or the switch its rules
	loanOpen     loanStage = 1 // its callee has its rights, and has not answered; nor acknowledged it, if it is a one-way
	loanReturned loanStage = 2 // its answer is held until the rights have ended
	loanAnswered loanStage = 3
	loanRefused  loanStage = 4 // it was never let through
	loanVoid     loanStage = 5 // its callee has not run it, and never will
	loanDenied   loanStage = 6 // its callee has answered with regions that it may not hand over
)

func (k *loan) id() rpcpacket.ID { return k.header.Call }

// oneway reports whether it hands its regions over, rather than lends them.
func (k *loan) oneway() bool { return k.header.Type == rpcpacket.Oneway }

// atMostOnce reports whether the call has policy none: it is bound to an incarnation of its callee, and ends with that.
func (k *loan) atMostOnce() bool { return k.header.Flags.Policy() == rpcpacket.PolicyNone }

// over reports whether the call has no rights any more, or the one-way has come or never will.
func (k *loan) over() bool { return k.stage >= loanAnswered }

// attempts reports whether a copy of the call, or an answer to one, is of the attempt that the record has.
func (k *loan) attempts(h *rpcpacket.Header) bool {
	return h.Slot == k.header.Slot && h.Number == k.header.Number
}

// takenBack is the event that ends the leases of a call, or gives its caller again what a one-way has handed over.
func (k *loan) takenBack() lease.Event {
	if !k.oneway() {
		return lease.Reply{ID: k.id(), Caller: k.caller, Callee: k.callee}
	}
	e := lease.Withdrawn{ID: k.id(), Caller: k.caller, Callee: k.callee, Pointers: k.lent}
	if k.id().Derived() {
		e.Parent = k.header.Parent
	}
	return e
}

// loanRequest takes a direct call or one-way with regions.
func (c *controller) loanRequest(n *node, h *held, m *rpcpacket.Message) {
	switch {
	case m.Type != rpcpacket.Call && m.Type != rpcpacket.Oneway || len(m.Lists) == 0 || !opens(m):
		c.malformedCall(h, &m.Header, fault.New(fault.BadRequest, "call", "a call that is held and addressed to a node lends memory, and begins as its flags say"))
		return
	case m.CallerIncarnation != n.incarnation:
		c.count.Late++
		return
	case m.Number.Incarnation() != n.incarnation:
		c.malformedCall(h, &m.Header, fault.New(fault.BadRequest, "call", "number %s is one of another incarnation", m.Number))
		return
	case c.blocks.owner(m.Slot) != n.address || len(m.Trailer) < originBytes || !c.proven(n.address, &m.Header, m.Trailer[:originBytes]):
		c.count.Foreign++
		c.refuse(h, &m.Header, fault.New(fault.BadRequest, "call", "the call id belongs to another node"))
		return
	}
	callee := c.nodes[h.dst]
	switch k := c.loans[m.Call]; {
	case k != nil && k.returning:
		c.count.Duplicates++
		return // it comes again, if somebody waits for the answer
	case k != nil && k.caller == n.address && k.stage == loanDenied:
		c.count.Duplicates++
		c.deny(k, &m.Header) // its callee may be gone
		return
	case k == nil && m.Flags.Policy() == rpcpacket.PolicyNone && (callee == nil || m.CalleeIncarnation != callee.incarnation):
		c.refuse(h, &m.Header, fault.New(fault.Unavailable, "call", "node %s is gone, or in another incarnation than %d", h.dst, m.CalleeIncarnation))
		return
	case callee == nil || callee.blade.port == nil:
		c.count.Late++ // it comes back; or it is gone, and the caller asks
		return
	}
	if c.lateIn(m.Slot, m.Number) {
		c.count.Late++
		return
	}
	if k := c.loans[m.Call]; k != nil {
		c.knownLoan(k, n, callee, h, m)
		return
	}
	if why := c.mayLend(n, h, m); why != nil {
		c.refuse(h, &m.Header, why)
		return
	}
	if c.overloaded(c.leases.Pending() >= c.cfg.Limits.Held || c.pressure.keepsAway(!m.Parent.IsZero(), len(h.payload))) {
		return
	}
	c.judgeLoan(&loan{}, n, h, m)
}

// headerOf is that of the call that a record is of. Records have no payload, so none that goes on.
func headerOf(m *rpcpacket.Message) rpcpacket.Header {
	h := m.Header
	if h.Flags &^= rpcpacket.FlagMore; h.Type != rpcpacket.Oneway {
		h.Type = rpcpacket.Call
	}
	return h
}

// opens reports whether a message is whole, or the first packet of one. Its regions are all there then.
func opens(m *rpcpacket.Message) bool {
	if m.Flags&rpcpacket.FlagMore == 0 {
		return true
	}
	_, err := m.Opening()
	return err == nil
}

// itsID refuses the id of a call that an execution of a durable main makes, unless it follows from the execution's id and a key of the
// main: who has seen the id of a call could use others first that the main will need, and the true calls would never run. Other ids
// have their caller's number in them.
func (c *controller) itsID(m *rpcpacket.Header) *fault.Error {
	if !m.Call.Derived() || !c.mains.Known(m.Parent) || m.Call == endpoint.ChildID(c.secret.Main(m.Parent), m.Parent, m.Branch, m.Index) {
		return nil
	}
	c.count.Foreign++
	return fault.New(fault.BadRequest, "call", "the call id does not follow from the execution that makes the call")
}

// mayLend refuses a call whose caller has too many on record, or may not use its id.
func (c *controller) mayLend(n *node, h *held, m *rpcpacket.Message) *fault.Error {
	if why := c.itsID(&m.Header); why != nil {
		return why
	}
	if !m.Call.Derived() { // nobody asks for the slot's earlier calls any more
		c.settleLoans(n, m.Slot, m.Number)
	}
	if k := c.lenders[n.address]; k >= c.cfg.Limits.NodeCalls {
		return fault.New(fault.Overloaded, "call", "node %s has %d calls on record that lend memory, its maximum", n.address, k)
	}
	return c.tooLarge(len(h.payload))
}

// addLoan puts a loan on record, and charges it.
func (c *controller) addLoan(k *loan) {
	c.loans[k.id()] = k
	if !k.id().Derived() {
		c.ofSlots[k.header.Slot] = append(c.ofSlots[k.header.Slot], k)
	}
	c.lenders[k.charged]++
}

// judgeLoan has the lease machine judge a call: a new one, or one that is made anew after its
// callee has said that it never runs the former copies.
func (c *controller) judgeLoan(k *loan, n *node, h *held, m *rpcpacket.Message) {
	if c.loans[m.Call] == nil {
		k.header, k.charged = headerOf(m), n.address
		c.addLoan(k)
	}
	c.uses(m.Slot, m.Number)
	k.header, k.caller, k.callee, k.stage, k.lent, k.refusal = headerOf(m), n.address, h.dst, loanJudged, m.Bases(c.cfg.DSMPrefix), nil
	c.count.Calls++
	c.loanEvent(CallHeld, k)
	v := verdict(func(s lease.Step, err error) { c.loanJudged(k, h, m, s, err) })
	if k.oneway() {
		c.submit(lease.Oneway{ID: k.id(), Caller: k.caller, Callee: k.callee, Pointers: k.lent}, v)
		return
	}
	c.submit(lease.Call{ID: k.id(), Parent: m.Parent, Caller: k.caller, Callee: k.callee, Pointers: k.lent}, v)
}

// loanJudged goes on with a call whose rules are in place, or which is refused.
func (c *controller) loanJudged(k *loan, h *held, m *rpcpacket.Message, s lease.Step, err error) {
	refuse := func(why *fault.Error, end loanStage) {
		k.refusal = why
		c.loanEvent(CallRefused, k)
		c.traceRefused(h, &m.Header, why)
		c.count.Refused++
		c.endLoan(k, end)
		c.exceptLoan(k, h, &m.Header)
	}
	switch {
	case k.over(): // its callee has gone meanwhile
	case err != nil:
		why := fault.New(fault.Overloaded, "call", "the switch has no room for the lease: %v", err)
		end := loanRefused
		if k.oneway() {
			end = loanVoid // it is judged anew when its sender tries again
		}
		c.submit(k.takenBack(), verdict(func(lease.Step, error) { refuse(why, end) }))
	case s.Outcome == lease.Refused:
		refuse(&fault.Error{Code: s.Refusal.Code(), Op: "call", Msg: s.Refusal.Error()}, loanRefused)
	default:
		k.stage = loanOpen
		c.probeLater(k)
		c.keepOpen(k)
		c.loanEvent(CallReleased, k)
		c.releaseLoan(k, h)
	}
}

// exceptLoan answers a call or one-way on record with its refusal. The sender of a one-way need not try another node: its
// regions are what is refused.
func (c *controller) exceptLoan(k *loan, h *held, m *rpcpacket.Header) {
	b := exception(m, k.refusal)
	if k.oneway() {
		b = rpcpacket.Begun(b)
	}
	c.send(0, h.reply(b))
}

// knownLoan takes another copy of a call on record.
func (c *controller) knownLoan(k *loan, n, callee *node, h *held, m *rpcpacket.Message) {
	c.count.Duplicates++
	switch {
	case k.caller != n.address:
		c.refuse(h, &m.Header, fault.New(fault.BadRequest, "call", "the call id belongs to another node"))
	case k.oneway() != (m.Type == rpcpacket.Oneway):
		c.refuse(h, &m.Header, fault.New(fault.BadRequest, "call", "a call and a one-way have the same id"))
	case k.stage == loanOpen && !samePointers(k.lent, m.Bases(c.cfg.DSMPrefix)):
		if k.attempts(&m.Header) {
			c.malformedCall(h, &m.Header, errOtherRegions)
		} else {
			c.refuse(h, &m.Header, errOtherRun)
		}
	case (k.stage == loanVoid || k.stage == loanOpen && k.callee == callee.address) && !k.attempts(&m.Header):
		c.nextAttempt(k, n, h, m)
	case k.callee != callee.address, k.stage == loanJudged, k.stage == loanReturned:
	case k.stage == loanVoid && k.oneway():
		c.except(h, &m.Header, fault.New(fault.Unavailable, "call", "the one-way was not taken"))
	case k.stage == loanVoid && k.refusal != nil: // its callee has gone, and nobody knows it any more
		c.except(h, &m.Header, fault.New(fault.Unavailable, "call", "%s", k.refusal.Msg))
	case k.stage == loanRefused:
		c.exceptLoan(k, h, &m.Header)
	case k.stage == loanDenied:
		c.deny(k, &m.Header)
	case k.oneway():
		k.header = headerOf(m) // its slot and number are what is late when nobody knows it any more
		c.releaseCopy(k, h, m)
	default:
		c.releaseCopy(k, h, m)
	}
}

// releaseCopy lets another copy of an open call go on. Of one that is over only the question goes on what has become of it: its callee
// has no rights from it any more, so what it ran now, it would do with its own.
func (c *controller) releaseCopy(k *loan, h *held, m *rpcpacket.Message) {
	if k.over() {
		c.askCallee(k, headerOf(m))
		return
	}
	c.releaseLoan(k, h)
}

// errOtherRegions refuses a copy of a call with other regions than those that the call on record got its rights for: its callee
// would use its own rights on them.
var errOtherRegions = fault.New(fault.BadRequest, "call", "the call is on record with other regions")

// errOtherRun refuses it to a later run of the execution that has made the call. A callee says the same of other arguments.
var errOtherRun = fault.New(fault.Nondeterminism, "call", "the call had other regions when the execution ran before: its node has lost its ledger since, or its handler does not do the same again")

// samePointers reports whether two copies of a call name the same regions, in whatever order.
func samePointers(a, b []dsmpacket.Pointer) bool {
	order := func(p, q dsmpacket.Pointer) int { return bytes.Compare(p[:], q[:]) }
	return slices.Equal(slices.SortedFunc(slices.Values(a), order), slices.SortedFunc(slices.Values(b), order))
}

// nextAttempt takes a call that is made again: by the caller's next incarnation, or since the callee never runs the former
// attempt. Copies of that one are late from now on.
func (c *controller) nextAttempt(k *loan, n *node, h *held, m *rpcpacket.Message) {
	if k.header.CallerIncarnation == n.incarnation {
		c.uses(k.header.Slot, k.header.Number+1)
	}
	if k.stage == loanVoid {
		c.judgeLoan(k, n, h, m)
		return
	}
	c.uses(m.Slot, m.Number)
	k.header = headerOf(m)
	c.keepOpen(k)
	c.releaseLoan(k, h)
}

// releaseLoan lets a call go on to its callee.
func (c *controller) releaseLoan(k *loan, h *held) {
	n := c.nodes[k.callee]
	if n == nil || n.blade.port == nil {
		return // it failed meanwhile: the call comes again
	}
	incarnation := n.incarnation
	if k.atMostOnce() {
		incarnation = k.header.CalleeIncarnation
	}
	rpcpacket.SetReleased(h.payload, incarnation)
	c.count.Released++
	c.send(hopOf(n.blade.port.num), frame.UDP6{
		Src: netip.AddrPortFrom(k.caller, rackaddr.PortRPC), Dst: netip.AddrPortFrom(k.callee, rackaddr.PortDirect), Payload: h.payload,
	}.Append(nil))
}

// directReply takes the answer to a direct call that has leases, or that hands regions over. One without pointers, to a call
// that is not on record any more, changes nothing: nobody asks for it.
func (c *controller) directReply(n *node, h *held, m *rpcpacket.Message) {
	switch k := c.loans[m.Call]; {
	case k != nil:
		c.loanReply(k, n, h, m)
	case m.Type == rpcpacket.Reply && len(m.Lists) > 0:
		c.results(n, h, m)
	default:
		c.count.Late++
	}
}

// loanReply takes the answer to a direct call that is on record. It may be one that an earlier
// incarnation of the callee has written down.
func (c *controller) loanReply(k *loan, n *node, h *held, m *rpcpacket.Message) {
	if k.callee != h.src || k.caller != h.dst || m.CalleeIncarnation > n.incarnation {
		c.count.Foreign++
		return
	}
	switch k.stage {
	case loanJudged, loanReturned:
		c.count.Duplicates++
	case loanOpen:
		if m.Refuses() && !k.attempts(&m.Header) {
			c.count.Late++ // the callee may be running a later attempt
			return
		}
		if c.overloaded(c.pressure.stalled) {
			return
		}
		if k.oneway() {
			c.onewayReply(k, h, m)
			return
		}
		e := lease.Reply{ID: k.id(), Caller: k.caller, Callee: k.callee}
		end := loanAnswered
		switch {
		case m.Type == rpcpacket.Exception && m.Flags&rpcpacket.FlagUnbegun != 0:
			end = loanVoid
		case m.Type == rpcpacket.Reply && (c.takes(k) || k.atMostOnce()) && !c.handedOver.late(n.address, m.Slot, m.Number): // else they are the callee's for good
			e.Results = m.Bases(c.cfg.DSMPrefix)
		}
		k.stage = loanReturned
		c.loanEvent(ReplyHeld, k)
		c.submit(e, verdict(func(s lease.Step, _ error) {
			if k.returned = e.Results; s.Refusal != nil {
				k.returned = nil
				k.refusal, end = &fault.Error{Code: s.Refusal.Code(), Op: "reply", Msg: s.Refusal.Error()}, loanDenied
			}
			c.loanEvent(ReplyReleased, k)
			unheard := k.atMostOnce() && (!c.takes(k) || c.nodes[k.caller] == nil || c.nodes[k.caller].incarnation != k.header.CallerIncarnation)
			c.endLoan(k, end)
			c.releaseAnswer(k, h, m)
			if unheard {
				c.freeUnheard(k)
			}
		}))
	default:
		c.count.Duplicates++
		c.releaseAnswer(k, h, m)
	}
}

// freeUnheard frees what a call of policy none has handed over to a caller that has given it up, or that has failed: nobody hears of it.
func (c *controller) freeUnheard(k *loan) {
	for _, p := range k.returned {
		if v, ok := c.leases.Find(p); ok && v.Controller == k.caller {
			c.steps(c.leases.Abandon(v.Region, k.caller))
		}
	}
}

// cutLoans ends the calls of policy none that an incarnation of a node has got: no later one knows of them. What one-ways have handed
// over to it goes with it.
func (c *controller) cutLoans(callee wal.Node) {
	for _, k := range c.sortedLoans(func(k *loan) bool {
		return k.atMostOnce() && k.callee == callee.Address && k.header.CalleeIncarnation <= callee.Incarnation && !k.over()
	}) {
		k.refusal = fault.New(fault.Unavailable, "call", "node %s is gone", k.callee)
		tell := func() {
			if n := c.nodes[k.caller]; n != nil && n.incarnation == k.header.CallerIncarnation && !k.forgotten {
				c.deny(k, &k.header)
			}
		}
		c.cut(k, loanDenied, tell)
		c.loanEvent(CallEnded, k)
	}
}

// cut ends a call whose callee has failed, and goes on when its caller has its rights back: one that is told before that may free the regions at once, and
// is denied. A one-way gives no rights back.
func (c *controller) cut(k *loan, stage loanStage, then func()) {
	if k.oneway() {
		c.endLoan(k, stage)
		then()
		return
	}
	steps, cut := c.leases.Cut(k.id(), verdict(func(lease.Step, error) {
		if k.returning = false; k.over() {
			then()
		}
	}))
	k.returning = cut
	c.steps(steps)
	c.endLoan(k, stage)
	if cut && !k.returning {
		then() // there were no rules to write
	}
}

// onewayReply takes the first answer to a one-way. An exception says that its callee has not taken it: what it has handed
// over is its caller's again.
func (c *controller) onewayReply(k *loan, h *held, m *rpcpacket.Message) {
	end := loanAnswered
	if m.Flags&rpcpacket.FlagUnbegun != 0 {
		end = loanVoid
	}
	then := func(lease.Step, error) {
		c.loanEvent(ReplyReleased, k)
		c.endLoan(k, end)
		c.releaseAnswer(k, h, m)
	}
	c.loanEvent(ReplyHeld, k)
	if m.Type == rpcpacket.Reply {
		then(lease.Step{}, nil)
		return
	}
	k.stage = loanReturned
	c.submit(k.takenBack(), verdict(then))
}

// releaseAnswer lets an answer go on to the caller.
func (c *controller) releaseAnswer(k *loan, h *held, m *rpcpacket.Message) {
	if c.nodes[k.caller] == nil || c.pressure.stalled {
		return // it comes again, if somebody waits for it
	}
	if k.refusal != nil {
		c.deny(k, &m.Header)
		return
	}
	rpcpacket.SetReleased(h.payload, m.CalleeIncarnation)
	c.release(h)
}

// loanEvent tells people of a call that lends memory.
func (c *controller) loanEvent(kind EventKind, k *loan) {
	if !c.narrate {
		return
	}
	e := Event{Kind: kind, Node: k.caller, Peer: k.callee, Call: k.id().String()}
	e.Service, e.Method = c.namesOf(&k.header, k.callee)
	if k.refusal != nil {
		e.Code, e.Message = k.refusal.Code, k.refusal.Msg
	}
	c.event(e)
}

// endLoan notes that a call has no rights any more.
func (c *controller) endLoan(k *loan, stage loanStage) {
	if k.over() {
		return
	}
	k.stage = stage
	if c.loans[k.id()] != k {
		return
	}
	switch h := k.header; {
	case k.forgotten:
		c.forgetLoan(k)
	case k.refusal != nil:
		h.Type, h.Code = rpcpacket.Exception, k.refusal.Code
		c.keepLoan(k, stage, &rpcpacket.Message{Header: h, Payload: []byte(k.refusal.Msg)})
	default:
		c.keepLoan(k, stage, &rpcpacket.Message{Header: h, Lists: rpcpacket.ListsOf(k.returned...)})
	}
	c.lentOver(k.header.Parent)
}

// forgetLoan drops a record that is over. Of another one the log has to say that it goes then: nobody
// forgets it twice.
func (c *controller) forgetLoan(k *loan) {
	news := !k.forgotten
	k.forgotten = true
	switch {
	case c.loans[k.id()] != k:
		return
	case !k.over():
		if news && k.stage != loanJudged && len(k.lent) > 0 {
			c.keepOpen(k)
		}
		return
	}
	delete(c.loans, k.id())
	at, number := k.header.Slot, k.header.Number
	if !k.id().Derived() {
		if rest := slices.DeleteFunc(c.ofSlots[at], func(o *loan) bool { return o == k }); len(rest) > 0 {
			c.ofSlots[at] = rest
		} else {
			delete(c.ofSlots, at)
		}
	}
	c.drop(wal.KindLoan, wal.ID(k.id()))
	if k.atMostOnce() && len(k.returned) > 0 { // its callee does not say when nobody asks for the answer any more
		c.keepFloor(k.callee, at, number)
	}
	if c.lenders[k.charged]--; c.lenders[k.charged] == 0 {
		delete(c.lenders, k.charged)
	}
	if n := c.nodes[k.caller]; n != nil && n.incarnation == k.header.CallerIncarnation && k.charged == k.caller {
		c.keepOver(at, number) // what comes of it now is a late copy, which would lend or hand over what the caller has again
	}
}

// settleLoans takes a node's word that nobody asks any more for a slot's plain calls below a number.
func (c *controller) settleLoans(n *node, s rpcpacket.Slot, below rpcpacket.Number) {
	settled := slices.DeleteFunc(slices.Clone(c.ofSlots[s]), func(k *loan) bool { return k.caller != n.address || k.header.Number >= below })
	slices.SortFunc(settled, func(a, b *loan) int { return a.id().Compare(b.id()) })
	for _, k := range settled {
		c.forgetLoan(k)
	}
}

func (c *controller) sortedLoans(meant func(*loan) bool) (all []*loan) {
	for k := range maps.Values(c.loans) {
		if meant(k) {
			all = append(all, k)
		}
	}
	slices.SortFunc(all, func(a, b *loan) int { return a.id().Compare(b.id()) })
	return all
}

// loansGone follows the end of a node that is gone for good: nobody asks for the calls that it has made, or answered with regions. Those that it has
// served have lost their leases before (voidLoans).
func (c *controller) loansGone(a netip.Addr) {
	for _, k := range c.sortedLoans(func(k *loan) bool { return k.caller == a || k.charged == a }) {
		c.forgetLoan(k)
	}
	c.forgetCallee(a)
}

// voidLoans ends the leases of the calls that a node has served, of which no incarnation of it knows any more. Who has
// sent it one-ways has again what these have handed over: so this comes before the end of the node's regions.
func (c *controller) voidLoans(callee netip.Addr) {
	for _, k := range c.sortedLoans(func(k *loan) bool { return k.callee == callee && !k.over() }) {
		k.refusal = fault.New(fault.Unavailable, "call", "node %s is gone, or has lost its ledger", callee)
		if k.oneway() {
			c.submit(k.takenBack(), nil)
		}
		c.cut(k, loanVoid, func() {})
	}
}

// loansOver answers a node whose executions are to be taken back: not while calls of theirs that
// an earlier incarnation has made have leases. The callees are asked for the answers. A callee that shares the
// caller's fate learns from this that it is to be taken back.
func (c *controller) loansOver(n *node, ids []control.ExecutionID) (err error) {
	for _, id := range ids {
		k := c.loans[rpcpacket.ID(id)]
		if k == nil || k.caller != n.address || k.over() && !k.returning {
			continue
		}
		err = fault.New(fault.Overloaded, "calls", "call %s has leases still", k.id())
		if k.stage == loanOpen && c.now.Sub(k.asked) >= loanAgain {
			c.probeLoan(k)
		}
	}
	return err
}

// keepOpen writes a loan down that has leases.
func (c *controller) keepOpen(k *loan) {
	c.keepLoan(k, loanOpen, &rpcpacket.Message{Header: k.header, Lists: rpcpacket.ListsOf(k.lent...)})
}

// keepLoan writes a loan down: an open one with its regions, an answered one with those of its answer, a refused one as the
// exception.
func (c *controller) keepLoan(k *loan, stage loanStage, m *rpcpacket.Message) {
	r := wal.Record{
		Kind: wal.KindLoan, ID: wal.ID(k.id()), Time: c.now, Parent: k.header.Parent, Attempt: uint32(stage),
		Caller: wal.Node{Address: k.caller, Incarnation: k.header.CallerIncarnation}, Callee: wal.Node{Address: k.callee}, Packet: m.Append(nil),
		Data: k.charged.AsSlice(),
	}
	if k.forgotten {
		r.Order |= loanForgotten
	}
	if k.oneway() {
		r.Order |= loanOneway
	}
	c.put(r)
}

// What the Order of a loan's record says, in bits.
const (
	loanForgotten = 1
	loanOneway    = 2
)

// restoreLoan brings a loan back, with its leases if it is open.
func (c *controller) restoreLoan(r *wal.Record) error {
	m, err := rpcpacket.Parse(r.Packet)
	stage := loanStage(r.Attempt)
	if err != nil || m.Call != rpcpacket.ID(r.ID) || stage > loanDenied || stage != loanOpen && stage < loanAnswered {
		return corrupt(r, "loan %s in stage %d: %v", m.Call, stage, err)
	}
	k := &loan{header: m.Header, caller: r.Caller.Address, callee: r.Callee.Address, stage: stage, refusal: refusalOf(&m)}
	if stage == loanOpen {
		k.lent = m.Bases(c.cfg.DSMPrefix)
	} else {
		k.returned = m.Bases(c.cfg.DSMPrefix)
	}
	if k.header.Type = rpcpacket.Call; r.Order&loanOneway != 0 {
		k.header.Type = rpcpacket.Oneway
	}
	k.charged, _ = netip.AddrFromSlice(r.Data)
	c.addLoan(k)
	k.forgotten = r.Order&loanForgotten != 0 || c.nodeOrFallen(k.caller) == nil
	if stage == loanOpen {
		c.probeLater(k)
		c.leases.AddNode(k.caller)
		c.leases.AddNode(k.callee)
		c.resumeLoan(k)
	} else if k.forgotten {
		c.forgetLoan(k)
	}
	return nil
}

// resumeLoan gives a call its leases back. A one-way has none.
func (c *controller) resumeLoan(k *loan) {
	if !k.oneway() {
		c.leases.Resume(lease.Call{ID: k.id(), Parent: k.header.Parent, Caller: k.caller, Callee: k.callee, Pointers: k.lent})
	}
}
