package gatekeeper

import (
	"context"

	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// CancelCall has the node that runs a call end its handler's context; what the handler then
// returns is the answer. A call that waits there is answered with Canceled. It returns when the
// node's daemon has told the program, not when the call has ended: a handler that does not heed
// its context runs on. NotFound: no such call is under way; Unavailable: its node is not there.
func (g *Gatekeeper) CancelCall(ctx context.Context, id rpcpacket.ID) error {
	answer := make(chan error, 1)
	err := g.query(ctx, func(c *controller) error { return c.cancelCall(id, answer) })
	if err != nil {
		return err
	}
	select {
	case err := <-answer:
		return err
	case <-ctx.Done():
		return fault.FromContext("cancel", ctx.Err())
	}
}

// cancelCall asks the daemon of the node that runs a call; answer has room for what it says.
func (c *controller) cancelCall(id rpcpacket.ID, answer chan<- error) error {
	k, ok := c.knownCall(id)
	if !ok {
		return fault.New(fault.NotFound, "cancel", "no call %s is under way", id)
	}
	s := c.callState(k)
	if s.Stage == stageNames[stageFinished] {
		return fault.New(fault.NotFound, "cancel", "call %s is over", id)
	}
	n := c.nodes[s.Callee]
	if n == nil || !n.blade.alive() {
		return fault.New(fault.Unavailable, "cancel", "call %s is at node %s, which is not in service: it goes on when that is back", id, s.Callee)
	}
	c.logger.Info("operator", "action", "cancel", "call", id, "node", n.address)
	return c.ask(n.blade.port, control.KindCancelCall, control.CancelCall{Node: n.address, Call: id.String()}, func(m control.Message) {
		if m.Status != fault.OK {
			answer <- fault.Remote(m.Status, "cancel", "%s", m.Body)
			return
		}
		c.event(Event{Kind: CallCanceled, Node: n.address, Call: id.String(), Method: s.Method})
		answer <- nil
	})
}
