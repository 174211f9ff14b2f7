package gatekeeper

import (
	"context"

	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
	"github.com/bifrost-rack/bifrost/internal/fault"
)

// FreeRegion frees a frozen region, and returns what it was. A region is frozen if the switch has lost its registers, and nobody can say whose
// it is: nodes contradict each other, or a node that may have it has given no account (docs/rights.md, section 8). No program can reach it. Only a
// person knows whether what is in it is wanted.
//
// NotFound: the pointer lies in no region. Unavailable: a memory blade does not say whether it does, or the switch whose it is. BadRequest: the region is not frozen; the message says whose it is.
func (g *Gatekeeper) FreeRegion(ctx context.Context, p dsmpacket.Pointer) (r RegionState, err error) {
	if err := g.survey(ctx); err != nil {
		return r, err
	}
	err = g.query(ctx, func(c *controller) error {
		found, err := c.region("free", p)
		switch {
		case err != nil:
			return err
		case found.frozen:
			r = found.state()
			return nil
		case found.controller.IsValid():
			return fault.New(fault.BadRequest, "free", "the region of %s is node %s's, which frees it; only what is frozen is for an operator to free", p, found.controller)
		case len(c.unread()) > 0:
			return fault.New(fault.Unavailable, "free", "the switch has not told whose the region of %s is: try again later", p)
		}
		return fault.New(fault.BadRequest, "free", "the region of %s is nobody's, and is being freed", p)
	})
	if err != nil {
		return r, err
	}
	g.cfg.Logger.Info("operator", "action", "free a frozen region", "region", r.Region)
	if _, err = g.handles(ctx, "free", handOp{kind: handSeize, regions: []dsmpacket.RegionID{p.ID()}, owner: frozen}); err != nil {
		return r, err
	}
	return r, g.survey(ctx) // it finds that the region is nobody's, and has memory free it
}
