package crash

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/bifrost-rack/bifrost/gatekeeper"
	"github.com/bifrost-rack/bifrost/gatekeeper/wal"
	"github.com/bifrost-rack/bifrost/rpc"
)

// judge compares what has happened with what should have.
func (r *Run) judge(ctx context.Context, want *Expectation) error {
	select {
	case <-r.void: // nothing is promised but that the rack goes on
		_, err := r.rack.Gatekeeper().Snapshot(ctx)
		return err
	default:
	}
	if err := r.idle(ctx, "callers or calls are left", r.atRest); err != nil {
		return err
	}
	if r.someOrphans() {
		<-time.After(orphansEnd) // virtual
		if err := r.idle(ctx, "orphans are left", r.atRest); err != nil {
			return err
		}
	}
	if err := r.judgeSlots(ctx); err != nil {
		return err
	}
	if err := r.judgeRegions(ctx); err != nil {
		return err
	}
	if err := r.judgeCopies(ctx); err != nil { // before the audit, which frees what services keep
		return err
	}
	if err := r.audit(ctx); err != nil {
		return err
	}
	if err := r.judgeKept(ctx); err != nil {
		return err
	}
	want = r.withoutTheDead(want)
	r.withoutTheRefused(want)
	r.judgeIncarnations()
	r.judgeGivenUp()
	r.judgeFates()
	r.judgeNodes()
	r.judgeWholes(want)
	r.withoutTheLost(want)
	r.withTheForgotten(want)
	r.judgeBooks(want)
	r.judgeClients(want)
	r.judgeHistories()
	r.judgeTries(want)
	r.judgeEffects(want)
	return r.clean(ctx)
}

// judgeSlots waits until no call is open in the switch: somebody asks about each, until it is answered. A main that never begins again asks
// nothing.
func (r *Run) judgeSlots(ctx context.Context) error {
	if r.someLost() {
		return nil
	}
	open := 0
	err := r.idle(ctx, "calls are open in the switch", func(*gatekeeper.Snapshot) bool {
		o, err := r.rack.Gatekeeper().Overview(ctx)
		open = o.CallCount
		return err == nil && open == 0
	})
	if errors.Is(err, errStuck) {
		r.ledger.complain("%d calls are open in the switch, and nobody asks about them", open)
		err = nil
	}
	return err
}

// someLost reports whether a main never begins again, since its ledger is lost.
func (r *Run) someLost() bool {
	for i, c := range r.p.Clients {
		if c.Main && r.ledgerLost(r.p.clientName(i)) {
			return true
		}
	}
	return false
}

// judgeRegions waits until no region is left that nobody needs: each service with state has one. Of what a handler of policy none had which
// was cut off, a service with state keeps what it may know of. One that has failed for want of memory has not freed what it had: that is its program's.
func (r *Run) judgeRegions(ctx context.Context) error {
	keeps := r.someLost()
	for i := range r.p.Clients {
		r.p.Clients[i].Script.each(-1, func(_ int, op *Op) {
			keeps = keeps || op.Kind == Try && (r.p.Services[op.Service].Stateful && r.crash.hits() > 0 || r.wasAway())
		})
	}
	if keeps {
		return nil
	}
	most := btoi(r.opt.Setting.Calls > 0)
	for _, s := range r.p.Services {
		most += btoi(s.Stateful)
	}
	var left []gatekeeper.RegionState
	err := r.idle(ctx, "regions are left", func(s *gatekeeper.Snapshot) bool {
		left = s.Regions
		return len(left) <= most
	})
	if errors.Is(err, errStuck) {
		r.ledger.complain("%d regions are left, and %d are needed: %+v", len(left), most, left)
		err = nil
	}
	return err
}

// orphansEnd is after how long the calls that nobody waits for are over, or the Gatekeeper
// knows of them: their callees tell it some time after they have begun.
const orphansEnd = 5 * time.Second

// someOrphans reports whether there may be such calls: one-ways, and those of a client that has
// died, or has given one up.
func (r *Run) someOrphans() (some bool) {
	for i := range r.p.Clients {
		some = some || r.died(i)
		r.p.Clients[i].Script.each(-1, func(_ int, op *Op) { some = some || op.Kind == Hurry || op.Kind == Post })
	}
	return some
}

