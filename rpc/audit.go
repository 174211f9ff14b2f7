package rpc

import (
	"context"
	"maps"
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
//	     calls that are out now come to their ends ─▶ what has not been in the account since the question is freed
//
// What one of those calls has brought is in the account when it is over (regions.come). A callee that has no room to keep an answer of policy none looks, too,
// when it is asked for that: the answer may not have passed.

// audit is when the node looks for such results.
type audit struct {
	mu     sync.Mutex
	wanted bool
	under  bool // it is under way, or about to be
}

// auditPauses are those before the node looks once more: the first one gathers the calls to a node that has gone.
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
		switch err := n.freeUnheardResults(n.life.base); {
		case fault.CodeOf(err) == fault.Stale: // a Gatekeeper of an earlier release
			return
		case err != nil && n.life.base.Err() == nil:
			n.log.Warn("rpc: the node is not told what it owns", "node", n.self.Name, "err", err)
			a.mu.Lock()
			a.wanted = true
			a.mu.Unlock()
		}
	}
}

// freeUnheardResults frees what the node owns and nothing explains. What it has known since before it asks is explained: it may have been handed over since, and
// be on its way back. What it has freed may be listed still, as long as its slot has no other region.
func (n *Node) freeUnheardResults(ctx context.Context) error {
	neverOwned := n.memory.Watch()
	known := n.handsOver()
	h, err := n.session.Holdings(ctx, true)
	out, pause := n.out.all(), time.Duration(0)
	for err == nil && slices.ContainsFunc(out, n.out.isOut) {
		pause = outPauses.Next(pause)
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			err = ctx.Err()
		}
	}
	listed := make([]dsm.Pointer, len(h.Regions))
	for i, a := range h.Regions {
		listed[i] = a.As16()
	}
	left := neverOwned(listed)
	if err != nil {
		return err
	}
	maps.Copy(known, n.handsOver())
	var all [][16]byte
	for _, p := range left {
		if !known[p] {
			all = append(all, p)
		}
	}
	b := n.ledger.lock()
	defer b.unlock()
	b.freeAll(all)
	return nil
}

// handsOver are the regions that answers and one-ways hand over which may not have passed.
func (n *Node) handsOver() map[dsm.Pointer]bool {
	a, all := n.account(), map[dsm.Pointer]bool{}
	for i := range a.Given {
		all[a.Given[i].Region.Base(n.memory.Prefix())] = true
	}
	for i := range a.Calls {
		for j := range a.Calls[i].Lists {
			for _, r := range a.Calls[i].Lists[j].Regions {
				all[r.Base(n.memory.Prefix())] = true
			}
		}
	}
	return all
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
