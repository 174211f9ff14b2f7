package rpc

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/bifrost-rack/bifrost/dsm"
	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/internal/pace"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// Who is told that a call is unavailable, though it has reached its callee, may own results that it never heard of: the switch has let the answer
// pass, it was lost, and its callee knows the call no more. The Gatekeeper tells which regions the node owns, and what nothing explains goes
// (docs/rights.md, section 5):
//
//	node ── what do I own? ──▶ Gatekeeper ── words, then slots ──▶ switch
//	node ◀── regions ──────────────┘
//	     calls that are out now come to their ends ─▶ what is not in the account is freed
//
// What one of those calls has brought is in the account when it is over (regions.come). A callee that has no room to keep an answer of policy none looks, too,
// when it is asked for that: the answer may not have passed.

// audit is when the node looks for such results.
type audit struct {
	mu     sync.Mutex
	wanted bool
	under  bool // it is under way, or about to be
}

// auditPauses are those before the node looks once more: the first one gathers the calls to a node that has gone. They grow as long as it finds nothing.
var auditPauses = pace.Pauses{First: time.Second, Most: time.Minute}

// outPauses are those between two looks at whether calls are still out, which may be so for hours.
var outPauses = pace.Pauses{First: heardAgain, Most: 5 * time.Second}

// mayHaveBrought reports whether a call may have handed regions over to this node though its answer, or that to a question about it, says otherwise.
func mayHaveBrought(m *rpcpacket.Message, asked bool) bool {
	return m.Type == rpcpacket.Exception && m.Code == Unavailable && (asked || m.Flags&rpcpacket.FlagUnbegun == 0)
}

// want has the node look soon. It does not wait.
func (a *audit) want(n *Node) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.wanted = true
	if !a.under && n.self.Row != 0 && n.life.enter() {
		a.under = true
		go a.run(n)
	}
}

// next reports whether to look now.
func (a *audit) next() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.under, a.wanted = a.wanted, false
	return a.under
}

// run looks as long as that is wanted, and the node is one.
func (a *audit) run(n *Node) {
	defer n.life.readers.Done()
	for pause := auditPauses.First; ; pause = auditPauses.Next(pause) {
		select {
		case <-time.After(pause):
		case <-n.life.base.Done():
			return
		}
		if !a.next() {
			return
		}
		switch found, err := n.findUnheard(n.life.base); {
		case err == nil && found > 0:
			n.log.Info("rpc: the node owned results of calls whose answers were lost: they are freed", "node", n.self.Name, "regions", found)
			pause = 0
		case fault.CodeOf(err) == fault.Stale: // a Gatekeeper of an earlier release
			return
		case err != nil && !errors.Is(err, context.Canceled):
			n.log.Warn("rpc: the node is not told what it owns", "node", n.self.Name, "err", err)
			a.mu.Lock()
			a.wanted = true
			a.mu.Unlock()
		}
	}
}

// findUnheard frees what the node owns and nothing explains. It returns how many regions that are.
func (n *Node) findUnheard(ctx context.Context) (found int, err error) {
	h, err := n.session.Holdings(ctx, true)
	if err != nil {
		return 0, err
	}
	left := map[dsm.Pointer]bool{}
	for _, a := range h.Regions {
		left[a.As16()] = true
	}
	out, pause := n.out.all(), time.Duration(0)
	for n.explained(left); len(left) > 0 && slices.ContainsFunc(out, n.out.isOut); {
		pause = outPauses.Next(pause)
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return 0, ctx.Err()
		}
	}
	for range 2 { // what goes from one place to another while the first account is made is in the second one
		n.explained(left)
	}
	all := make([][16]byte, 0, len(left))
	for p := range left {
		all = append(all, p)
	}
	slices.SortFunc(all, compareNodes)
	b := n.ledger.lock()
	defer b.unlock()
	b.freeAll(all)
	return len(all), nil
}

// explained takes out of some regions what the node knows of: its own, and what its answers and one-ways hand over.
func (n *Node) explained(left map[dsm.Pointer]bool) {
	if len(left) == 0 {
		return
	}
	a := n.account()
	known := func(all []rpcpacket.Region) {
		for _, r := range all {
			delete(left, r.Base(n.memory.Prefix()))
		}
	}
	known(a.Regions)
	for i := range a.Given {
		known([]rpcpacket.Region{a.Given[i].Region})
	}
	for i := range a.Calls {
		for j := range a.Calls[i].Lists {
			known(a.Calls[i].Lists[j].Regions)
		}
	}
}

// attempt names a call that is out: another one under the same id has another number.
type attempt struct {
	rpcpacket.Slot
	rpcpacket.Number
	id rpcpacket.ID
}

// all are the calls and questions that are out.
func (o *outgoing) all() (all []attempt) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, k := range o.core.All(nil) {
		all = append(all, attempt{k.Slot, k.Number, k.ID})
	}
	return all
}

// isOut reports whether such a one still is.
func (o *outgoing) isOut(a attempt) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	k := o.core.Out(a.id)
	return k != nil && k.Slot == a.Slot && k.Number == a.Number
}
