package rpc

import (
	"context"
	"net/netip"
	"slices"
	"time"

	"github.com/bifrost-rack/bifrost/dsm"
	"github.com/bifrost-rack/bifrost/dsm/dsmclient"
	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/rpc/direct"
	"github.com/bifrost-rack/bifrost/rpc/record"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// What executions and durable mains do to memory is decided by their node. Before the first change
// on a machine its ledger names the machine (journal), so that the next incarnation takes the change
// back there before it does anything else. At the end done is settled, then the machines
// commit. Regions that the execution frees go after that, by the word of the Gatekeeper,
// which knows who may do what with them; so do those that it has allocated and nobody
// can know any more:
//
//	alloc, write ─▶ ... ─▶ done settled ─▶ committed ─▶ REPLY
//	free: noted                                     └─▶ Gatekeeper: these regions go ─▶ over
//
// A direct call with pointers lends its callee memory. The switch holds it, and its answer, for the
// Gatekeeper to change the rights; nothing else is decided there:
//
//	CALL  ──▶ the callee's address ──held──▶ Gatekeeper: leases begin ──▶ callee, as any direct call
//	REPLY ──▶ the caller's address ──held──▶ Gatekeeper: leases end   ──▶ caller
//
// The first packet of a call that exceeds a packet has all of its pointers. The callee asks the caller for the
// rest when the Gatekeeper has let the first packet through (large.go).
//
// A one-way with pointers hands its receiver memory in the same way. Control moves, rather than leases begin, and what
// comes back is the acknowledgement (commit.go):
//
//	ONEWAY ──▶ the receiver's address ──held──▶ Gatekeeper: control moves ──▶ receiver, as any direct one-way
//	REPLY, or EXCEPTION: it never takes the one-way ──held──▶ Gatekeeper: control returns ──▶ sender
//
// An execution that has lent memory is not taken back before the leases have ended: its callee may
// be reading. The next incarnation of its node asks the Gatekeeper.
//
// The same holds if an execution lends memory to a call of policy none. The ledger has the call's id before the call leaves. The
// execution's next run makes another call, which has an id of its own. It meets the leases of the first one, which keep it
// from writing, unless it waits for their end. So it waits, also if it has nothing to take back. (The Gatekeeper
// lets a durable main begin again when the leases of its calls have ended.)

var _ dsmclient.Decider = (*execution)(nil)

// account is what an execution has done with regions; e.mu guards it.
type account struct {
	allocated []dsmpacket.Region         // and has not freed
	freed     []dsmpacket.Region         // Class 0 if it is not known how large it is
	handed    []dsmpacket.Region         // by one-ways, likewise
	ever      bool                       // it has allocated some, or freed some
	left      map[place]dsmpacket.Region // what former runs have allocated, and this one has not asked for
}

// place names an allocation of an execution, as memory machines do (dsmclient.Scope).
type place struct {
	branch uint64
	index  uint32
}

// inMemory is what memory machines know the execution as.
func (e *execution) inMemory() rpcpacket.ID {
	if e.main != nil {
		return e.main.memory
	}
	return e.call.Call
}

// run is this run of the execution, as memory machines know it; of a durable main, after its last checkpoint.
func (e *execution) run() control.Run {
	r := control.Run{Execution: control.ExecutionID(e.inMemory()), Incarnation: e.node.self.Incarnation}
	if e.main != nil {
		r.Main, r.Checkpoint = e.main.run, e.main.lastCheckpoint()
	}
	return r
}

// takenBack waits until memory machines have taken back what former runs of an execution have done.
// It reports false if the node ends.
func (e *execution) takenBack() bool {
	if !e.resumed {
		return true
	}
	l := e.node.ledger
	owed := l.resumes.memory[e.call.Call]
	if owed == nil {
		return true
	}
	if !owed.over() {
		e.promote()
		if l.await(e.node.base, owed.obeyed) != nil {
			return false
		}
	}
	e.finds(owed.left)
	return true
}

// finds notes what is left of former runs.
func (e *execution) finds(left []dsmclient.Left) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.account.left = make(map[place]dsmpacket.Region, len(left))
	for _, r := range left {
		e.account.left[place{r.Branch, r.Index}] = r.Region
	}
}

