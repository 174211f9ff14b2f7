package gatekeeper

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// Open call slots, for people: the calls and standing leases that the switch knows of, whatever nodes tell.

// SlotState is an open call slot: the first one of a call, or a standing lease.
type SlotState struct {
	Slot   rpcpacket.Slot
	Number rpcpacket.Number
	// Caller owns what is lent, Callee reads it.
	Caller, Callee netip.Addr
	Regions        []string
	// Call is its id, if its callee has told of it.
	Call string
	// Children is how many open slots lend on from it.
	Children int
	// Standing: it is a standing lease; Step is how far that has come, Since when it was asked for. Oneway: its regions are the callee's already.
	Standing bool
	Step     string
	Since    time.Time
	Oneway   bool
}

// SlotQuery selects open slots.
type SlotQuery struct {
	Node     netip.Addr     // the caller, or the callee
	Standing bool           // only standing leases
	After    rpcpacket.Slot // where the page before has ended
	Limit    int            // at least 1
}

// SlotPage is a page of open call slots, by slot.
type SlotPage struct {
	Slots []SlotState
	More  bool // others follow
	// Missing is "switch" if the switch has not told of all slots, else empty.
	Missing []string
}

// Slots returns a page of open call slots, as the switch has them now.
func (g *Gatekeeper) Slots(ctx context.Context, q SlotQuery) (page SlotPage, err error) {
	if err := g.survey(ctx); err != nil {
		return page, err
	}
	err = g.do(ctx, func() {
		page.Slots, page.More = g.ctl.openSlots(&q)
		page.Missing = g.ctl.unread()
	})
	return page, err
}

func (c *controller) openSlots(q *SlotQuery) (page []SlotState, more bool) {
	at := map[rpcpacket.Slot]int{} // of the first slot of the call, in page
	for _, k := range c.surveys.last.open {
		first := k.slot - rpcpacket.Slot(k.place)
		if i, is := at[first]; is {
			page[i].Regions, page[i].Children = append(page[i].Regions, c.prefixes(k)...), page[i].Children+int(k.children)
			continue
		}
		s := c.slotState(k)
		if k.place != 0 || k.slot <= q.After || q.Standing && !k.standing || q.Node.IsValid() && s.Caller != q.Node && s.Callee != q.Node {
			continue
		}
		if len(page) == q.Limit {
			return page, true
		}
		at[k.slot] = len(page)
		page = append(page, s)
	}
	return page, false
}

func (c *controller) slotState(k slotCell) SlotState {
	s := SlotState{
		Slot: k.slot, Number: k.number, Caller: c.rows.of[k.caller], Callee: c.rows.of[k.callee], Regions: c.prefixes(k), Children: int(k.children), Standing: k.standing, Oneway: k.given,
	}
	if id := c.surveys.last.calls[rpcpacket.Ref{Slot: k.slot, Number: k.number}]; !id.IsZero() {
		s.Call = id.String()
	}
	if x := c.leases.at[k.slot]; k.standing && x != nil && x.number == k.number {
		s.Step, s.Since = x.step.String(), x.since
	}
	return s
}

// prefixes are the regions of a slot.
func (c *controller) prefixes(k slotCell) (all []string) {
	for _, id := range k.regions {
		all = append(all, c.baseOf(id).String())
	}
	return all
}

// CancelSlot ends what has a call slot open: a standing lease, or a call that nobody else would end. It returns a lease's state when the end has begun. A call fails: its caller gets Unavailable, its callee
// may not answer any more. Its callee must not know it: that of one which it runs is CancelCall's to end, since a READ of it may be on its way
// to memory, where it would arrive when the caller writes. So it is looked at twice, so long after each other that the callee has told what it runs.
//
// NotFound: the slot is not open. Unsupported: a one-way, whose regions are its receiver's. Unavailable: the callee is to come back, and will answer, or the switch does not tell of the slot. BadRequest: the callee runs the call, or others
// lend on from it, which end first; the message says which.
func (g *Gatekeeper) CancelSlot(ctx context.Context, slot rpcpacket.Slot) (SlotState, error) {
	s, err := g.cancelable(ctx, slot)
	if err != nil || s.Standing {
		return s, err
	}
	select {
	case <-time.After(cancelWait):
	case <-ctx.Done():
		return s, fault.FromContext("cancel", ctx.Err())
	}
	again, err := g.cancelable(ctx, slot)
	switch {
	case err != nil:
		return s, err
	case again.Number != s.Number:
		return s, fault.New(fault.NotFound, "cancel", "the call in slot %d has ended, and another one is there", slot)
	}
	g.cfg.Logger.Info("operator", "action", "cancel", "slot", slot, "number", s.Number, "caller", s.Caller, "callee", s.Callee)
	outcome, err := g.handles(ctx, "cancel", handOp{kind: handFail, slot: uint32(slot), number: s.Number})
	if outcome == handHasChildren {
		return s, fault.New(fault.Overloaded, "cancel", "others lend on from slot %d by now: bifrost slots tells which, and they end first", slot)
	}
	return s, err
}

