package rpc

import (
	"context"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/bifrost-rack/bifrost/dsm"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
	"github.com/bifrost-rack/bifrost/rpc/direct"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// The switch judges calls and answers (docs/rights.md). What it does not permit comes back to its sender, with the reason:
//
//	caller ── CALL ──▶ switch     lent: it is sent again after a while
//	caller ◀─ CALL, turned ─┘     denied, gone, never begun: that is its answer
//
//	callee ── REPLY ──▶ switch    lent: the next copy of the call asks for it again
//	callee ◀─ REPLY, turned ┘     denied: the callee answers with an exception instead. Its account was wrong: what is not the node's is no result (export.check)

// turnedBack takes a message that the switch has turned around: its source is whom it was for.
func (n *Node) turnedBack(from netip.Addr, m *rpcpacket.Message) {
	switch m.Type {
	case rpcpacket.Call, rpcpacket.Oneway, rpcpacket.Ask:
		n.notPassed(from, m)
	case rpcpacket.Reply, rpcpacket.Exception:
		if m.Turned == rpcpacket.Denied && m.Code != PermissionDenied {
			n.ledger.keepsResults(m.Call)
			n.ports.send(netip.AddrPortFrom(from, rackaddr.PortRPC), n.ports.deniedAnswer(m))
		}
	default:
		n.stats.countMalformed(from)
	}
}

// The reasons, for people.
const (
	whyDenied = "the switch does not let the call pass: it names a region to which its caller has no right, or that is handed over already"
	whyGone   = "the node that was called is gone"
)

// notPassed takes a call, one-way or question of this node's that has not passed.
func (n *Node) notPassed(from netip.Addr, m *rpcpacket.Message) {
	call, over := n.out.turned(from, m)
	switch {
	case call == nil:
		n.stats.duplicates.Add(1)
		return
	case !over:
		return
	}
	h := m.Header
	h.Type, h.Turned, h.Flags, h.CalleeIncarnation = rpcpacket.Exception, rpcpacket.NotTurned, rpcpacket.FlagUnbegun.WithPolicy(m.Flags.Policy()), 0
	why := whyGone
	switch m.Turned {
	case rpcpacket.Denied:
		h.Code, why = PermissionDenied, whyDenied
	case rpcpacket.NeverBegun:
		h.Code = Unavailable
	default:
		h.Code = Unavailable
		h.Flags &^= rpcpacket.FlagUnbegun
	}
	if n.deliver(call, nil, rpcpacket.Message{Header: h, Payload: []byte(why)}) {
		n.leader.interrupt() // whoever waits may be reading
	}
}

// unheardAnswer takes the answer to a call that nobody has waited for. What it hands over to an execution stays until that is done: if the execution is
// run again before, it may make the call, and gets the same. A one-way that nobody takes gives back what it was to hand over.
func (n *Node) unheardAnswer(p *pending, m *rpcpacket.Message) {
	if p.of == nil {
		b := n.ledger.lock()
		b.freeOf(m)
		if m.Type == rpcpacket.Exception {
			b.freeAll(slices.Clone(p.hands)) // p is used again
		}
		b.unlock()
		return
	}
	l := n.ledger
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(m.Lists) > 0 {
		if l.brought == nil {
			l.brought = map[rpcpacket.ID]rpcpacket.Message{}
		}
		l.brought[p.ID] = rpcpacket.Message{Header: m.Header, Lists: m.Lists}
	}
	l.forgets.hurry(n)
}

// freeUnheard frees what an answer hands over that nobody has waited for.
func (n *Node) freeUnheard(m *rpcpacket.Message) {
	b := n.ledger.lock()
	defer b.unlock()
	b.freeOf(m)
}

// freeOf frees what an answer hands over.
func (l lockedLedger) freeOf(m *rpcpacket.Message) {
	news, _ := l.node.regions.handedOver(m)
	l.freeAll(news)
}

// freeAll frees regions that nobody knows.
func (l lockedLedger) freeAll(all [][16]byte) {
	if len(all) > 0 {
		l.free(direct.Free{Regions: all})
	}
}

// come notes in the node's account what an answer hands over, in the moment in which its call is over. The switch says which of them its caller had, and
// of an answer that comes again all of them; then the account tells, and the message says so from now on. An answer that is too long to be taken has handed
// them over, too, though an exception stands in its place. An exception to a one-way gives back what that was to hand over.
func (r *regions) come(p *pending, m *rpcpacket.Message) {
	if m.Type == rpcpacket.Exception {
		r.stay(p)
	}
	for i := range m.Lists {
		for j, region := range m.Lists[i].Of() {
			if p := region.Base(r.memory.Prefix()); !r.memory.Owns(p) {
				m.Had &^= 1 << (rpcpacket.ListRegions*i + j)
				r.memory.Received(p)
			}
		}
	}
}

// handedOver are the regions that an answer hands over: those that are news, and those that were the node's before it came.
func (r *regions) handedOver(m *rpcpacket.Message) (news, own [][16]byte) {
	for i := range m.Lists {
		for j, region := range m.Lists[i].Of() {
			if p := region.Base(r.memory.Prefix()); m.Had>>(rpcpacket.ListRegions*i+j)&1 == 1 {
				own = append(own, p)
			} else {
				news = append(news, p)
			}
		}
	}
	return news, own
}

// stay notes in the node's account that a one-way has handed nothing over.
func (r *regions) stay(p *pending) {
	for _, region := range p.hands {
		r.memory.Received(region)
	}
}

// leave notes in the node's account that a one-way hands regions over, in the moment in which it leaves, and adds those that were the node's.
func (r *regions) leave(were [][16]byte, all []dsm.Pointer) [][16]byte {
	for _, p := range all {
		if r.memory.Owns(p) {
			were = append(were, p.Base())
			r.memory.Gave(p)
		}
	}
	return were
}

// ownResult is what the caller gets in the place of an answer with its own regions: it would free them, as it frees results.
func ownResult(m *rpcpacket.Message) rpcpacket.Message {
	h := m.Header
	h.Type, h.Code, h.Had = rpcpacket.Exception, PermissionDenied, 0
	return rpcpacket.Message{Header: h, Payload: []byte("the answer hands over a region that was its caller's already")}
}

// keepsResults notes, until they are freed, that the switch has not let the answer to a call hand its results over.
func (l *ledger) keepsResults(call rpcpacket.ID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if e := l.table.State().Execution(call); e == nil || len(e.Owed().Rest) == 0 {
		return // the call is of policy none, or the results are not its execution's
	}
	if l.denied == nil {
		l.denied = map[rpcpacket.ID]bool{}
	}
	l.denied[call] = true
}

// handsOver reports whether the answer to a call, which nobody asks for any more, has handed its results over, for sure: its caller has heard it, or who asks
// in its name. Of one that a former incarnation has given that is not known.
func (l lockedLedger) handsOver(call rpcpacket.ID) bool {
	e := l.table.State().Execution(call)
	if l.denied[call] || e == nil || e.Done == nil {
		return false
	}
	m, err := rpcpacket.Parse(e.Done.Answer)
	return err == nil && m.CalleeIncarnation == l.node.self.Incarnation
}

// freesAtOnce is how many regions are freed at a time, and freePatience for how long one may be lent until others have their turn.
const freesAtOnce, freePatience = 16, time.Second

// free frees regions, each when nobody has it lent. It may be repeated, for what it returns: that is not freed yet.
func (r *regions) free(ctx context.Context, all []direct.Free) (left []direct.Free) {
	ctx, cancel := context.WithTimeout(ctx, freePatience)
	defer cancel()
	failed := make([]atomic.Bool, len(all))
	var group sync.WaitGroup
	turns := make(chan struct{}, freesAtOnce)
	for i := range all {
		for _, p := range all[i].Regions {
			turns <- struct{}{}
			group.Go(func() {
				defer func() { <-turns }()
				if r.memory.FreeOwed(ctx, p) != nil {
					failed[i].Store(true)
				}
			})
		}
	}
	group.Wait()
	for i := range all {
		if failed[i].Load() {
			left = append(left, all[i])
		}
	}
	return left
}