// Changes implements dsmclient.Decider.
func (e *execution) Changes(machine uint8) error {
	if !e.durableAt(machine) {
		return e.whyEnded()
	}
	return nil
}

// durableAt is durable for the first write to a memory machine.
func (e *execution) durableAt(machine uint8) bool {
	e.mu.Lock()
	known := slices.Contains(e.recorded.machines, machine)
	e.mu.Unlock()
	if known {
		return true
	}
	e.promote()
	e.mu.Lock()
	foreseen := slices.Contains(e.recorded.foreseen, machine)
	e.mu.Unlock()
	if !foreseen && !e.writeDown(record.Call{}, machine) {
		return false
	}
	e.mu.Lock()
	last := e.recorded.last
	e.mu.Unlock()
	if !e.node.ledger.settle(last) {
		return false
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if !slices.Contains(e.recorded.machines, machine) {
		e.recorded.machines = append(e.recorded.machines, machine)
	}
	return true
}

// foresee adds to the ledger that the execution will change the memory machines that the method's last
// call has changed: when it does, the ledger has that already. On a machine that it does not change
// after all there is nothing to take back; one of a single copy may be away then, so it is not foretold.
func (e *execution) foresee() {
	if e.resumed || e.journal == nil {
		return
	}
	machines := e.served.changes.Load()
	if machines == nil || !e.node.mirrored(*machines) {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if _, written := e.tryWrite(record.Call{}, *machines...); written {
		e.recorded.foreseen = *machines
	}
}

// mirrored reports whether each of the memory machines has two copies.
func (n *Node) mirrored(machines []uint8) bool {
	all := n.session.Rack().Memories
	return !slices.ContainsFunc(machines, func(machine uint8) bool {
		return !slices.ContainsFunc(all, func(m control.MemoryBlade) bool { return m.Machine == machine && m.Copies > 1 })
	})
}

// hasChanged notes for the method's next call which machines the execution has changed.
func (m *served) hasChanged(machines []uint8) {
	switch last := m.changes.Load(); {
	case last == nil && len(machines) == 0 || last != nil && slices.Equal(*last, machines):
	case len(machines) == 0:
		m.changes.Store(nil)
	default:
		m.changes.Store(&machines)
	}
}

// Former implements dsmclient.Decider. What a former run has got, and no memory machine has any more, is lost if the journal has it: else
// nobody knows it.
func (e *execution) Former(branch uint64, index uint32) (r dsmpacket.Region, had bool, err error) {
	e.mu.Lock()
	r, had = e.account.left[place{branch, index}]
	e.mu.Unlock()
	if !had && e.journal.hasAllocated(position{uint32(branch), index}) { //nolint:gosec // the upper half is the last checkpoint
		err = fault.New(Unavailable, "alloc", "a former run of the execution has got a region which is lost")
	}
	return r, had, err
}

// Allocated implements dsmclient.Decider.
func (e *execution) Allocated(branch uint64, index uint32, r dsmpacket.Region) {
	e.journal.allocated(position{uint32(branch), index}, slices.Clone(r.Base[:])) //nolint:gosec // likewise
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.account.left, place{branch, index})
	e.account.ever = true
	e.account.allocated = append(e.account.allocated, r)
	e.node.stats.regionsAllocated.Add(1)
}

// Allocation implements dsmclient.Decider.
func (e *execution) Allocation(p dsm.Pointer) (dsmpacket.Region, bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return regionIn(e.account.allocated, p)
}

// Free implements dsmclient.Decider.
func (e *execution) Free(p dsm.Pointer) {
	e.mu.Lock()
	defer e.mu.Unlock()
	r, own := regionIn(e.account.allocated, p)
	if own {
		e.account.allocated = slices.DeleteFunc(e.account.allocated, func(o dsmpacket.Region) bool { return o == r })
	} else {
		r = dsmpacket.Region{Base: p}
	}
	e.account.ever = true
	e.account.freed = append(e.account.freed, r)
	e.node.stats.regionsFreed.Add(1)
}

// Freed implements dsmclient.Decider.
func (e *execution) Freed(p dsm.Pointer) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	_, freed := regionIn(e.account.freed, p)
	_, handed := regionIn(e.account.handed, p)
	return freed || handed
}