// atRest reports whether nothing can happen any more. A call of a client that has died may
// be on its way to the Gatekeeper until its node is gone.
func (r *Run) atRest(s *gatekeeper.Snapshot) bool {
	for i := range r.p.Clients {
		if slices.ContainsFunc(s.Nodes, func(n gatekeeper.NodeState) bool {
			return n.Name == r.p.clientName(i) && (n.Awaited.IsZero() || !r.ledgerLost(n.Name)) // such a main never begins again
		}) {
			return false
		}
	}
	return len(s.Calls) == 0
}

// judgeClients compares results.
func (r *Run) judgeClients(want *Expectation) {
	for i := range r.p.Clients {
		out, ok := r.ledger.outcome(i)
		if !ok && (r.died(i) || r.wasAway()) {
			continue
		}
		if !ok {
			r.ledger.complain("%s has no result", r.p.clientName(i))
		} else if out.Value != want.Values[i] {
			r.ledger.complain("%s has come to %#x, want %#x", r.p.clientName(i), out.Value, want.Values[i])
		}
	}
}

// judgeTries compares what calls of policy none have come to. One that has not failed has
// run as a whole.
func (r *Run) judgeTries(want *Expectation) {
	for op, value := range r.ledger.trials() {
		if value != want.Tries[op].Value {
			r.ledger.complain("operation %d has come to %#x, want %#x", op, value, want.Tries[op].Value)
		}
		for _, in := range want.Tries[op].Effects {
			want.Effects[in] = 1
		}
	}
}

// judgeGivenUp: a call runs that an execution has given up, since that has its callee's word.
func (r *Run) judgeGivenUp() {
	if all := r.ledger.neverRan(); len(all) > 0 && !r.wasAway() {
		r.ledger.complain("calls that executions have given up have never run: operations %v", all)
	}
}

// judgeNodes: an exactly-once call that has shown something at a node runs at no other one.
func (r *Run) judgeNodes() {
	if r.wasAway() {
		return
	}
	for i := range r.p.Clients {
		r.p.Clients[i].Script.each(-1, func(_ int, op *Op) {
			if op.executes() && op.Kind != Try && r.ledger.atSeveral(op.N) {
				r.ledger.complain("call %d has run at several nodes", op.N)
			}
		})
	}
}

// judgeWholes looks at the calls that handlers of policy none make. Such a handler may run
// several times, or be cut off; but each call that it makes is done as a whole: what it
// entered in the services' states is there for all of its operations equally often.
func (r *Run) judgeWholes(want *Expectation) {
	most := 1 + r.crash.hits()
	for i := range r.p.Clients {
		r.p.Clients[i].Script.each(-1, func(_ int, op *Op) {
			if op.Kind != Call || !r.ledger.inTry[op.N] {
				return
			}
			r.judgeWhole(op, func(in *Op) { want.loose[in.N] = most * most }) // see copied
		})
	}
}

// judgeWhole asks whether a call is done as a whole or not at all. It calls f for each of its entries in services' states.
func (r *Run) judgeWhole(call *Op, f func(*Op)) {
	counts := map[int]int{}
	for j := range call.Body {
		call.Body[j].each(call.Service, func(service int, in *Op) {
			if in.Kind != Add || r.audited[service].unknown {
				return
			}
			f(in)
			n := 0
			for _, m := range r.audited[service].marks {
				n += btoi(m.Op == in.N)
			}
			counts[n]++
		})
	}
	if len(counts) > 1 && !r.wasAway() {
		r.ledger.complain("call %d was done by half: so many of its operations by how often they were done: %v", call.N, counts)
	}
}

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}

// judgeEffects compares side effects: each once, and again at most for each crash.
func (r *Run) judgeEffects(want *Expectation) {
	got, runs := r.ledger.sideEffects(), 1+r.crash.hits()
	copies, again := r.copied(want), r.p.calledAgain()
	for _, op := range slices.Sorted(maps.Keys(want.Effects)) {
		most := runs
		switch {
		case copies[op]:
			most *= runs
		case again[op]:
			most = runs * (runs + 1) / 2
		}
		if got[op] < want.Effects[op] || got[op] > most {
			r.ledger.complain("operation %d has had %d effects, with %d crashes", op, got[op], runs-1)
		}
		delete(got, op)
	}
	if len(got) > 0 {
		r.ledger.complain("effects of operations that have none: %v", got)
	}
}

