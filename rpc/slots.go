package rpc

import (
	"context"
	"net/netip"
	"slices"
	"time"

	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/internal/netio"
	"github.com/bifrost-rack/bifrost/internal/pace"
	"github.com/bifrost-rack/bifrost/rpc/bulk"
	"github.com/bifrost-rack/bifrost/rpc/endpoint"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// Each call that is out has a call slot of the node (endpoint.Caller). The Gatekeeper gives the node its first ones when it joins, and more
// when half of them are used. Who finds none free waits for one, and holds none meanwhile.

// slotPatience is how long a call of a handler waits for a slot when the node is to have no more of them. Handlers that call each other might wait for
// each other's slots for ever, so the call fails then, before it has begun. While the Gatekeeper has not answered whether there are more, the call waits.
// A durable main, and who is no execution, waits as long as its context lasts: nobody waits for it.
const slotPatience = time.Second

// slotPauses are those between questions for more slots, while the Gatekeeper has none.
var slotPauses = pace.Pauses{First: 100 * time.Millisecond, Most: 10 * time.Second}

// takeSlot gives a call a slot. On error it has none.
func (o *outgoing) takeSlot(ctx context.Context, b *opSequence, p *pending, m *method) error {
	o.mu.Lock()
	if o.err != nil {
		o.mu.Unlock()
		return o.err
	}
	taken := o.core.Take(&p.Call)
	o.wantSlots()
	o.mu.Unlock()
	if taken {
		return nil
	}
	o.stats.waited.Add(1)
	var late <-chan time.Time
	if b != nil {
		b.e.yield()
		defer b.e.resume()
		if b.e.main == nil {
			ticker := time.NewTicker(slotPatience)
			defer ticker.Stop()
			late = ticker.C
		}
	}
	var err error
	for err == nil {
		select {
		case <-p.ready:
			return p.err
		case <-ctx.Done():
			err = fault.FromContext(m.op, ctx.Err())
		case <-late:
			if o.moreSlots() {
				continue
			}
			err = fault.New(Overloaded, m.op, "no call slot was free for %s: the node has as many calls out as it may have, or half of them to this node", slotPatience)
		}
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.core.Leave(&p.Call) {
		if <-p.ready; p.err != nil {
			return p.err
		}
		o.core.Return(&p.Call)
	}
	return err
}

// returnSlot gives the slot of a call back that does not begin.
func (o *outgoing) returnSlot(p *pending) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.core.Return(&p.Call)
}

// slotFree takes note that a call which has waited has a slot. Who calls it holds out.mu.
func (o *outgoing) slotFree(call *endpoint.Call) {
	if p := call.Tag.(*pending); p.owed != nil {
		go o.depart(p)
	} else {
		p.ready <- struct{}{} // it has room
	}
}

// wantSlots has the Gatekeeper asked for more slots if the node needs some. Who calls it holds out.mu.
func (o *outgoing) wantSlots() {
	if !o.wants && o.core.Want() > 0 {
		o.wants = true
		o.life.readers.Go(o.seekSlots)
	}
}

// moreSlots reports whether the node may get more slots soon: it has asked for some, and the answer is not that there are none.
func (o *outgoing) moreSlots() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.wants && !o.none
}

// seekSlots asks for slots until the node has enough.
func (o *outgoing) seekSlots() {
	pause := slotPauses.First
	for {
		o.mu.Lock()
		want := o.core.Want()
		o.wants = want > 0 && o.err == nil
		goOn := o.wants
		o.mu.Unlock()
		if !goOn {
			return
		}
		blocks, err := o.blocks(o.life.base, want)
		o.mu.Lock()
		news := err == nil && o.core.Grant(blocks)
		if err == nil {
			o.none = !news
		}
		o.mu.Unlock()
		if news {
			pause = slotPauses.First
			continue
		}
		if !wait(o.life.base, pause) {
			return
		}
		pause = slotPauses.Next(pause)
	}
}

// A call slot is used again only when its call is answered: until then the switch has it open. A call that nobody waits for any more is the runtime's:
// it goes on being sent until it is answered, and what its answer hands over is freed.

// orphan makes a call that is out the runtime's. The pending call is over then. The caller holds out.mu.
func (o *outgoing) orphan(p *pending) {
	q := o.pendings.Get().(*pending)
	q.detached, q.to, q.lends, q.payload, q.datagram = true, p.to, p.lends, p.payload.Hold(), slices.Clone(p.datagram)
	q.of, q.former, q.peer, q.lent = p.of, p.former, p.peer, append(q.lent, p.lent...)
	o.core.Orphan(&p.Call, &q.Call)
	q.Tag, q.Holds = q, p.of != nil // see hearGivenUp
	o.leader.standIn()              // for the answer
}

// abandon makes a call the runtime's that its caller gives up, and tells its callee so: then it does not begin any more, and the context of a handler
// of policy none ends. It reports false if the call is answered.
func (o *outgoing) abandon(p *pending) bool {
	o.mu.Lock()
	if o.core.Out(p.ID) != &p.Call {
		o.mu.Unlock()
		return false
	}
	if o.orphan(p); p.peer.IsValid() {
		o.large.cancel(bulk.Key{Peer: p.peer, Call: p.ID, Answer: true}) // it is asked for again
	}
	q := o.core.Out(p.ID).Tag.(*pending)
	rpcpacket.SetTimeout(q.datagram, 1)
	rpcpacket.SetGivenUp(q.datagram)
	conn, again := o.ports.of(q.to.Remote), q.again(o.pulse.now())
	o.mu.Unlock()
	_, _ = conn.WriteBatch([]netio.Message{again}) // a failure is a loss: it is sent again
	return true
}

// askBegun marks a call as given up, and sends a copy at once.
func (o *outgoing) askBegun(p *pending) {
	o.mu.Lock()
	if o.core.Out(p.ID) != &p.Call {
		o.mu.Unlock() // answered at the last moment
		return
	}
	p.givenUp = true
	rpcpacket.SetGivenUp(p.datagram)
	again := p.again(o.pulse.now())
	o.mu.Unlock()
	_, _ = o.ports.of(p.to.Remote).WriteBatch([]netio.Message{again}) // a failure is a loss: it is sent again
}

// hasBegun takes a callee's word that its ledger has a call which is given up.
func (o *outgoing) hasBegun(from netip.Addr, m *rpcpacket.Message) {
	o.mu.Lock()
	defer o.mu.Unlock()
	call := o.core.Out(m.Call)
	if call == nil || call.Node != from.As16() || !call.Tag.(*pending).givenUp {
		o.stats.duplicates.Add(1)
		return
	}
	p := call.Tag.(*pending)
	o.orphan(p)
	p.begun = true
	p.ready <- struct{}{} // it has room
	o.leader.interrupt()  // whoever waits may be reading
}

// unhold lets the slots of a call that was given up be used again. Until it is heard of they are not: the next incarnation asks again what the call has
// handed over.
func (o *outgoing) unhold(first rpcpacket.Slot, number rpcpacket.Number, slots int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.core.Unhold(first, number, slots)
}