// gives notes that a one-way hands regions over when the execution has ended. The caller holds e.mu.
func (e *execution) gives(all []dsm.Pointer) {
	for _, p := range all {
		r, own := regionIn(e.account.allocated, p)
		if !own {
			r = dsmpacket.Region{Base: p.Bare()}
		}
		e.account.handed = append(e.account.handed, r)
	}
}

// regionIn finds the region that a pointer points into.
func regionIn(all []dsmpacket.Region, p dsm.Pointer) (dsmpacket.Region, bool) {
	i := slices.IndexFunc(all, func(r dsmpacket.Region) bool { return r.Contains(p.Bare()) })
	if i < 0 {
		return dsmpacket.Region{}, false
	}
	return all[i], true
}

// owedOfRegions fills in what is owed because of regions. A run before this one may have
// allocated some whose pointers it never saw. The caller holds e.mu.
func (e *execution) owedOfRegions(o *record.Owed) {
	for _, r := range e.account.freed {
		o.Frees = append(o.Frees, r.Base)
	}
	switch may := e.account.ever || len(e.recorded.open) > 0 || e.resumed && len(e.recorded.machines)+len(e.recorded.called) > 0; {
	case !may:
	case e.export.config.stateful() && !e.spoilt:
		o.Regions = record.RegionsKept
	default:
		o.Regions = record.RegionsFreed
	}
}

// told is what the Gatekeeper is to be told of regions. The ledger's mutex guards it.
type told struct {
	waiting []*commit
	due     time.Duration // when it is told, in node time
	telling bool
}

const (
	// regionsAfter is how long what ends is gathered that frees nothing: nobody waits for it.
	regionsAfter = 20 * time.Millisecond
	// regionsAgain is how long the node waits until it tells the Gatekeeper again.
	regionsAgain = 250 * time.Millisecond
)

// tellRegions has the Gatekeeper told what becomes of the regions of an execution that is done, or of a durable main at
// a checkpoint, which says all that the checkpoints before it do. The caller holds l.mu.
func (l *ledger) tellRegions(k *commit) {
	now := l.node.now()
	k.gaveUp = l.table.GaveUp(k.id)
	if len(l.told.waiting) == 0 {
		l.told.due = now + regionsAfter
	}
	if len(k.owed.Frees) > 0 {
		l.told.due = min(l.told.due, now)
	}
	l.told.waiting = append(slices.DeleteFunc(l.told.waiting, func(o *commit) bool { return o.id == k.id }), k)
	l.node.wakeAt(l.told.due)
}

// regionsTold notes that the Gatekeeper knows what becomes of regions. The caller holds l.mu.
func (l *ledger) regionsTold(k *commit) {
	if e := l.table.State().Execution(k.id); e != nil && e.Checkpoint != nil && e.Checkpoint.Index != k.run.Checkpoint {
		return // there is a later checkpoint, of which it is told
	}
	l.add(l.table.Told(k.id)...)
}

// tickRegions tells the Gatekeeper what is due, and returns when it has to be called next.
func (n *Node) tickRegions(now time.Duration) (next time.Duration, ok bool) {
	l := n.ledger
	l.mu.Lock()
	defer l.mu.Unlock()
	t := &l.told
	if t.telling || len(t.waiting) == 0 {
		return 0, false
	}
	if now < t.due {
		return t.due, true
	}
	all := t.waiting
	t.waiting, t.telling = nil, true
	go func() {
		rest := n.tellEnded(all)
		l.mu.Lock()
		defer l.mu.Unlock()
		for _, k := range all {
			if !slices.Contains(rest, k) {
				l.regionsTold(k)
			}
		}
		if t.telling = false; len(rest) > 0 {
			t.due = n.now() + regionsAgain // the next incarnation tells it, if the node ends
		}
		if t.waiting = append(rest, t.waiting...); len(t.waiting) > 0 {
			n.wakeAt(t.due)
		}
	}()
	return 0, false
}