// copied are the effects of tries on a network that copies packets, or makes them late: a
// copy of a call of policy none that overtakes the restart of its callee runs there once
// more (docs/exactly-once.md, what it excludes). So does one that is sent again while nodes
// of its service come and go.
func (r *Run) copied(want *Expectation) map[int]bool {
	ops := map[int]bool{}
	net := Networks[r.opt.Network]
	several := slices.ContainsFunc(r.p.Services, func(s Service) bool { return s.Nodes > 1 }) ||
		r.crash.happened("program redeploy") || r.crash.happened("program drain") || r.crash.happened("blade drain")
	if net.Duplicate == 0 && net.Late == 0 && r.opt.Network != uneven && !several {
		return ops
	}
	for _, t := range want.Tries {
		for _, op := range t.Effects {
			ops[op] = true
		}
	}
	return ops
}

// audit asks the services for their states.
func (r *Run) audit(ctx context.Context) error {
	n, err := r.auditor(ctx)
	if err != nil {
		return fmt.Errorf("auditor: %w", err)
	}
	w := &rackWorld{run: r, ctx: ctx, node: n}
	for i, s := range r.p.Services {
		if !s.Stateful {
			continue
		}
		books, err := w.client(i, r.opt.Policy).Audit(ctx)
		for began := time.Now(); !r.hasLost() && r.forLoss(err) && time.Since(began) < time.Minute; {
			<-time.After(time.Second) // the memory is about to be there again
			books, err = w.client(i, r.opt.Policy).Audit(ctx)
		}
		if r.hasLost() && r.forLoss(err) {
			r.audited[i] = audited{unknown: true}
			continue
		}
		if err != nil {
			return fmt.Errorf("audit of %s: %w", ServiceName(i), err)
		}
		r.audited[i] = audited{marks: marksOf(books.Marks), bumps: uint64(books.Bumps)}
	}
	if err := r.auditChorus(ctx, n); err != nil {
		return err
	}
	return n.Close(ctx)
}

// auditor makes a node, when its blade is known (again).
func (r *Run) auditor(ctx context.Context) (*rpc.Node, error) { return r.enter(ctx, "auditor") }

// enter joins c1 under a name, as soon as that is possible.
func (r *Run) enter(ctx context.Context, name string) (*rpc.Node, error) {
	for {
		n, err := r.rack.Join(ctx, "c1", name)
		if code := rpc.CodeOf(err); code != rpc.Stale && code != rpc.Unavailable {
			return n, err
		}
		select {
		case <-time.After(100 * time.Millisecond):
		case <-ctx.Done():
			return nil, err
		}
	}
}

// judgeBooks compares the services' states with what they should be, and with what
// their callers have seen of them.
func (r *Run) judgeBooks(want *Expectation) {
	seen := map[int]uint64{}
	for i := range r.p.Clients {
		out, _ := r.ledger.outcome(i)
		for _, m := range out.Marks {
			seen[m.Op] = m.Value
		}
	}
	for i := range r.p.Services {
		got := r.audited[i]
		if got.unknown {
			continue
		}
		r.judgeMarks(i, got.marks, want.Adds[i], want.loose, seen)
		if got.bumps < want.Bumps[i] || got.bumps > want.Bumps[i]+want.spare(i) {
			r.ledger.complain("service %s: the counter in memory is %d, want %d", ServiceName(i), got.bumps, want.Bumps[i])
		}
	}
}

// judgeMarks compares a service's entries with those that should be there, and with
// what the callers were told. Those that are loose need not be there.
func (r *Run) judgeMarks(service int, got []Mark, want, loose map[int]int, seen map[int]uint64) {
	counts := map[int]int{}
	for _, m := range got {
		counts[m.Op]++
		if v, ok := seen[m.Op]; ok && v != m.Value {
			r.ledger.complain("service %s: operation %d has entered %#x, and its caller was told %#x", ServiceName(service), m.Op, m.Value, v)
		}
	}
	for op, most := range loose {
		if counts[op] <= most {
			counts[op] = want[op]
		}
	}
	maps.DeleteFunc(counts, func(_, n int) bool { return n == 0 })
	if !maps.Equal(counts, want) {
		r.ledger.complain("service %s has entries of operations (by count) %v, want %v", ServiceName(service), counts, want)
	}
}

