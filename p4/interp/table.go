package interp

import (
	"time"

	"github.com/bifrost-rack/bifrost/p4/v1model"
)

// table is a table at run time. What packets read is written under the
// executor's lock.
type table struct {
	def     *v1model.Table
	plan    *keyPlan
	matcher matcher
	entries int
	seq     uint64

	miss    *entry // the default entry; never nil
	profile *profile
	meter   *meterTarget

	byHit         bool
	onHit, onMiss *node
	next          []*node // by the action's place in the table
	base          *node   // if no action ran
	now           func() time.Time
}

// meterTarget is where a direct meter's colour goes.
type meterTarget struct {
	def *v1model.Meter
	at  slot
}

// table compiles a table. One without a key and with a constant action is but a
// call.
func (g *graph) table(def *v1model.Table) func(*state) *node {
	t := g.tables[def]
	t.byHit, t.onHit, t.onMiss, t.base = def.ByHit, g.node(def.Hit), g.node(def.Miss), g.node(def.BaseNext)
	for _, n := range def.Next {
		t.next = append(t.next, g.node(n))
	}
	if len(def.Key) == 0 && def.ConstEntry && def.Profile == nil && !def.Counters && def.Meter == nil {
		next := t.onMiss
		if !t.byHit {
			next = t.nextOf(def.Default.Action)
		}
		return g.call(g.actions[def.Default.Action.Index].bind(def.Default.Args), next)
	}
	return t.run
}

// nextOf is where an action of the table leads unless that depends on the hit.
func (t *table) nextOf(a *v1model.Action) *node {
	for i, next := range t.next {
		if t.def.Actions[i] == a {
			return next
		}
	}
	return t.base
}

// run looks the packet up and executes what it finds.
func (t *table) run(s *state) *node {
	e := t.matcher.find(t.plan.load(s))
	hit := e != nil
	count := &s.shard.tables[t.def.Index]
	if hit {
		count.hits.Add(1)
		t.onEntry(s, e)
	} else {
		count.misses.Add(1)
		e = t.miss
		if t.def.Counters {
			e.tally.count(s.inLen)
		}
	}
	do := e.do
	if t.profile != nil {
		do = t.profile.choose(s, e)
	}
	if s.tr != nil {
		s.tr.table(t.def.Name, hit, e, do)
	}
	if do == nil {
		return t.idle(hit)
	}
	do.run(s)
	if t.byHit {
		return t.idle(hit)
	}
	if t.profile != nil {
		return t.nextOf(do.def)
	}
	return e.next
}

// idle is where the table leads if no action decides.
func (t *table) idle(hit bool) *node {
	switch {
	case !t.byHit:
		return t.base
	case hit:
		return t.onHit
	}
	return t.onMiss
}

// onEntry does what a hit does beside the action.
func (t *table) onEntry(s *state, e *entry) {
	if t.def.Counters {
		e.tally.count(s.inLen)
	}
	if t.meter != nil {
		colour := e.meter.colour(units(t.meter.def, s), t.now)
		at := t.meter.at
		clear(s.w[at.at : at.at+at.n-1])
		s.w[at.at+at.n-1] = colour & mask64(at.width)
	}
	if t.def.Timeout {
		e.hit.Store(t.now().UnixNano())
	}
}
