package lease

import (
	"slices"

	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
)

// job is an event on its way through the Machine. It stands in the queues of all
// regions that it touches, and is judged when it is the first in each; since it
// enters them all at once, no two jobs can wait for each other.
type job struct {
	event   Event
	tag     any
	regions []*region // each once
	behind  int       // in how many of the queues it is not the first
}

// enqueue puts an event into the queues of its regions, unless that can be
// answered at once.
func (m *Machine) enqueue(e Event, tag any) {
	k := e.key()
	if m.handled[k] {
		m.steps = append(m.steps, Step{Event: e, Tag: tag, Outcome: Duplicate})
		return
	}
	r, reply := e.(Reply)
	if reply && m.handled[Call{ID: r.ID}.key()] { // nobody has been given this call yet
		o, why := refuse(NotTheCall, r.Callee, dsmpacket.Pointer{})
		m.steps = append(m.steps, Step{Event: e, Tag: tag, Outcome: o, Refusal: why})
		return
	}
	j := &job{event: e, tag: tag}
	m.pending++
	if k != (key{}) {
		m.handled[k] = true
	}
	if reply {
		if c := m.calls[r.ID]; c != nil && c.callee == r.Callee && c.caller == r.Caller {
			c.replied = true
			if c.nested > 0 {
				m.park(c, j)
				return
			}
		}
	}
	m.line(j)
}

// line puts a job at the end of its regions' queues.
func (m *Machine) line(j *job) {
	j.regions, j.behind = m.touches(j.event), 0
	for _, r := range j.regions {
		if len(r.queue) > 0 {
			j.behind++
		}
		r.queue = append(r.queue, j)
	}
	if j.behind == 0 {
		m.ready = append(m.ready, j)
	}
}

// touches returns the regions that an event touches, each once.
func (m *Machine) touches(e Event) []*region {
	switch e := e.(type) {
	case Alloc:
		return m.known(e.Region)
	case Call:
		return m.named(nil, e.Pointers)
	case Reply:
		return m.named(m.calls[e.ID], e.Results)
	case Oneway:
		return m.named(nil, e.Pointers)
	case Withdrawn:
		return m.named(nil, e.Pointers)
	case Free:
		return m.named(nil, []dsmpacket.Pointer{e.Pointer})
	case Freed:
		return m.known(e.Region)
	case Ended:
		return m.named(m.calls[e.ID], nil)
	case Orphaned:
		return m.known(e.Region)
	case Lost:
		return m.known(e.Region)
	}
	return nil
}

// known returns a region if it is known.
func (m *Machine) known(id dsmpacket.Region) []*region {
	if r := m.regions[id.Base]; r != nil {
		return []*region{r}
	}
	return nil
}

// named returns the regions that a call (if not nil) leases and pointers name.
func (m *Machine) named(c *call, ps []dsmpacket.Pointer) []*region {
	var rs []*region
	if c != nil {
		for _, l := range c.leases {
			rs = append(rs, l.region)
		}
	}
	for _, p := range ps {
		if r := m.find(p); r != nil {
			rs = append(rs, r)
		}
	}
	return unique(rs)
}

// unique removes repeated regions; the order of the first appearances stays.
func unique(rs []*region) []*region {
	if len(rs) <= 16 {
		out := rs[:0]
		for _, r := range rs {
			if !slices.Contains(out, r) {
				out = append(out, r)
			}
		}
		return out
	}
	seen := make(map[*region]bool, len(rs))
	return slices.DeleteFunc(rs, func(r *region) bool {
		again := seen[r]
		seen[r] = true
		return again
	})
}

// run judges jobs until none is ready, and returns the steps.
func (m *Machine) run() []Step {
	for len(m.ready) > 0 {
		j := m.ready[0]
		m.ready = m.ready[1:]
		m.start(j)
	}
	steps := m.steps
	m.ready, m.steps = nil, nil
	return steps
}

// start judges a job that is first everywhere.
func (m *Machine) start(j *job) {
	var c change
	step := Step{Event: j.event, Tag: j.tag, Outcome: Done}
	step.Outcome, step.Refusal = m.judge(j, &c)
	if step.Outcome == parked {
		m.unline(j)
		return
	}
	step.Changed = c.changed()
	step.Revoke, step.Grant = c.rules()
	step.Reclaim = c.reclaim
	if len(step.Revoke)+len(step.Grant) > 0 {
		m.lastID++
		step.ID = m.lastID
		m.moving[step.ID] = j
	} else {
		m.leave(j)
	}
	m.steps = append(m.steps, step)
}

// leave ends a job: it is no longer handled and makes room in its queues.
func (m *Machine) leave(j *job) {
	m.pending--
	delete(m.handled, j.event.key())
	m.unline(j)
}

// unline takes a job, which is the first, out of its queues.
func (m *Machine) unline(j *job) {
	for _, r := range j.regions {
		r.queue[0] = nil
		if r.queue = r.queue[1:]; len(r.queue) == 0 {
			r.queue = nil
			m.bury(r)
			continue
		}
		if next := r.queue[0]; next.behind > 1 {
			next.behind--
		} else {
			next.behind = 0
			m.ready = append(m.ready, next)
		}
	}
	j.regions = nil
}

// park keeps a reply until the nested calls have ended.
func (m *Machine) park(c *call, j *job) {
	c.parked = j
	m.parked++
}

// unpark lines up a reply that has waited for nested calls.
func (m *Machine) unpark(c *call) {
	j := c.parked
	c.parked = nil
	m.parked--
	m.line(j)
}
