package gatekeeper

import (
	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
	rpc "github.com/bifrost-rack/bifrost/rpc/packet"
)

// serving tells which nodes take direct calls of a method: those that have a ledger, and
// serve it without a state.
func (c *controller) serving(p *port, m control.Message) error {
	var q control.Serving
	if err := m.Decode(&q); err != nil {
		return err
	}
	method, err := rpc.MethodOf(q.Method)
	if err != nil {
		return &fault.Error{Code: fault.BadRequest, Op: "serving", Err: err}
	}
	var list control.ServingList
	if s := c.services[rackaddr.Service(q.Service)]; s != nil && c.cfg.Ledgers == LedgersTruth && !s.stateful() {
		for _, x := range s.exports {
			if _, has := x.methods[method]; has && x.serves() && x.node.ledger != nil && len(list.Nodes) < control.MaxServing {
				list.Nodes = append(list.Nodes, x.node.address)
			}
		}
	}
	c.answer(p, m, list)
	return nil
}