// tellEnded tells the Gatekeeper of executions that are done, and returns those of which it does not
// know yet. If it refuses one of them, the others are told alone.
func (n *Node) tellEnded(all []*commit) (rest []*commit) {
	var words []control.EndedRegions
	size := 0
	var err error
	tell := func() {
		if len(words) > 0 && err == nil {
			err = n.session.Calls(n.base, control.NodeCalls{Regions: words})
		}
		words, size = nil, 0
	}
	for _, k := range all {
		for _, r := range k.endedRegions() {
			if size+r.Size() > control.MaxEndedRegions {
				tell()
			}
			words, size = append(words, r), size+r.Size()
		}
	}
	tell()
	switch {
	case err == nil:
		return nil
	case n.base.Err() != nil:
		return all
	case len(all) == 1:
		n.log.Debug("rpc: the Gatekeeper does not know yet what becomes of regions", "node", n.self.Name, "err", err)
		return all
	}
	for _, k := range all {
		rest = append(rest, n.tellEnded([]*commit{k})...)
	}
	return rest
}

// endedRegions is what is told of one execution: the calls that it has given up and what it frees, some at a time, then what
// becomes of the other regions. Those of a durable main stay the main's until it is over.
func (k *commit) endedRegions() (words []control.EndedRegions) {
	for some := range slices.Chunk(k.gaveUp, control.MaxEndedRegions-1) {
		r := control.EndedRegions{Execution: control.ExecutionID(k.id)}
		for _, i := range some {
			r.GivenUp = append(r.GivenUp, control.GivenUpCall{Call: control.ExecutionID(i.ID), Lane: i.Lane, Number: i.Number})
		}
		words = append(words, r)
	}
	frees := make([]netip.Addr, len(k.owed.Frees))
	for i, p := range k.owed.Frees {
		frees[i] = dsm.Pointer(p).Addr()
	}
	for {
		some := frees[:min(len(frees), control.MaxEndedRegions-1)]
		frees = frees[len(some):]
		r := control.EndedRegions{Execution: control.ExecutionID(k.id), Frees: some}
		if len(frees) > 0 {
			words = append(words, r)
			continue
		}
		if k.run.Main != 0 {
			return append(words, r)
		}
		r.Ended, r.Kept = k.owed.Regions != record.RegionsNone || k.owed.Later, k.owed.Regions != record.RegionsFreed
		if k.owed.Later {
			r.Lane, r.Number = k.lane, k.number
		}
		return append(words, r)
	}
}

// lentBy lists the calls that may have leases, of those that an execution has made. If it has changed nothing in memory,
// only those of policy none count: its next run makes the others again.
func lentBy(called []record.Call, changed bool) (ids []control.ExecutionID) {
	for _, k := range called {
		if k.Lends && (changed || !k.Direct()) {
			ids = append(ids, control.ExecutionID(k.ID))
		}
	}
	return ids
}

// lends gives a call of policy none its id, and has the ledger say that the call lends memory. It reports whether the
// execution may go on.
func (o *operation) lends(p *pending) bool {
	n := o.b.e.node
	n.out.mu.Lock()
	n.out.core.Name(&p.Call)
	n.out.mu.Unlock()
	if o.durable(record.Call{ID: p.ID, Lends: true}) {
		return true
	}
	n.out.mu.Lock()
	defer n.out.mu.Unlock()
	n.out.core.Unname(&p.Call)
	return false
}

