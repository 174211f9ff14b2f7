package crash

import (
	"net/netip"
	"slices"

	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
	"github.com/bifrost-rack/bifrost/dsm/memory"
	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/join"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
	"github.com/bifrost-rack/bifrost/internal/wire"
	"github.com/bifrost-rack/bifrost/p4switch/shared/frame"
)

// Some rules have others behind them: a run that breaks one of them may come to a good end all the same. So the oracle asks while
// the rack runs, too: is a node's former incarnation cut off when the next one begins, has memory what the last checkpoint of a
// durable main says, and does a ledger change only by those who may change it?

// begun is the begin of a node's incarnation.
type begun struct {
	node        netip.Addr
	incarnation uint32
	program     *join.Identity // whose identity it is
}

// judgeIdentity asks from which blades the switch lets packets of a node in: from none while the program starts that is its next
// incarnation, and from no other blade than its own when it has joined. What a blade was told long ago does not count: another program
// may be the incarnation, or a later one, meanwhile.
func (r *Run) judgeIdentity(b begun, joined string) {
	r.mu.Lock()
	late := slices.ContainsFunc(r.incarnations, func(o begun) bool {
		return o.node == b.node && o.incarnation >= b.incarnation && o.program != b.program
	})
	r.incarnations = append(r.incarnations, b)
	r.mu.Unlock()
	if late {
		return
	}
	all, err := r.rack.Identities()
	if err != nil {
		r.ledger.complain("the identities: %v", err)
	}
	for _, blade := range all[b.node] {
		if blade != joined {
			r.ledger.complain("the next incarnation of %s begins, and the switch lets packets of the former one in from %s", b.node, blade)
		}
	}
}

// judgeIncarnations asks whether any node has ended though nothing has failed.
func (r *Run) judgeIncarnations() {
	if r.crash.hits() > 0 {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	was := map[netip.Addr]uint32{}
	for _, b := range r.incarnations {
		if first, again := was[b.node]; again && b.incarnation != first {
			r.ledger.complain("nothing has failed, and node %s has ended: incarnation %d follows %d", b.node, b.incarnation, first)
		}
		was[b.node] = b.incarnation
	}
}

// judgeFormer asks whether memory has what the last checkpoint of a durable main says, and nothing else, when its next run begins. A copy
// that cannot be heard may have more: it is filled again before it counts.
func (r *Run) judgeFormer(name string, self join.Identity) {
	if r.opt.Setting.Pairs {
		return
	}
	for _, m := range memoryBlades {
		if s := r.rack.MemoryServer(m); s != nil && s.UndoOf(self.Address) > 0 {
			r.ledger.complain("%s has begun, and %s has undo of what it did before", name, m)
		}
	}
}

// refusal is a request about a ledger that must not change it.
type refusal struct {
	server *memory.Server
	ledger control.LedgerName
	was    control.Ledger
	why    string
}

// judgeLedgers looks at a frame before it arrives. What the frame before it has asked for, if anything, is done by then.
func (c *crasher) judgeLedgers(f wire.Frame) {
	if q := c.refused; q != nil {
		c.refused = nil
		if now, there := q.server.LedgerState(q.ledger); there && now != q.was {
			c.run.ledger.complain("ledger %s has changed from %+v to %+v by a request that %s", q.ledger, q.was, now, q.why)
		}
	}
	if f.ToSwitch || kindOf(f.Host) != "memory" {
		return
	}
	u, err := frame.ParseUDP6(f.Data)
	if err != nil || u.Dst.Port() != rackaddr.PortDSM || dsmpacket.FromAddr(u.Dst.Addr()).Op() != dsmpacket.OpLedger {
		return
	}
	h, data, err := dsmpacket.Parse(u.Payload)
	if err != nil {
		return
	}
	q, err := dsmpacket.ParseLedgerRequest(dsmpacket.FromAddr(u.Dst.Addr()), &h, data)
	server := c.run.rack.MemoryServer(f.Host)
	if err != nil || q.Op.Word() || server == nil {
		return
	}
	is, there := server.LedgerState(control.LedgerName(q.Ledger))
	switch birth := server.Birth(); {
	case !there:
	case q.Birth != 0 && q.Birth != birth:
		c.refused = &refusal{server, control.LedgerName(q.Ledger), is, "names another birth number"}
	case q.Op == dsmpacket.LedgerOpen && is.Run != 0 && is.Run != q.Run && !is.Sealed:
		c.refused = &refusal{server, control.LedgerName(q.Ledger), is, "opens it while its former run is not sealed"}
	}
}
