package failure

import (
	"fmt"
	"time"

	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
	"github.com/bifrost-rack/bifrost/internal/wire"
	"github.com/bifrost-rack/bifrost/p4switch/shared/frame"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// sight is what a packet shows. Each is told once: copies show the same.
type sight struct {
	what        string
	blade       string
	call        [16]byte
	incarnation uint32 // of the caller; of a rollback which run is taken back
}

// see tells what a packet that is about to arrive shows of the story: direct calls and rollbacks need no word of the
// Gatekeeper, so its events do not tell of them.
func (c *chronicle) see(f *wire.Frame, u *frame.UDP6, at time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.open {
		return
	}
	switch u.Dst.Port() {
	case rackaddr.PortRPC, rackaddr.PortDirect:
		if m, err := rpcpacket.Parse(u.Payload); err == nil {
			c.seeCall(f, u, &m.Header, at)
		}
	case rackaddr.PortDSM:
		to := dsmpacket.FromAddr(u.Dst.Addr())
		h, data, err := dsmpacket.Parse(u.Payload)
		if err != nil || h.Kind != dsmpacket.Request || to.Op() != dsmpacket.OpLedger || f.ToSwitch {
			return
		}
		if q, err := dsmpacket.ParseLedgerRequest(to, &h, data); err == nil && q.Op == dsmpacket.LedgerRollback {
			c.seeRollback(&q, at)
		}
	}
}

// seeCall tells of the figure's four messages: a1 and b2 on their way to the switch, b1 and a2 from it.
func (c *chronicle) seeCall(f *wire.Frame, u *frame.UDP6, h *rpcpacket.Header, at time.Time) {
	from, to := c.known.name[u.Src.Addr()], c.known.name[u.Dst.Addr()]
	if from == "" || to == "" {
		return // the Gatekeeper's
	}
	first := func(what string) bool {
		return c.first(sight{what, f.Host, h.Call, h.CallerIncarnation})
	}
	switch {
	case h.Type == rpcpacket.Call && f.ToSwitch && first("a1"):
		c.server[h.Call] = to
		c.lanes.arrow(at.Sub(c.start), f.Host, c.known.blade[u.Dst.Addr()], fmt.Sprintf("a1  %s calls %s: its rights are judged on the way", from, to))
	case h.Type == rpcpacket.Call && !f.ToSwitch && first("b1"):
		c.lanes.mark(at.Sub(c.start), f.Host, "◆", fmt.Sprintf("b1  the call goes on to %s", to))
	case h.Type == rpcpacket.Reply && f.ToSwitch && first("b2"):
		c.lanes.mark(at.Sub(c.start), f.Host, "◇", fmt.Sprintf("b2  %s has answered: its ledger has the answer", from))
	case h.Type == rpcpacket.Reply && !f.ToSwitch && first("a2"):
		c.lanes.mark(at.Sub(c.start), f.Host, "◇", fmt.Sprintf("a2  %s gets the answer", to))
	}
}

// seeRollback tells that a node has memory taken back.
func (c *chronicle) seeRollback(q *dsmpacket.LedgerRequest, at time.Time) {
	if !c.first(sight{"rollback", "", q.Ledger, q.Run}) {
		return
	}
	what := "what its main did since its last checkpoint"
	if server := c.server[q.Ledger]; server != "" {
		what = "what the execution of " + server + " did"
	}
	c.lanes.mark(at.Sub(c.start), "", "", "rollback: memory is as it was before "+what)
}

// first reports whether a sight is new.
func (c *chronicle) first(s sight) bool {
	known := c.seen[s]
	c.seen[s] = true
	return !known
}