// handles has the hand do one operation for an operator.
func (g *Gatekeeper) handles(ctx context.Context, what string, op handOp) (outcome handOutcome, err error) {
	s := &single{op: op, over: make(chan handOutcome, 1)}
	if err := g.do(ctx, func() {
		g.ctl.hand.begin(s)
		g.ctl.reach()
	}); err != nil {
		return 0, err
	}
	select {
	case outcome = <-s.over:
		return outcome, nil
	case <-g.stopped:
		return 0, ErrStopped
	case <-ctx.Done():
		_ = g.do(context.WithoutCancel(ctx), func() { g.ctl.hand.end(s) })
		return 0, fault.FromContext(what, ctx.Err())
	}
}

// cancelWait is longer than a node takes to tell that it runs a call.
const cancelWait = 2 * time.Second

// cancelable looks at an open slot, and reports why it cannot be ended. Of a standing lease the end begins.
func (g *Gatekeeper) cancelable(ctx context.Context, slot rpcpacket.Slot) (s SlotState, err error) {
	if err := g.survey(ctx); err != nil {
		return s, err
	}
	err = g.query(ctx, func(c *controller) error {
		open := c.surveys.last.open
		i := slices.IndexFunc(open, func(k slotCell) bool { return k.slot == slot && k.place == 0 })
		switch {
		case i < 0 && len(c.unread()) > 0:
			return fault.New(fault.Unavailable, "cancel", "the switch has not told of all slots: try again later")
		case i < 0:
			return fault.New(fault.NotFound, "cancel", "no call or standing lease has slot %d open", slot)
		}
		s = c.slotState(open[i])
		switch x := c.leases.at[slot]; {
		case s.Standing && x == nil:
			return fault.New(fault.Internal, "cancel", "the standing lease in slot %d is on no record", slot)
		case s.Standing:
			c.logger.Info("operator", "action", "end a standing lease", "slot", slot, "owner", s.Caller, "reader", s.Callee)
			c.leases.end(x)
			s.Step = x.step.String()
			c.goOnLeases()
			return nil
		case s.Oneway:
			return fault.New(fault.Unsupported, "cancel", "slot %d is that of a one-way: its regions are node %s's, and its acknowledgement is on its way", slot, s.Callee)
		case s.Call != "":
			return fault.New(fault.BadRequest, "cancel", "node %s runs the call in slot %d: bifrost cancel %s ends its handler", s.Callee, slot, s.Call)
		case c.nodes[s.Callee] == nil && c.fallen[s.Callee] != nil:
			return fault.New(fault.Unavailable, "cancel", "node %s has failed: its next incarnation answers the call in slot %d, or it fails when the node is gone for good (bifrost forget)", s.Callee, slot)
		case c.told.nodes[s.Callee] != nil && c.told.nodes[s.Callee].more > 0:
			return fault.New(fault.Overloaded, "cancel", "node %s has more calls under way than it tells of, and the one in slot %d may be one of them: try again later", s.Callee, slot)
		}
		var leaves []string
		for _, k := range open {
			if k.lender == s.Number && k.parent >= slot && k.parent < slot+rpcpacket.Slot(open[i].length) {
				leaves = append(leaves, fmt.Sprint(k.slot-rpcpacket.Slot(k.place)))
			}
		}
		if len(leaves) > 0 {
			return fault.New(fault.BadRequest, "cancel", "what the call in slot %d was lent is lent on by slot %s: that ends first", slot, strings.Join(leaves, ", "))
		}
		return nil
	})
	return s, err
}

// single is a job of one operation, which somebody waits for.
type single struct {
	op   handOp
	told bool
	over chan handOutcome // has room for one
}

func (s *single) next() (handOp, bool) {
	if s.told {
		return handOp{}, false
	}
	s.told = true
	return s.op, true
}

func (s *single) took(_ handOp, a *handAnswer) { s.over <- a.outcome }
