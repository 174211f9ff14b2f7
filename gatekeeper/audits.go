package gatekeeper

import (
	"slices"
	"time"

	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
	"github.com/bifrost-rack/bifrost/internal/control"
)

// A survey is looked through for what should not be (docs/rights.md, section 6): memory that nobody has, since a
// Gatekeeper was killed between seizing a region and freeing it, or since nobody has heard of an allocation.

// auditEvery is how long it is at most from one survey to the next, while there are nodes: somebody asks, or it is for this.
const auditEvery = time.Minute

// auditDue begins a survey for the audit.
func (c *controller) auditDue() {
	if at, due := c.nextAudit(); due && !c.now.Before(at) {
		c.surveys.next = append(c.surveys.next, make(chan struct{}))
		c.beginSurvey()
	}
}

// nextAudit is when that is.
func (c *controller) nextAudit() (at time.Time, due bool) {
	s := &c.surveys
	return later(s.last.when, c.hearing.began).Add(auditEvery), c.connected && c.rebuild == nil && s.now == nil && len(s.next) == 0 && len(c.nodes)+len(c.fallen)+len(c.resting) > 0
}

// unowned are the regions that memory has, and nobody owns. A survey may have read a region's word before the region was allocated, and somebody
// else may own it by now. So the node that has allocated it must have been gone for long when the survey began.
func (p *population) unowned(s *survey) (all []dsmpacket.Region) {
	words := s.bySlot()
	for i, r := range s.made {
		w := words[r.ID.Slot()]
		seized := w.region == r.ID && w.owner == 0 && w.lent == 0
		unheard := w.region.Generation() < r.ID.Generation() && r.Execution == (control.ExecutionID{}) && p.nodeOrFallen(r.Owner) == nil && !slices.Contains(s.gone, r.Owner) &&
			!slices.ContainsFunc(p.resting, func(o resting) bool { return o.node.address == r.Owner })
		if region := r.Region(p.prefix, s.at[i]); (seized || unheard) && !p.reclaims(region) {
			all = append(all, region)
		}
	}
	return all
}

// reclaims reports whether a memory blade was told to free a region, or is about to be.
func (e *estate) reclaims(r dsmpacket.Region) bool {
	return slices.ContainsFunc(e.sortedBlades(), func(b *blade) bool {
		return b.memory() && b.hello.Machine == r.Base.Machine() && slices.ContainsFunc(b.reclaims, func(o control.RegionID) bool { return o.ID == r.Base.ID() })
	})
}
