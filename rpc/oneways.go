package rpc

import (
	"context"
	"log/slog"
	"net/netip"
	"time"

	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/internal/netio"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
	"github.com/bifrost-rack/bifrost/rpc/direct"
	"github.com/bifrost-rack/bifrost/rpc/record"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// A one-way that an execution or a durable main has sent is in its node's ledger until a node has taken it:
//
//	done, or a checkpoint, settled ─▶ ONEWAY ─▶ acknowledged ─▶ delivered, on record ─▶ its slots are free again
//	                                     │ refused for good ─▶ another node, or nobody: what it hands over is freed

// oneways sends the one-ways that the ledger has.
type oneways struct {
	ledger    *ledger
	out       *outgoing
	questions *questions
	servers   *servers
	regions   *regions
	life      *lifetime
	pulse     *pulse
	log       *slog.Logger
	service   func(ctx context.Context, name string) (control.ServiceInfo, error) // what the rack knows of a service
}

// send sends one-ways that the ledger has, until they are acknowledged.
func (o *oneways) send(all []record.Oneway) {
	for i := range all {
		o.sendOne(&all[i])
	}
}

// sendOne sends a one-way as soon as there is a call slot for it.
func (o *oneways) sendOne(w *record.Oneway) {
	m, err := rpcpacket.Parse(w.Message)
	if err != nil {
		o.log.Error("rpc: the ledger has a one-way that is no message", "call", w.ID.String(), "err", err)
		return
	}
	if q := o.questions.openTo(w.Node); q != nil {
		go o.sendAfter(q, w) // which looks again whether there is another one
		return
	}
	p := o.out.pendings.Get().(*pending)
	p.RTT, p.detached, p.ID, p.Node, p.Slots, p.owed = &o.out.oneway, true, w.ID, w.Node, len(m.Lists), &m
	p.lends = len(m.Lists) > 0
	p.Holds = p.lends // until the ledger says what has become of it
	p.to = netio.Message{Remote: netip.AddrPortFrom(netip.AddrFrom16(w.Node), rackaddr.PortDirect)}
	p.moves = control.Serving{Service: string(w.Service), Method: string(w.Method)}
	o.regions.memory.Gave(o.regions.of(&m)...)
	o.out.departLater(p)
}

// sendAfter sends a one-way when a question is answered, unless that has told that it was delivered.
func (o *oneways) sendAfter(q *heldCall, w *record.Oneway) {
	if o.life.await(o.life.base, q.over) != nil {
		return
	}
	l := o.ledger
	l.mu.Lock()
	owed := l.table.Again(w.Node, w.ID)
	next := l.table.Next()
	l.mu.Unlock()
	if owed {
		o.send(next)
	}
}

// departed is a one-way that the ledger has, and that has left.
type departed struct {
	direct.Item
	node  [16]byte        // that it went to
	may   control.Serving // who may take it
	hands [][16]byte      // the regions that it hands over
	slots int             // how many it has
}

// answered takes what has become of a one-way that the ledger has. It reports false if the
// one-way has failed for good.
func (o *oneways) answered(p *pending, m *rpcpacket.Message) bool {
	w := departed{Item: p.item(), node: p.Node, may: p.moves, slots: p.Slots}
	if p.lends && m.Type == rpcpacket.Exception {
		if sent, err := rpcpacket.Parse(p.datagram); err == nil {
			for _, region := range o.regions.of(&sent) {
				w.hands = append(w.hands, region)
			}
		}
	}
	switch {
	case m.Type != rpcpacket.Exception:
		o.delivered(w)
	case m.Refuses():
		go o.redirect(w)
		return true
	case len(w.hands) > 0:
		go o.undelivered(w)
	default:
		o.delivered(w)
	}
	return m.Type != rpcpacket.Exception
}

// delivered notes that a one-way is not to be sent any more, and sends those that have waited for it.
func (o *oneways) delivered(w departed) {
	l := o.ledger
	b := l.lock()
	b.add(l.table.Delivered(w.node, w.Item)...)
	b.tookAll()
	last, next := l.last, l.table.Next()
	b.unlock()
	o.send(next)
	o.onRecord(w, last)
}

// onRecord lets the slots of a one-way be used again when the ledger says what has become of it, by a record with a number.
func (o *oneways) onRecord(w departed, last uint64) {
	if w.Slot == 0 {
		return
	}
	go func() {
		if o.ledger.settle(last) {
			o.out.unhold(w.Slot, w.Number, w.slots)
		}
	}()
}

// undelivered notes that nobody takes a one-way. What it was to hand over goes first: its execution does not know it any
// more.
func (o *oneways) undelivered(w departed) {
	if len(w.hands) > 0 {
		for len(o.regions.free(o.life.base, []direct.Free{{Regions: w.hands}})) > 0 {
			select {
			case <-time.After(freesAgain):
			case <-o.life.base.Done():
				return // the next incarnation sends it again
			}
		}
	}
	o.delivered(w)
}

// redirect chooses another node for a one-way whose node has refused it for good, or has left
// without it. It goes on until there is one, unless nobody serves the one-way any more.
func (o *oneways) redirect(w departed) {
	o.servers.refuse(w.may, netip.AddrFrom16(w.node), o.pulse.now())
	for o.life.base.Err() == nil {
		to, err := o.servers.find(o.life.base, w.may)
		if err == nil {
			to.over()
			o.sendTo(w, to.node)
			return
		}
		if _, err := o.service(o.life.base, w.may.Service); fault.CodeOf(err) == fault.NotFound {
			o.log.Warn("rpc: nobody serves a one-way any more", "node", o.life.name, "call", w.ID.String(), "service", w.may.Service)
			o.onRecord(w, 0)
			w.Item = direct.Item{ID: w.ID}
			o.undelivered(w)
			return
		}
		select {
		case <-time.After(servingLifetime):
		case <-o.life.base.Done():
		}
	}
}

// sendTo sends a one-way to a node, which may be the one that has refused it.
func (o *oneways) sendTo(w departed, to netip.Addr) {
	l := o.ledger
	b := l.lock()
	if to.As16() == w.node {
		l.table.Again(w.node, w.ID)
	} else {
		b.add(l.table.Moves(w.node, w.ID, to.As16())...)
	}
	last, next := l.last, l.table.Next()
	b.unlock()
	if l.settle(last) {
		o.onRecord(w, last)
		o.send(next)
	}
}
