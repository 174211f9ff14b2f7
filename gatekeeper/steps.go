package gatekeeper

import (
	"github.com/bifrost-rack/bifrost/gatekeeper/lease"
	"github.com/bifrost-rack/bifrost/gatekeeper/p4rtclient"
)

// verdict is what goes on when an event's rules are in place: the tag of events
// submitted to the lease machine. err tells that the switch has refused a rule.
type verdict func(s lease.Step, err error)

// submit hands an event to the lease machine.
func (c *controller) submit(e lease.Event, v verdict) { c.steps(c.leases.Submit(e, v)) }

// steps carries out steps of the lease machine: revoke, wait, grant, wait, go on.
func (c *controller) steps(steps []lease.Step) {
	for _, s := range steps {
		c.controlled(s)
		c.keepStep(s)
		if s.ID == 0 {
			c.settled(s, nil)
			continue
		}
		c.count.RulesRevoked += uint64(len(s.Revoke))
		c.count.RulesGranted += uint64(len(s.Grant))
		c.count.RulesWritten += uint64(len(s.Revoke) + len(s.Grant))
		c.access += len(s.Grant) - len(s.Revoke)
		c.out.plans = append(c.out.plans, &plan{
			phases: []phase{accessUpdates(p4rtclient.Delete, s.Revoke), accessUpdates(p4rtclient.Insert, s.Grant)},
			then: func(err error) {
				if err != nil {
					c.count.Failures++
					c.log.Error("the switch refuses an access rule", "error", err)
				}
				c.rulesChanged(RulesRevoked, s.Revoke)
				c.rulesChanged(RulesGranted, s.Grant)
				next := c.leases.Done(s.ID)
				c.settled(s, err)
				c.steps(next)
			},
		})
	}
}

// settled goes on with what has waited for a step's rules.
func (c *controller) settled(s lease.Step, err error) {
	if v, ok := s.Tag.(verdict); ok && v != nil {
		v(s, err)
	}
	switch e := s.Event.(type) {
	case lease.Oneway:
		c.keepChanged(s) // with the call
	case lease.Ended:
		if s.Outcome == lease.Done {
			c.callEnded(e.ID)
		}
	case lease.Lost:
		delete(c.frees, e.Region.Base)
	}
	c.reclaim(s.Reclaim)
}

func (c *controller) rulesChanged(kind EventKind, rules []lease.Rule) {
	if len(rules) > 0 {
		c.event(Event{Kind: kind, Rules: rules})
	}
}