// loansOver reports whether none of these calls has leases any more; false, too, if the Gatekeeper
// does not say so.
func (n *Node) loansOver(ctx context.Context, ids []control.ExecutionID) bool {
	ctx, cancel := context.WithTimeout(ctx, servingPatience)
	defer cancel()
	for some := range slices.Chunk(ids, control.MaxDirectCalls) {
		if n.session.Calls(ctx, control.NodeCalls{Lent: some}) != nil {
			return false
		}
	}
	return true
}

// loansAgain is how long the node waits until it asks the Gatekeeper again.
const loansAgain = 50 * time.Millisecond

// awaitLoans waits until calls have no leases any more. It reports false if the node ends.
func (n *Node) awaitLoans(lent []control.ExecutionID) bool {
	for !n.loansOver(n.base, lent) {
		select {
		case <-time.After(loansAgain):
		case <-n.base.Done():
			return false
		}
	}
	return true
}

// probed answers the Gatekeeper, which asks in its caller's name what has become of a call that
// has leases. One that is not known is refused for good first: a copy of it may be on its way.
func (n *Node) probed(from netip.AddrPort, m *rpcpacket.Message) {
	l := n.ledger
	l.mu.Lock()
	defer l.mu.Unlock()
	switch v, known := l.table.Probe(from.Addr().As16(), &m.Header); {
	case v == direct.Answer && !l.settling[m.Call]:
		n.stats.answeredFromLedger.Add(1)
		go n.sendRecorded(from, answerFor(answerOf(known), known.Done, m.CallerIncarnation), 0)
	case v == direct.Duplicate && m.Type == rpcpacket.Oneway && known != nil:
		go n.whenSettled(from, n.accepts(m))
	case v == direct.Duplicate && l.table.Shares(m.Call):
		go l.askCaller(from.Addr().As16(), m.CallerIncarnation) // its next incarnation may be waiting for the end of the call
	case v == direct.Late && l.placed():
		last := l.add(l.table.Void(from.Addr().As16(), &m.Header))
		refusal := n.exception(m, Unavailable, "the call has not come", true)
		go func() {
			if l.settle(last) {
				n.send(from, refusal)
			}
		}()
	case v == direct.Malformed:
		n.malformed(from.Addr())
	case v == direct.Foreign:
		n.foreign(from.Addr())
	}
}

// An answer with pointers goes direct, too: it hands the regions over. They move when the switch holds
// it. So the Gatekeeper hears what becomes of the callee's regions when nobody asks for the answer any
// more: what has not moved by then goes, or stays with a service that has state.

// tellLater tells the Gatekeeper of the regions of executions whose answers nobody asks for any
// more. The caller holds l.mu.
func (l *ledger) tellLater() {
	for _, d := range l.table.Tells() {
		l.tellRegions(commitOf(d))
	}
}

// answerOf is what is said of an execution that is done. One that is forgotten hands nothing over: the
// Gatekeeper alone asks, and somebody else may have the regions by now.
func answerOf(e *record.Execution) []byte {
	if !e.Forgotten || !e.Done.Owed.Later {
		return e.Done.Answer
	}
	m, err := rpcpacket.Parse(e.Done.Answer)
	if err != nil {
		return e.Done.Answer
	}
	m.Type, m.Code, m.Pointers, m.Trailer, m.Payload = rpcpacket.Exception, Unavailable, nil, nil, []byte("nobody asks for the answer any more")
	m.Flags |= rpcpacket.FlagHeld
	return m.Append(nil)
}

// handsOver reports whether an answer has pointers.
func handsOver(answer []byte) bool {
	m, err := rpcpacket.Parse(answer)
	return err == nil && m.Type == rpcpacket.Reply && len(m.Pointers) > 0
}

// gains notes that a direct call is answered, and may have handed regions over to the execution that has made
// it. What becomes of them is told at its end: of those of a durable main, the Gatekeeper hears that the main is
// over.
func (o *operation) gains(p *pending) {
	if p.of == nil {
		return
	}
	e := o.b.e
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.recorded.answered(p.ID); len(p.answer.Pointers) > 0 {
		e.account.ever = true
	}
}
