package rpc

import (
	"context"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/bifrost-rack/bifrost/internal/netio"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
	"github.com/bifrost-rack/bifrost/rpc/bulk"
	"github.com/bifrost-rack/bifrost/rpc/direct"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// The switch judges calls and answers (docs/rights.md). What it does not permit comes back to its sender, with the reason:
//
//	caller ── CALL ──▶ switch     lent: it is sent again after a while
//	caller ◀─ CALL, turned ─┘     denied, gone, never begun: that is its answer
//
//	callee ── REPLY ──▶ switch    lent: the next copy of the call asks for it again
//	callee ◀─ REPLY, turned ┘     denied: the callee answers with an exception instead

// turnedBack takes a message that the switch has turned around: its source is whom it was for.
func (n *Node) turnedBack(from netip.Addr, m *rpcpacket.Message) {
	switch m.Type {
	case rpcpacket.Call, rpcpacket.Oneway, rpcpacket.Ask:
		n.notPassed(from, m)
	case rpcpacket.Reply, rpcpacket.Exception:
		if m.Turned == rpcpacket.Denied && m.Code != PermissionDenied {
			n.ledger.keepsResults(m.Call)
			n.send(netip.AddrPortFrom(from, rackaddr.PortRPC), n.deniedAnswer(m))
		}
	default:
		n.malformed(from)
	}
}

// The reasons, for people.
const (
	whyDenied = "the switch does not let the call pass: it names a region to which its caller has no right, or that is handed over already"
	whyGone   = "the node that was called is gone"
)

// notPassed takes a call, one-way or question of this node's that has not passed.
func (n *Node) notPassed(from netip.Addr, m *rpcpacket.Message) {
	n.out.mu.Lock()
	call, over := n.out.core.Turned(n.now(), m)
	if call != nil && !over {
		n.wakeAt(call.Due())
	}
	n.out.mu.Unlock()
	switch {
	case call == nil || call.Node != from.As16(): // the latter: the switch does not do that
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
		n.interrupt() // whoever waits may be reading
	}
}

// deniedAnswer is what a callee says in the place of an answer that may not hand over what it names. It is said again to each copy of the
// call.
func (n *Node) deniedAnswer(m *rpcpacket.Message) []byte {
	h := m.Header
	h.Type, h.Code, h.Turned, h.CalleeIncarnation = rpcpacket.Exception, PermissionDenied, rpcpacket.NotTurned, n.self.Incarnation
	h.Flags = rpcpacket.Flags(0).WithPolicy(m.Flags.Policy())
	const why = "the answer names a region that its node may not hand over"
	return (&rpcpacket.Message{Header: h, Payload: []byte(why)}).Append(nil)
}

// A call slot is used again only when its call is answered: until then the switch has it open. A call that nobody waits for any more is the runtime's:
// it goes on being sent until it is answered, and what its answer hands over is freed.

// orphan makes a call that is out the runtime's. The pending call is over then. The caller holds out.mu.
func (n *Node) orphan(p *pending) {
	q := n.out.pendings.Get().(*pending)
	q.detached, q.to, q.lends, q.payload, q.datagram = true, p.to, p.lends, p.payload.Hold(), slices.Clone(p.datagram)
	q.of, q.peer, q.lent = p.of, p.peer, append(q.lent, p.lent...)
	n.out.core.Orphan(&p.Call, &q.Call)
	q.Tag, q.Holds = q, p.of != nil // see hearGivenUp
	n.standIn()                     // for the answer
}

// abandon makes a call the runtime's that its caller gives up, and tells its callee so: then it does not begin any more, and the context of a handler
// of policy none ends. It reports false if the call is answered.
func (n *Node) abandon(p *pending) bool {
	o := &n.out
	o.mu.Lock()
	if o.core.Out(p.ID) != &p.Call {
		o.mu.Unlock()
		return false
	}
	if n.orphan(p); p.peer.IsValid() {
		n.large.cancel(bulk.Key{Peer: p.peer, Call: p.ID, Answer: true}) // it is asked for again
	}
	q := o.core.Out(p.ID).Tag.(*pending)
	rpcpacket.SetTimeout(q.datagram, 1)
	rpcpacket.SetGivenUp(q.datagram)
	conn, again := n.connOf(q), q.again(n.now())
	o.mu.Unlock()
	_, _ = conn.WriteBatch([]netio.Message{again}) // a failure is a loss: it is sent again
	return true
}

// unheardAnswer takes the answer to a call that nobody has waited for. What it hands over to an execution stays until that is done: if the execution is
// run again before, it may make the call, and gets the same.
func (n *Node) unheardAnswer(p *pending, m *rpcpacket.Message) {
	if p.of == nil {
		n.freeUnheard(m)
		return
	}
	l := n.ledger
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(m.Lists) > 0 && m.Type == rpcpacket.Reply {
		if l.brought == nil {
			l.brought = map[rpcpacket.ID]rpcpacket.Message{}
		}
		l.brought[p.ID] = rpcpacket.Message{Header: m.Header, Lists: m.Lists}
	}
	l.forgets.hurry(n)
}

// freeUnheard frees what an answer hands over that nobody has waited for.
func (n *Node) freeUnheard(m *rpcpacket.Message) {
	n.ledger.mu.Lock()
	defer n.ledger.mu.Unlock()
	n.ledger.freeOf(m)
}

// freeOf frees what an answer hands over. The caller holds l.mu.
func (l *ledger) freeOf(m *rpcpacket.Message) {
	if news, _ := l.node.resultsOf(m); len(news) > 0 {
		l.free(direct.Free{Regions: news})
	}
}

// resultsOf are the regions that an answer hands over: those that are news, and those that were the node's before it came. The switch says which its caller
// had, and of an answer that comes again all of them; then the node's account tells.
func (n *Node) resultsOf(m *rpcpacket.Message) (news, own [][16]byte) {
	if m.Type != rpcpacket.Reply {
		return nil, nil
	}
	for i := range m.Lists {
		for j, r := range m.Lists[i].Of() {
			p := r.Base(n.memory.Prefix())
			if m.Had>>(rpcpacket.ListRegions*i+j)&1 == 1 && n.memory.Owns(p) {
				own = append(own, p)
			} else {
				news = append(news, p)
			}
		}
	}
	return news, own
}

// ownResult is what the caller gets in the place of an answer with its own regions: it would free them, as it frees results.
func (n *Node) ownResult(m *rpcpacket.Message) rpcpacket.Message {
	h := m.Header
	h.Type, h.Code, h.Had = rpcpacket.Exception, PermissionDenied, 0
	return rpcpacket.Message{Header: h, Payload: []byte("the answer hands over a region that was its caller's already")}
}

// keepsResults notes that the switch has not let the answer to a call hand its results over.
func (l *ledger) keepsResults(call rpcpacket.ID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.table.State().Execution(call) == nil {
		return // of policy none
	}
	if l.denied == nil {
		l.denied = map[rpcpacket.ID]bool{}
	}
	l.denied[call] = true
}

// handsOver reports whether the answer to a call, which nobody asks for any more, has handed its results over, for sure: its caller has heard it, or who asks
// in its name. Of one that a former incarnation has given that is not known. The caller holds l.mu.
func (l *ledger) handsOver(call rpcpacket.ID) bool {
	denied := l.denied[call]
	delete(l.denied, call)
	e := l.table.State().Execution(call)
	if denied || e == nil || e.Done == nil {
		return false
	}
	m, err := rpcpacket.Parse(e.Done.Answer)
	return err == nil && m.CalleeIncarnation == l.node.self.Incarnation
}

// freesAtOnce is how many regions are freed at a time, and freePatience for how long one may be lent until others have their turn.
const freesAtOnce, freePatience = 16, time.Second

// freeNow frees regions, each when nobody has it lent. It may be repeated, for what it returns: that is not freed yet.
func (n *Node) freeNow(ctx context.Context, all []direct.Free) (left []direct.Free) {
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
				if n.memory.FreeOwed(ctx, p) != nil {
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