// idle waits until the Gatekeeper's state is as it should be.
func (r *Run) idle(ctx context.Context, what string, good func(s *gatekeeper.Snapshot) bool) error {
	pause := time.Millisecond
	for total := time.Duration(0); ; total += pause {
		s, err := r.rack.Gatekeeper().Snapshot(ctx)
		if err != nil {
			return err
		}
		if good(&s) {
			return nil
		}
		if total > time.Minute {
			return fmt.Errorf("%w: after a minute %s: %s", errStuck, what, r.describe())
		}
		<-time.After(pause)
		pause = min(2*pause, time.Second)
	}
}

// clean undeploys everything and looks for what is left.
func (r *Run) clean(ctx context.Context) error {
	gk := r.rack.Gatekeeper()
	if _, some := r.mains(); some {
		if err := gk.Undeploy(ctx, appName+"-mains"); err != nil {
			return err
		}
	}
	if r.crash.happened("program twin") {
		if err := r.endTwins(ctx); err != nil { // a main that can never end would have kept its name
			return err
		}
	}
	if err := errors.Join(gk.Undeploy(ctx, appName), r.undeployApart(ctx)); err != nil {
		return err
	}
	if r.opt.Seed%3 == 0 {
		if err := r.killUndeployed(ctx); err != nil {
			return err
		}
	}
	r.endHands()
	left := ""
	err := r.idle(ctx, "something is left", func(s *gatekeeper.Snapshot) bool {
		if err := r.forgetAwaited(ctx, s); err != nil {
			r.ledger.complain("%v", err)
		}
		left = r.left(s)
		return left == ""
	})
	if err != nil {
		r.ledger.complain("%s: %v", left, err)
	}
	return nil
}

// killUndeployed kills the programs that are to end: their nodes leave heirs.
func (r *Run) killUndeployed(ctx context.Context) error {
	all, err := r.rack.Gatekeeper().Deployments(ctx)
	for _, d := range all {
		for _, i := range d.Instances {
			_ = r.rack.KillSoon(i.Blade, i.Name) // which may have ended
		}
	}
	return err
}

// left tells what is left when all programs have ended, "" if nothing.
func (r *Run) left(s *gatekeeper.Snapshot) string {
	if len(s.Nodes) > 0 || len(s.Services) > 0 || len(s.Regions) > 0 || len(s.Calls) > 0 {
		return fmt.Sprintf("%d nodes, %d services, %d regions, %d calls", len(s.Nodes), len(s.Services), len(s.Regions), len(s.Calls))
	}
	if left := r.memoryLeft(); left != "" {
		return left
	}
	if left := r.recordsLeft(); left != "" {
		return "records " + left
	}
	identities, err := r.rack.Identities()
	switch {
	case err != nil:
		return err.Error()
	case len(identities) > 0:
		return fmt.Sprintf("identities of nodes %v", identities)
	}
	return ""
}

// memoryLeft tells what memory servers keep, "" if nothing.
func (r *Run) memoryLeft() string {
	for _, name := range memoryBlades {
		s := r.rack.MemoryServer(name)
		if s == nil {
			return name + " does not serve"
		}
		if n := s.Ledgers().Count; n > 0 {
			return fmt.Sprintf("%s: %d ledgers", name, n)
		}
		if used, undo := s.Used(), s.Metrics().Undo; used > 0 || undo.Executions > 0 {
			return fmt.Sprintf("%s: %d bytes in use, undo of %d executions", name, used, undo.Executions)
		}
	}
	return ""
}

// recordsLeft tells which records the log holds that nobody will ask for, "" if
// none: all but those of blades, machines, batches that nobody has, and the rack itself, which go on.
func (r *Run) recordsLeft() string {
	counts := map[string]int{}
	for rec, err := range r.rack.Log().Records() {
		if err != nil {
			return err.Error()
		}
		switch rec.Kind {
		case wal.KindBlade, wal.KindMirror, wal.KindRack:
		case wal.KindBatch:
			if !rec.Callee.IsZero() { // its node is gone
				counts[rec.Kind.String()]++
			}
		default:
			counts[rec.Kind.String()]++
		}
	}
	if len(counts) == 0 {
		return ""
	}
	return fmt.Sprint(counts)
}
