package gatekeeper

import (
	"bytes"
	"encoding/json"
	"maps"
	"net/netip"
	"slices"

	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
	"github.com/bifrost-rack/bifrost/gatekeeper/execution"
	"github.com/bifrost-rack/bifrost/gatekeeper/lease"
	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// What executions do to memory is kept or taken back by the memory blades, all of
// those in service, on our word (dsm/memory/store). One command with many
// executions is out to a blade at a time; what comes up meanwhile goes with the
// next.
//
//	commit(E), rollback(E) ─▶ task ─▶ each blade's queue ─▶ command ─▶ answered, or the blade has failed
//	                                                                        └─ by all ─▶ then

// undoTask is a run of an execution that blades are to commit or roll back.
type undoTask struct {
	run     control.Run
	waiting int // blades that have not answered
	then    func()
}

// undoQueue is what one blade is to commit, or to roll back.
type undoQueue struct {
	kind  control.Kind
	queue []*undoTask
	out   int // of the queue, how many are in the command that is out
}

// runOf names a run as memory blades know it.
func (c *controller) runOf(r execution.Run) control.Run {
	return control.Run{Execution: control.ExecutionID(c.inMemory(r)), Node: r.At.Address, Incarnation: r.At.Incarnation, Main: r.Main, Checkpoint: r.Checkpoint}
}

// inMemory is what memory blades know the execution of a run as.
func (c *controller) inMemory(r execution.Run) rpcpacket.ID {
	if r.Main != 0 {
		return c.secret.ToMemory(r.Execution)
	}
	return r.Execution
}

// executionOf is the execution that memory blades know by a name. The id of a durable main is no name
// of one: whoever uses it has an execution that nobody knows.
func (c *controller) executionOf(name [16]byte) rpcpacket.ID {
	id := rpcpacket.ID(name)
	if id.IsZero() {
		return id
	}
	if main := c.secret.FromMemory(id); c.table.Known(main) || c.table.Known(id) {
		return main
	}
	return id
}

// commit makes the memory blades keep what a run of an execution did, and then goes on.
func (c *controller) commit(run execution.Run) {
	id := run.Execution
	c.trace(TraceCommitting, id, c.whereabouts(id), 0)
	then := func() {
		c.freeDeferred(id, true, func() {
			c.execute(c.table.Committed(id))
			if at, over := c.table.Over(id); over {
				c.endHoldings(id, at, false)
			} else if run.Checkpoint != 0 {
				c.endOrigins(id, run.Checkpoint)
			}
		})
	}
	if c.changedNothing(id) {
		then()
		return
	}
	c.missSettling(control.KindCommit, c.runOf(run))
	c.settleMemory(c.runOf(run), func(b *blade) *undoQueue { return &b.commits }, then)
}

// changedNothing reports whether an execution that has ended cannot have changed any
// memory: it is a call's, and its node has never had control of a region. (The
// runtime knows what became of all its requests when it answers, so each allocation's
// answer has come by here.)
func (c *controller) changedNothing(id rpcpacket.ID) bool {
	v, call := c.table.View(id)
	return call && !c.couldWrite(v.Callee.Address)
}

// rollback makes the memory blades take back what runs of an execution did, and then
// goes on. It waits for calls of policy none that the execution has lent regions to: they may
// run on without a caller. The next run would meet their leases, and could not write or free
// what it has. (For calls of other policies the Table waits.)
func (c *controller) rollback(run execution.Run) {
	id := run.Execution
	if c.lends(run) {
		c.lending[id] = run
		return
	}
	c.count.Rollbacks++
	c.trace(TraceRollingBack, id, c.whereabouts(id), 0)
	then := func() {
		c.freeDeferred(id, false, func() {
			c.takeBack(id, func() {
				c.exactEvent(ExecutionRolledBack, id, 0, nil)
				c.trace(TraceRolledBack, id, c.whereabouts(id), 0)
				c.execute(c.table.RolledBack(id))
			})
		})
	}
	if run.AtNode { // the main's next run has memory take back what its ledger says
		then()
		return
	}
	c.missSettling(control.KindRollback, c.runOf(run))
	c.settleMemory(c.runOf(run), func(b *blade) *undoQueue { return &b.rollbacks }, then)
}

// lends reports whether calls of policy none, or direct ones, have leases that a run of an execution has
// given them. Those of other nodes only say that they are the execution's.
func (c *controller) lends(run execution.Run) bool {
	for call, k := range c.calls {
		if k.header.Parent == run.Execution && k.caller == run.At.Address && (k.stage == stageWaiting || c.leases.Lends(call)) {
			return true
		}
	}
	for _, k := range c.loans {
		if k.header.Parent == run.Execution && k.caller == run.At.Address && !k.over() {
			return true
		}
	}
	return false
}

// lentOver goes on with the rollback of an execution when the last call that it has lent
// regions to has ended.
func (c *controller) lentOver(id rpcpacket.ID) {
	if run, waits := c.lending[id]; waits && !c.lends(run) {
		delete(c.lending, id)
		c.rollback(run)
	}
}

// settleMemory queues a task with all memory blades in service.
func (c *controller) settleMemory(run control.Run, queue func(*blade) *undoQueue, then func()) {
	e := &undoTask{run: run, then: then}
	for _, b := range c.servers {
		q := queue(b)
		q.queue = append(q.queue, e)
		e.waiting++
	}
	if e.waiting == 0 {
		then()
		return
	}
	for _, b := range c.servers {
		c.askUndo(b, queue(b))
	}
}

// askUndo gives a blade its next command, if none is out.
func (c *controller) askUndo(b *blade, q *undoQueue) {
	if q.out > 0 || len(q.queue) == 0 || !b.alive() {
		return
	}
	q.out = min(len(q.queue), control.MaxExecutions)
	runs := make([]control.Run, q.out)
	for i, e := range q.queue[:q.out] {
		runs[i] = e.run
	}
	c.command(b, q.kind, undoBody(b, q.kind, runs), func(m control.Message) {
		c.settledRuns(b, m)
		c.undone(b, q)
	})
}

// undoBody is a command of the kind for a blade's present start.
func undoBody(b *blade, kind control.Kind, runs []control.Run) any {
	if kind == control.KindRollback {
		return control.Rollback{Boot: b.hello.Boot, Runs: runs}
	}
	return control.Commit{Boot: b.hello.Boot, Runs: runs}
}

// undone takes a blade's answer.
func (c *controller) undone(b *blade, q *undoQueue) {
	done := q.queue[:q.out]
	q.queue, q.out = q.queue[q.out:], 0
	if len(q.queue) == 0 {
		q.queue = nil
	}
	c.askUndo(b, q)
	for _, e := range done {
		e.answered()
	}
}

func (e *undoTask) answered() {
	if e.waiting--; e.waiting == 0 {
		e.then()
	}
}

// excuse waits no longer for a memory blade that has failed or begun anew: what it
// had of executions is gone, or is settled when it is back.
func (c *controller) excuse(b *blade) {
	waiting := []undoQueue{b.commits, b.rollbacks}
	b.commits, b.rollbacks = newUndoQueues()
	for _, o := range b.commands {
		if f, ok := o.body.(control.Fence); ok {
			b.missed.fence(f)
		}
	}
	b.commands = nil
	for _, q := range waiting {
		for _, e := range q.queue {
			if _, call := c.table.View(rpcpacket.ID(e.run.Execution)); !call || q.kind == control.KindRollback {
				b.missed.record(q.kind, e.run)
			}
		}
	}
	c.keepMissed(b)
	for _, q := range waiting {
		for _, e := range q.queue {
			e.answered()
		}
	}
}

func newUndoQueues() (commits, rollbacks undoQueue) {
	return undoQueue{kind: control.KindCommit}, undoQueue{kind: control.KindRollback}
}

// mayWrite notes that a node has, or is about to have, control of a region.
func (c *controller) mayWrite(a netip.Addr) {
	if n := c.nodeOrFallen(a); n != nil {
		n.writes = true
	}
}

// couldWrite reports whether a node has had control of a region.
func (c *controller) couldWrite(a netip.Addr) bool {
	n := c.nodeOrFallen(a)
	return n == nil || n.writes
}

func (c *controller) nodeOrFallen(a netip.Addr) *node {
	if n := c.nodes[a]; n != nil {
		return n
	}
	return c.fallen[a]
}

// deferFree notes that a memory blade has marked a region to be freed when an
// execution commits.
func (c *controller) deferFree(id rpcpacket.ID, r dsmpacket.Region) {
	c.deferred[id] = appendRegion(c.deferred[id], r)
}

// freeDeferred ends the frees of an execution that was committed or rolled back:
// the regions go with their last rules, or get their rules back. Then it goes on.
func (c *controller) freeDeferred(id rpcpacket.ID, gone bool, then func()) {
	regions := c.deferred[id]
	delete(c.deferred, id)
	if !gone {
		for p, f := range c.frees { // also those whose answer has not come
			if f.execution == id {
				if r, ok := c.leases.Find(p); ok && r.Freeing {
					regions = appendRegion(regions, r.Region)
				}
			}
		}
		slices.SortFunc(regions, func(a, b dsmpacket.Region) int { return bytes.Compare(a.Base[:], b.Base[:]) })
	}
	left := len(regions)
	if left == 0 {
		then()
		return
	}
	for _, r := range regions {
		delete(c.frees, r.Base)
		c.submit(lease.Freed{Region: r, OK: gone}, verdict(func(s lease.Step, _ error) {
			if s.Outcome == lease.Done && gone {
				c.count.Frees++
				c.event(Event{Kind: RegionFreed, Region: r.String()})
			}
			if left--; left == 0 {
				then()
			}
		}))
	}
}

func appendRegion(all []dsmpacket.Region, r dsmpacket.Region) []dsmpacket.Region {
	if slices.Contains(all, r) {
		return all
	}
	return append(all, r)
}

// A region comes up at a memory blade when that handles the request, and here when
// the answer comes by. If its node fails in between, and the answer is lost, nobody
// asks again, and nobody but the memory blade knows the region. So its answer to a
// fence names the regions whose allocations the node had not settled:
//
//	fence ─▶ unsettled allocations ─▶ known here? it is somebody's ─▶ nothing to do
//	                                          └─ no ─▶ an execution's that is run again, which finds it: wait for its end
//	                                               └─▶ else: reclaimed
//
// What is lost with the Gatekeeper's own end, the audit of its successor finds.

// fenced takes a memory blade's answer to a fence.
func (c *controller) fenced(b *blade, f control.Fence, m control.Message) {
	var told control.Fenced
	if m.Status != fault.OK || len(m.Body) == 0 || json.Unmarshal(m.Body, &told) != nil {
		return // an error is reported by whoever has asked; what it hides waits for an audit
	}
	for _, id := range told.Regions {
		c.lost(c.unknownOf(b, id), f.Node)
	}
	if told.More {
		c.audit(b)
	}
}

// unknownRegion is a region of a memory blade that nobody here knows, and the execution that
// has allocated it, if that has not been committed, in which incarnation of its node; direct is the
// node if it decides about the execution.
type unknownRegion struct {
	region      dsmpacket.Region
	execution   rpcpacket.ID
	incarnation uint32
	direct      netip.Addr
}

// unknownOf is a region that a memory blade names.
func (c *controller) unknownOf(b *blade, id control.RegionID) unknownRegion {
	s := unknownRegion{region: id.Region(c.cfg.DSMPrefix, b.hello.Machine), execution: c.executionOf(id.Execution), incarnation: id.Incarnation}
	if id.Direct {
		s.direct = id.Owner
	}
	return s
}

// lost looks after a region whose owner, an incarnation of a node, has ended, and may
// not have heard of it.
func (c *controller) lost(s unknownRegion, owner netip.Addr) {
	if !s.execution.IsZero() && c.runsAgain(&s, owner) {
		if !slices.Contains(c.unclaimed[s.execution], s) {
			c.unclaimed[s.execution] = append(c.unclaimed[s.execution], s)
		}
		return
	}
	c.reclaimUnknown(s)
}

// runsAgain reports whether an execution may yet ask for what it has allocated on a
// node: it has not ended, and is not a call's that ends with that node. Of one about which the
// node decides, the next incarnation says when it has ended.
func (c *controller) runsAgain(s *unknownRegion, at netip.Addr) bool {
	direct := s.direct == at && at.IsValid()
	if !direct && !c.table.Open(s.execution) {
		return false
	}
	_, awaited := c.recoveries.Awaits(at)
	_, call := c.table.View(s.execution)
	return !call && !direct || awaited || c.nodes[at] != nil
}

// endDirect ends the executions about which a node has decided that is gone for good: nobody else
// says that they have ended. What they have allocated and never got is reclaimed, and what was lost
// is forgotten.
func (c *controller) endDirect(node netip.Addr) {
	for _, e := range slices.SortedFunc(maps.Keys(c.origins.direct), rpcpacket.ID.Compare) {
		if c.origins.direct[e] == node && !c.table.Open(e) {
			c.endOrigins(e, 0)
		}
	}
	for _, e := range slices.SortedFunc(maps.Keys(c.unclaimed), rpcpacket.ID.Compare) {
		if slices.ContainsFunc(c.unclaimed[e], func(s unknownRegion) bool { return s.direct == node }) {
			c.endUnclaimed(e)
		}
	}
}

// endedRegions takes a node's word what becomes of regions at the end of executions about which it
// decides: those that the executions have freed, and those that they have allocated.
func (c *controller) endedRegions(n *node, all []control.EndedRegions) error {
	regions := 0
	for i := range all {
		r := &all[i]
		if regions += r.Size(); regions > 2*control.MaxEndedRegions {
			return fault.New(fault.BadRequest, "calls", "node %s tells of too many regions at a time", n.address)
		}
		if !c.decides(n, r) {
			return fault.New(fault.PermissionDenied, "calls", "node %s does not decide about execution %s", n.address, rpcpacket.ID(r.Execution))
		}
		for _, g := range r.GivenUp {
			if k := c.loans[rpcpacket.ID(g.Call)]; k != nil && k.caller == n.address && k.stage == loanReturned {
				return fault.New(fault.Overloaded, "calls", "the answer to call %s is about to hand regions over", k.id())
			}
		}
	}
	for i := range all {
		r := &all[i]
		e := rpcpacket.ID(r.Execution)
		for _, g := range r.GivenUp {
			c.givenUp(n, e, g)
		}
		for _, a := range r.Frees {
			p := dsmpacket.FromAddr(a)
			if v, ok := c.leases.Find(p); ok && v.Region.Base == p && v.Controller == n.address { // else it is gone, or was told before
				c.count.Frees++
				c.steps(c.leases.Abandon(v.Region, n.address))
			}
		}
		switch {
		case r.Ended:
			c.endHoldings(e, n.address, r.Kept)
			c.forgetAnswered(n, r)
		case r.Checkpoint > 0 && c.table.Directs(e, n.address):
			c.endOrigins(e, r.Checkpoint)
		}
	}
	return nil
}

// decides reports whether a node may speak for an execution: the Gatekeeper does not know it, nor
// anybody else as the controller of what it has allocated; or it is a durable main that is direct there, of which
// the Gatekeeper itself hears when it is over.
func (c *controller) decides(n *node, r *control.EndedRegions) bool {
	e := rpcpacket.ID(r.Execution)
	if c.table.Directs(e, n.address) {
		return !r.Ended
	}
	if _, known := c.table.View(e); known || c.table.Open(e) {
		return false
	}
	for _, r := range c.holdings.held[e] {
		if v, ok := c.leases.Find(r.Base); ok && v.Region == r && v.Controller != n.address {
			return false
		}
	}
	return !slices.ContainsFunc(c.unclaimed[e], func(s unknownRegion) bool { return s.direct != n.address })
}

// endUnclaimed reclaims what an execution has allocated and never got.
func (c *controller) endUnclaimed(e rpcpacket.ID) {
	for _, s := range c.unclaimed[e] {
		c.reclaimUnknown(s)
	}
	delete(c.unclaimed, e)
}

func (c *controller) reclaimUnknown(s unknownRegion) {
	if _, known := c.leases.Find(s.region.Base); !known {
		c.reclaimNamed(s)
	}
}

// A memory blade that is out of service, but has not begun anew, still has its
// regions and what executions did to them. When it says hello again, it is told what
// it has missed, before the first request reaches it:
//
//	hello ─▶ fences ─▶ commits and rollbacks ─▶ commit of what has ended meanwhile ─▶ in service
//	              each is struck out when the blade has done it
//
// If the blade answers one of them with an error, its hello fails, and it says hello
// again.

// missed is what a memory blade was not there for. Commits are those of durable mains
// that go on; of what has ended, the blade knows itself what is to be committed. An
// execution cannot have changed anything there since the first of its commits and
// rollbacks. So of each execution there are at most two: the first, which decides, and
// the latest, after which the blade refuses all that are older.
type missed struct {
	Fences []control.Fence `json:"fences,omitempty"`
	Undos  []missedUndo    `json:"undos,omitempty"`
}

// missedUndo is a commit or rollback of a run.
type missedUndo struct {
	Kind control.Kind `json:"kind"` // KindCommit or KindRollback
	Run  control.Run  `json:"run"`
}

// fence adds a fence, instead of one of an earlier incarnation. It reports whether it did. That an
// incarnation is forsaken stays, though a later one is fenced.
func (m *missed) fence(f control.Fence) bool {
	i := slices.IndexFunc(m.Fences, func(o control.Fence) bool { return o.Node == f.Node && o.Forsaken == f.Forsaken })
	switch {
	case i < 0:
		m.Fences = append(m.Fences, f)
	case m.Fences[i].Incarnation >= f.Incarnation:
		return false
	default:
		m.Fences[i] = f
	}
	return true
}

// record adds a commit or rollback, in the place of a former latest one of the
// execution. It reports whether it did.
func (m *missed) record(kind control.Kind, run control.Run) bool {
	u := missedUndo{kind, run}
	if slices.Contains(m.Undos, u) {
		return false
	}
	of := func(o missedUndo) bool { return o.Run.Execution == run.Execution }
	if i := slices.IndexFunc(m.Undos, of); i >= 0 {
		if k := slices.IndexFunc(m.Undos[i+1:], of); k >= 0 {
			m.Undos = slices.Delete(m.Undos, i+1+k, i+2+k)
		}
	}
	m.Undos = append(m.Undos, u)
	return true
}

// next returns what is due next: a fence, or commits or rollbacks of one kind; nothing
// for neither.
func (m *missed) next() (f *control.Fence, undos []missedUndo) {
	if len(m.Fences) > 0 {
		first := m.Fences[0]
		return &first, nil
	}
	for _, u := range m.Undos {
		if u.Kind != m.Undos[0].Kind || len(undos) == control.MaxExecutions {
			break
		}
		undos = append(undos, u)
	}
	return nil, undos
}

// done strikes out what the blade has done.
func (m *missed) done(f *control.Fence, undos []missedUndo) {
	m.Fences = slices.DeleteFunc(m.Fences, func(o control.Fence) bool { return f != nil && o == *f })
	has := make(map[missedUndo]bool, len(undos))
	for _, u := range undos {
		has[u] = true
	}
	m.Undos = slices.DeleteFunc(m.Undos, func(o missedUndo) bool { return has[o] })
}

// portAddress is a blade's switch port, and from which address it speaks there.
type portAddress struct {
	port uint16
	mac  string
}

// absent yields the memory blades that are out of service.
func (c *controller) absent(yield func(*blade) bool) {
	for _, b := range c.sortedBlades() {
		if b.memory() && !b.alive() && b.holds() && !yield(b) {
			return
		}
	}
}

// missFence notes a fence for the blades that are not there.
func (c *controller) missFence(f control.Fence) {
	for b := range c.absent {
		if b.missed.fence(f) {
			c.keepMissed(b)
		}
	}
}

// missSettling notes a commit of a durable main, or a rollback, for the blades that
// are not there.
func (c *controller) missSettling(kind control.Kind, run control.Run) {
	if _, call := c.table.View(rpcpacket.ID(run.Execution)); call && kind == control.KindCommit {
		return
	}
	for b := range c.absent {
		if b.missed.record(kind, run) {
			c.keepMissed(b)
		}
	}
}

// catchUp tells a memory blade what it has missed, and then goes on with its hello. What
// an earlier hello has begun to tell is given up.
func (c *controller) catchUp(p *port, hello control.Message, b *blade) error {
	p.cancel()
	return c.catchUpMore(p, hello, b)
}

func (c *controller) catchUpMore(p *port, hello control.Message, b *blade) error {
	f, undos := b.missed.next()
	done := func(m control.Message) {
		if c.caughtUp(p, hello, m, b) {
			c.settledRuns(b, m)
			b.missed.done(f, undos)
			c.keepMissed(b)
			c.goOn(p, hello, c.catchUpMore(p, hello, b))
		}
	}
	switch {
	case f != nil:
		return c.ask(p, control.KindFence, f, func(m control.Message) {
			if m.Status == fault.OK {
				c.fenced(b, *f, m)
			}
			done(m)
		})
	case len(undos) > 0:
		runs := make([]control.Run, len(undos))
		for i, u := range undos {
			runs[i] = u.Run
		}
		return c.ask(p, undos[0].Kind, undoBody(b, undos[0].Kind, runs), done)
	}
	return c.commitRest(p, hello, b, control.ExecutionID{})
}

// caughtUp reports whether a blade has done what catchUp has asked, and still waits for
// its hello.
func (c *controller) caughtUp(p *port, hello, m control.Message, b *blade) bool {
	switch {
	case b.alive() || m.Status == fault.Stale: // meanwhile; or there is another Gatekeeper
		return false
	case m.Status == fault.OK:
		return true
	}
	err := fault.Remote(m.Status, m.Kind.String(), "%s", m.Body)
	c.count.Failures++
	c.logger.Error("a memory blade does not catch up, and stays out of service", "blade", b.hello.Blade, "command", m.Kind, "error", err)
	c.goOn(p, hello, err)
	return false
}

// goOn answers a hello with an error, if there is one: the daemon says hello again.
func (c *controller) goOn(p *port, hello control.Message, err error) {
	if err != nil {
		c.fail(p, hello, err)
	}
}

// decided reports whether what an execution did is to stay: it is known no more, or its
// outcome is logged and is not that it was given up.
func (c *controller) decided(e rpcpacket.ID) bool {
	v, call := c.table.View(e)
	return !c.table.Open(e) || call && v.Stage == "committing"
}

// commitRest has a memory blade commit what executions did that have ended
// meanwhile, page by page, and then goes on with its hello.
func (c *controller) commitRest(p *port, hello control.Message, b *blade, from control.ExecutionID) error {
	return c.ask(p, control.KindExecutions, control.Executions{From: from, Max: control.MaxExecutions}, func(m control.Message) {
		if !c.caughtUp(p, hello, m, b) {
			return
		}
		var page control.ExecutionList
		if err := m.Decode(&page); err != nil {
			c.goOn(p, hello, err)
			return
		}
		ended := slices.DeleteFunc(page.Runs, func(r control.Run) bool { return !c.decided(c.executionOf(r.Execution)) })
		next := func() error {
			switch {
			case page.Next != control.ExecutionID{}:
				return c.commitRest(p, hello, b, page.Next)
			case len(b.missed.Fences)+len(b.missed.Undos) > 0: // meanwhile
				return c.catchUpMore(p, hello, b)
			}
			var h control.Hello
			if err := hello.Decode(&h); err != nil {
				return err
			}
			b, err := c.admit(p, &h) // things may have changed meanwhile
			if err != nil {
				return err
			}
			return c.register(p, hello, b, h)
		}
		if len(ended) == 0 {
			c.goOn(p, hello, next())
			return
		}
		c.goOn(p, hello, c.ask(p, control.KindCommit, undoBody(b, control.KindCommit, ended), func(m control.Message) {
			if c.caughtUp(p, hello, m, b) {
				c.settledRuns(b, m)
				c.goOn(p, hello, next())
			}
		}))
	})
}
