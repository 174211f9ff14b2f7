package rpc

import (
	"context"
	"time"

	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/internal/pace"
	"github.com/bifrost-rack/bifrost/rpc/endpoint"
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
func (n *Node) takeSlot(ctx context.Context, b *opSequence, p *pending, m *method) error {
	o := &n.out
	o.mu.Lock()
	if o.err != nil {
		o.mu.Unlock()
		return o.err
	}
	taken := o.core.Take(&p.Call)
	n.wantSlots()
	o.mu.Unlock()
	if taken {
		return nil
	}
	n.stats.waited.Add(1)
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
			if n.moreSlots() {
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
func (n *Node) returnSlot(p *pending) {
	n.out.mu.Lock()
	defer n.out.mu.Unlock()
	n.out.core.Return(&p.Call)
}

// slotFree takes note that a call which has waited has a slot. Who calls it holds out.mu.
func (n *Node) slotFree(call *endpoint.Call) {
	if p := call.Tag.(*pending); p.owed != nil {
		go n.depart(p)
	} else {
		p.ready <- struct{}{} // it has room
	}
}

// wantSlots has the Gatekeeper asked for more slots if the node needs some. Who calls it holds out.mu.
func (n *Node) wantSlots() {
	if o := &n.out; !o.wants && o.core.Want() > 0 {
		o.wants = true
		n.readers.Go(n.seekSlots)
	}
}

// moreSlots reports whether the node may get more slots soon: it has asked for some, and the answer is not that there are none.
func (n *Node) moreSlots() bool {
	n.out.mu.Lock()
	defer n.out.mu.Unlock()
	return n.out.wants && !n.out.none
}

// seekSlots asks for slots until the node has enough.
func (n *Node) seekSlots() {
	o, pause := &n.out, slotPauses.First
	for {
		o.mu.Lock()
		want := o.core.Want()
		o.wants = want > 0 && o.err == nil
		goOn := o.wants
		o.mu.Unlock()
		if !goOn {
			return
		}
		blocks, err := n.session.Blocks(n.base, want)
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
		if !wait(n.base, pause) {
			return
		}
		pause = slotPauses.Next(pause)
	}
}
