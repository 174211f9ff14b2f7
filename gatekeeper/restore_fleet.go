package gatekeeper

import (
	"context"

	"github.com/bifrost-rack/bifrost/gatekeeper/log"
	"github.com/bifrost-rack/bifrost/gatekeeper/resources"
)

// What people have asked of the rack outlives the Gatekeeper: deployments, and
// blades that are drained or marked failed. Blades and nodes as such have records
// of their own.

// fleetID tells the registry's record from the rack's own, whose id is zero.
var fleetID = log.NameID("fleet")

// keepFleet writes the registry down if it has changed and holds more than the
// records of blades and nodes do.
func (c *controller) keepFleet() {
	if !c.logging() || c.fleetKept == c.fleet.Version() {
		return
	}
	c.fleetKept = c.fleet.Version()
	if c.fleet.Plain() {
		c.drop(log.KindRack, fleetID)
		return
	}
	data, err := c.fleet.Save()
	if err != nil {
		panic(err) // plain structures only
	}
	c.put(log.Record{Kind: log.KindRack, ID: fleetID, Data: data})
}

// restoreFleet brings the registry back, once blades and nodes are, and goes on
// with what it had not got done.
func (c *controller) restoreFleet(r *log.Record) error {
	if r == nil {
		return nil
	}
	fleet, err := resources.Load(fleetConfig(), r.Data, c.now)
	if err != nil {
		return corrupt(r, "%v", err)
	}
	c.fleet = fleet
	for _, b := range fleet.Blades() {
		if known := c.blades[b.Name]; known == nil || !known.alive() {
			c.act(fleet.Lost(b.Name, "out of service after a restart of the Gatekeeper", c.now))
		}
	}
	for _, n := range fleet.Nodes("") {
		if c.nodes[n.Address] == nil && c.fallen[n.Address] == nil {
			c.act(fleet.Leave(n.Address, n.Incarnation, true, "gone after a restart of the Gatekeeper", c.now))
			c.act(fleet.Ended(n.Address, n.Incarnation, false, c.now))
		}
	}
	c.act(fleet.Resume(c.now))
	return nil
}

// logged waits until all that has been handled by now is on the log, if there
// is one.
func (g *Gatekeeper) logged(ctx context.Context) error {
	for taken := g.cfg.Store == nil; !taken; {
		// A turn has handed on what was handled before, unless the log was busy.
		if err := g.do(ctx, func() { taken = g.outbox.tail.batch.Len() == 0 }); err != nil {
			return err
		}
		var last log.Batch
		last.Delete(log.KindRack, log.NameID("nothing")) // batches are logged in order
		if err := g.cfg.Store.Append(ctx, &last); err != nil {
			return err
		}
	}
	return nil
}
