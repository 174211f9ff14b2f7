package interp

import (
	"fmt"

	"github.com/bifrost-rack/bifrost/p4/datapath"
	"github.com/bifrost-rack/bifrost/p4/v1model"
)

func (x *Executor) newTable(def *v1model.Table) (*table, error) {
	plan, err := x.c.keyPlan(def)
	if err != nil {
		return nil, err
	}
	t := &table{def: def, plan: plan, matcher: newMatcher(plan), miss: &entry{}, now: x.c.now}
	if def.Profile != nil {
		t.profile = x.profiles[def.Profile.Index]
	}
	if def.Meter != nil {
		t.meter = &meterTarget{def.Meter, x.c.lay.slot(def.Meter.Result)}
	}
	return t, nil
}

// fill puts the program's own entries in, once the table's successors are known.
func (t *table) fill(actions []*action) error {
	t.miss.next = t.base
	if d := t.def.Default; d != nil {
		t.miss.do = actions[d.Action.Index].bind(d.Args)
		t.miss.next = t.nextOf(d.Action)
	}
	for i := range t.def.Entries {
		d := &t.def.Entries[i]
		var ms []datapath.Match
		for _, m := range d.Match {
			ms = append(ms, datapath.Match{Value: m.Value, Mask: m.Mask, High: m.High, PrefixLen: m.PrefixLen})
		}
		w, err := t.plan.match(t.def, ms)
		if err != nil {
			return fmt.Errorf("table %q: entry %d: %w", t.def.Name, i, err)
		}
		e := &entry{
			want: w, plan: t.plan, rank: t.rank(&w, int64(t.def.EntryPriority(i))),
			do: actions[d.Call.Action.Index].bind(d.Call.Args), next: t.nextOf(d.Call.Action),
			source: datapath.Entry{Table: t.def.Name, Match: ms},
		}
		if t.meter != nil {
			e.meter = &meterCell{}
		}
		if t.matcher.same(&w, e.rank) != nil {
			return fmt.Errorf("table %q: entry %d: %w", t.def.Name, i, datapath.ErrExists)
		}
		t.insert(e)
	}
	return nil
}

// rank is an entry's precedence: by the table's kind its priority, its prefix
// length, or nothing.
func (t *table) rank(w *want, priority int64) int64 {
	switch t.def.Kind {
	case v1model.MatchLPM:
		return int64(w.prefixLen)
	case v1model.MatchTernary, v1model.MatchRange:
		return priority
	}
	return 0
}

func (t *table) insert(e *entry) {
	t.seq++
	e.seq = t.seq
	t.entries++
	t.matcher.insert(e)
}

func (t *table) remove(e *entry) {
	t.entries--
	t.matcher.remove(e)
}
