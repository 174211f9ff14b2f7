package interp

import (
	"fmt"
	"math/big"
	"time"

	"github.com/bifrost-rack/bifrost/p4switch/datapath"
	"github.com/bifrost-rack/bifrost/p4switch/v1model"
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
	if def.IsCall() {
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
	key := t.plan.load(s)
	e := t.matcher.find(key)
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
		s.tr.table(t, key, hit, e, do)
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
		colour := e.meter.meter(units(t.meter.def, s), s.inLen, t.now)
		at := t.meter.at
		clear(s.w[at.at : at.at+at.n-1])
		s.w[at.at+at.n-1] = colour & mask64(at.width)
	}
	if t.def.Timeout {
		e.hit.Store(t.now().UnixNano())
	}
}

// node is a step of a pipeline; it returns the next one, nil at the end.
type node struct{ run func(*state) *node }

// graph turns the model's nodes into nodes to run, once each.
type graph struct {
	*compiler
	nodes  map[v1model.Node]*node
	tables map[*v1model.Table]*table
}

// node is the node for n. Those that n leads to are linked, if not yet run.
func (g *graph) node(n v1model.Node) *node {
	if n == nil {
		return nil
	}
	if made, ok := g.nodes[n]; ok {
		return made
	}
	made := &node{}
	g.nodes[n] = made
	switch n := n.(type) {
	case *v1model.Condition:
		made.run = g.condition(n)
	case *v1model.Call:
		made.run = g.call(g.actions[n.Action.Index].bind(nil), g.node(n.Next))
	case *v1model.Table:
		made.run = g.table(n)
	}
	return made
}

func (g *graph) condition(n *v1model.Condition) func(*state) *node {
	cond, yes, no := g.cond(n.Expr), g.node(n.True), g.node(n.False)
	name := n.Name
	if n.Source != "" {
		name = n.Source
	}
	return func(s *state) *node {
		holds := cond(s)
		if s.tr != nil {
			s.tr.condition(name, holds)
		}
		if holds {
			return yes
		}
		return no
	}
}

func (g *graph) call(b *bound, next *node) func(*state) *node {
	name := b.def.Name
	return func(s *state) *node {
		if s.tr != nil {
			s.tr.call(name)
		}
		b.run(s)
		return next
	}
}

// run runs a pipeline from its first node.
func (n *node) runAll(s *state) {
	s.exit = false
	for n != nil && !s.exit {
		n = n.run(s)
	}
}

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
		w, err := t.plan.match(ms)
		if err != nil {
			return fmt.Errorf("table %q: entry %d: %w", t.def.Name, i, err)
		}
		e := &entry{
			want: w, plan: t.plan, rank: t.rank(&w, int64(t.def.EntryPriority(i))),
			do: actions[d.Call.Action.Index].bind(d.Call.Args), next: t.nextOf(d.Call.Action),
			source: datapath.Entry{Table: t.def.Name, Match: ms, Priority: t.def.EntryPriority(i)},
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

// SetDefault implements datapath.Datapath.
func (x *Executor) SetDefault(name string, a *datapath.Action) error {
	t, err := x.table(name)
	if err != nil {
		return err
	}
	var do *bound
	switch d := t.def.Default; {
	case a != nil:
		if do, err = x.bind(t.def, *a); err != nil {
			return fmt.Errorf("table %q: %w", name, err)
		}
	case d != nil:
		do = x.c.actions[d.Action.Index].bind(d.Args)
	}
	constant := t.def.ConstEntry || t.def.ConstAction && do != nil && do.def.Name != t.def.Default.Action.Name
	if constant && a != nil {
		return fmt.Errorf("table %q: %w: its default action is constant", name, datapath.ErrUnsupported)
	}
	x.lock.lock()
	defer x.lock.unlock()
	t.miss.do, t.miss.next = do, t.base
	if do != nil {
		t.miss.next = t.nextOf(do.def)
	}
	return nil
}

// bind makes an action of a table from its name and parameters.
func (x *Executor) bind(t *v1model.Table, a datapath.Action) (*bound, error) {
	i, ok := t.Action(a.Name)
	if !ok {
		return nil, fmt.Errorf("action %q: %w", a.Name, datapath.ErrNotFound)
	}
	return x.bindAction(x.c.actions[t.Actions[i].Index], a)
}

// bindAny makes an action that any of the tables has.
func (x *Executor) bindAny(ts []*v1model.Table, a datapath.Action) (*bound, error) {
	for _, t := range ts {
		if _, ok := t.Action(a.Name); ok {
			return x.bind(t, a)
		}
	}
	return nil, fmt.Errorf("action %q: %w", a.Name, datapath.ErrNotFound)
}

func (x *Executor) bindAction(act *action, a datapath.Action) (*bound, error) {
	ps := act.def.Params
	if len(a.Params) != len(ps) {
		return nil, fmt.Errorf("action %q: %d parameters instead of %d", a.Name, len(a.Params), len(ps))
	}
	args := make([]*big.Int, len(ps))
	for i, p := range ps {
		f := fieldMatch{width: p.Width}
		if _, err := f.words(a.Params[i]); err != nil {
			return nil, fmt.Errorf("action %q: parameter %q: %w", a.Name, p.Name, err)
		}
		args[i] = new(big.Int).SetBytes(a.Params[i])
	}
	return act.bind(args), nil
}

func (x *Executor) table(name string) (*table, error) {
	def := x.c.prog.Table(name)
	if def == nil || len(def.Key) == 0 && def.ConstEntry {
		return nil, fmt.Errorf("table %q: %w", name, datapath.ErrNotFound)
	}
	return x.tables[def.Index], nil
}
