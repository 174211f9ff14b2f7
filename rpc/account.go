package rpc

import (
	"net/netip"
	"slices"

	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/join"
	"github.com/bifrost-rack/bifrost/rpc/record"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// The switch's machine may come back with empty registers (docs/rights.md, section 8). Nothing passes then. The Gatekeeper asks each node for its
// account, from which it rebuilds them:
//
//	Gatekeeper ── give account ──▶ daemon ──▶ program ── account, page by page ──▶ Gatekeeper

// giveAccounts has the node give its account when it is asked.
func (n *Node) giveAccounts() {
	s, ok := n.session.(join.Accountant)
	if !ok {
		return
	}
	s.OnAccount(func(rebuild uint64) {
		go func() {
			a := n.account()
			for _, p := range a.Pages() {
				p.Rebuild = rebuild
				if err := s.Account(n.life.base, p); err != nil {
					n.log.Error("rpc: the node could not say what rights it has", "node", n.self.Name, "err", err)
					return
				}
			}
		}()
	})
}

// account is what the node knows of its rights. It is not one moment: nothing passes the switch meanwhile. The node's regions come first, so that
// one which the program hands over meanwhile is at worst named twice.
func (n *Node) account() control.Account {
	var a control.Account
	for _, p := range n.memory.Account() {
		a.Regions = append(a.Regions, rpcpacket.RegionOf(p))
	}
	n.out.account(&a)
	n.accountOfTaken(&a)
	for _, q := range n.questions.all {
		if !q.isOver() {
			a.Asked = append(a.Asked, control.Attempt{Slot: q.held.Slot, Number: q.held.Number})
		}
	}
	return a
}

// account adds what the node has called.
func (o *outgoing) account(a *control.Account) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.core.Used(func(s rpcpacket.Slot, number rpcpacket.Number) {
		a.Last = append(a.Last, control.Attempt{Slot: s, Number: number})
	})
	for _, call := range o.core.All(nil) {
		p, is := call.Tag.(*pending)
		if !is || call.Number.Incarnation() != o.self.Incarnation { // the latter is a question
			continue
		}
		m, err := rpcpacket.Parse(p.datagram)
		if err != nil {
			continue
		}
		at := control.Attempt{Slot: call.Slot, Number: call.Number}
		k := control.OpenCall{Attempt: at, Call: call.ID.String(), Callee: netip.AddrFrom16(call.Node), Slots: call.Slots, Oneway: m.Type == rpcpacket.Oneway}
		for i := range m.Lists {
			l := &m.Lists[i]
			k.Lists = append(k.Lists, control.CallList{Regions: slices.Clone(l.Of()), By: control.Attempt{Slot: l.Parent.Slot, Number: l.Parent.Number}})
		}
		a.Calls = append(a.Calls, k)
	}
}

// accountOfTaken adds what others have called, and what the answers to that and one-ways of executions have handed over.
func (n *Node) accountOfTaken(a *control.Account) {
	l := n.ledger
	taken := func(at record.Place, number rpcpacket.Number, id rpcpacket.ID) control.TakenCall {
		return control.TakenCall{Attempt: control.Attempt{Slot: at.Slot, Number: number}, Call: id.String(), Caller: netip.AddrFrom16(at.Caller)}
	}
	l.mu.Lock()
	l.table.Known(func(at record.Place, number rpcpacket.Number, id rpcpacket.ID, e *record.Execution) {
		k := taken(at, number, id)
		switch running := n.reports.underWay(id); {
		case e != nil && e.Done != nil:
			k.Over = true
			givesAnswer(a, e.Done.Answer, at.Caller)
		case running != nil:
			k.Regions = listed(&running.call)
		case e != nil && e.Begun != nil:
			if m, err := rpcpacket.Parse(e.Begun.Call); err == nil {
				k.Regions = listed(&m)
			}
		}
		a.Taken = append(a.Taken, k)
	})
	l.table.State().Each(func(e *record.Execution) {
		o := e.Owed()
		for i := range o.Oneways {
			if m, err := rpcpacket.Parse(o.Oneways[i].Message); err == nil {
				gives(a, listed(&m), o.Oneways[i].Node)
			}
		}
	})
	l.mu.Unlock()
	n.in.mu.Lock()
	defer n.in.mu.Unlock()
	n.in.core.Known(func(at record.Place, number rpcpacket.Number, id rpcpacket.ID, tag any, reply []byte) {
		k := taken(at, number, id)
		if e, running := tag.(*execution); running {
			k.Regions = listed(&e.call)
		} else {
			k.Over = true
		}
		givesAnswer(a, reply, at.Caller)
		a.Taken = append(a.Taken, k)
	})
}

// listed are the regions that a message names.
func listed(m *rpcpacket.Message) (all []rpcpacket.Region) {
	for i := range m.Lists {
		all = append(all, m.Lists[i].Of()...)
	}
	return all
}

// givesAnswer notes that an answer hands regions over.
func givesAnswer(a *control.Account, answer []byte, to [16]byte) {
	if m, err := rpcpacket.Parse(answer); err == nil && m.Type == rpcpacket.Reply {
		gives(a, listed(&m), to)
	}
}

func gives(a *control.Account, all []rpcpacket.Region, to [16]byte) {
	for _, r := range all {
		a.Given = append(a.Given, control.GivenRegion{Region: r, To: netip.AddrFrom16(to)})
	}
}

// received notes that a one-way has brought the node regions.
func (r *regions) received(m *rpcpacket.Message) {
	if m.Type == rpcpacket.Oneway {
		r.memory.Received(r.of(m)...)
	}
}

// notReceived takes that back: the one-way is refused.
func (r *regions) notReceived(m *rpcpacket.Message) {
	if m.Type == rpcpacket.Oneway {
		r.memory.Gave(r.of(m)...)
	}
}
