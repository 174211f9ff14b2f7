// Package direct decides about exactly-once calls that go straight to their callee, whose
// ledger is all that says what became of them. It does no I/O: packets and records in,
// verdicts and records out. The shell (package rpc) settles the records before it acts.
//
//	CALL ──Receive──▶ Run ─▶ [begun, journal] ─▶ done ─▶ REPLY ─▶ forgotten
//	          └─▶ Answer, Duplicate, Late, Refused
//
// A caller sends all copies of a call to one node. It numbers its calls within call slots, in
// which one call at a time is out; so a copy that is not known, and has a lower number than
// another call of the slot, is late, or the call has been refused. Each copy of one that was
// refused is answered, since the first answer may be lost. Every call of an incarnation is late
// once a later incarnation of the same caller has been heard.
package direct

import (
	"maps"
	"math"
	"net/netip"
	"slices"

	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/internal/share"
	"github.com/bifrost-rack/bifrost/rpc/record"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// Verdict is what to do with a call that has arrived.
type Verdict uint8

// The verdicts.
const (
	Run        Verdict = iota + 1 // it is new
	Duplicate                     // it runs, or will run again: drop the copy
	Answer                        // it is done: send the recorded answer
	Late                          // nobody waits for it any more: drop the copy
	Refused                       // it was refused for good, if anybody waits for it: say so again
	Diverged                      // it is done, and was another call then
	Malformed                     // it has no id, or no place: drop it
	Foreign                       // its id is another node's, or the call is: drop it
	Superseded                    // the caller has failed, whose fate it shares: Bury it, and see Outlived
	Gone                          // it is bound to another incarnation, which may have run it: refuse it
	Lost                          // it has run, and its answer is not kept any more: refuse it
	Unbegun                       // the call that it asks about has not come: Bury the incarnations before the asker's, and say so
	Full                          // there is no room to remember it, so it cannot be run at most once: drop it, it will be sent again
)

var verdicts = [...]string{"?", "run", "duplicate", "answer", "late", "refused", "diverged", "malformed", "foreign", "superseded", "gone", "lost", "unbegun", "full"}

// String returns the verdict's name.
func (v Verdict) String() string {
	if int(v) < len(verdicts) {
		return verdicts[v]
	}
	return verdicts[0]
}

// Table is what a node knows of direct calls that it has got, and of what it owes because
// of them. Its methods must not be called concurrently.
type Table struct {
	state   *record.State
	running map[rpcpacket.ID]*running
	floors  map[record.Place]rpcpacket.Number // of call slots: while what was accepted has no record
	heard   map[[16]byte]uint32               // the latest incarnation of each caller
	items   map[rpcpacket.ID]*item            // by calls
	owed    map[rpcpacket.ID]int              // how many items an execution owes
	quota   quota
	commits map[rpcpacket.ID]bool // executions whose changes in memory are to be committed
	regions map[rpcpacket.ID]*regions
	hands   map[rpcpacket.Region]int // by how many executions, mains and one-ways a region may be handed over
	mainHas map[rpcpacket.ID][][16]byte
	oneways oneways
	mains   map[rpcpacket.ID]bool // durable mains that have begun here: their ids are no calls'
	reruns  map[rpcpacket.ID]bool // executions and mains that are to be run again, and have not come to an end since
}

// running is a call that has been accepted and is not done.
type running struct {
	at        record.Place     // in which it has come
	number    rpcpacket.Number // the highest under which it is known to have come
	promised  int              // bytes that it may still write into the ledger
	forgotten bool             // nobody asks for its outcome
	fate
}

// New returns the Table of a node whose ledger adds up to a state. The Table changes it. A function, which must not call the Table, says whose a
// caller is; nil stands for share.Stranger.
func New(state *record.State, ownerOf func(node netip.Addr) share.Owner) *Table {
	return &Table{
		state: state, running: map[rpcpacket.ID]*running{}, floors: map[record.Place]rpcpacket.Number{}, heard: map[[16]byte]uint32{},
		items: map[rpcpacket.ID]*item{}, owed: map[rpcpacket.ID]int{}, quota: quota{held: share.NewNodes(0, ownerOf)},
		commits: map[rpcpacket.ID]bool{}, regions: map[rpcpacket.ID]*regions{}, hands: map[rpcpacket.Region]int{}, mainHas: map[rpcpacket.ID][][16]byte{},
		mains: map[rpcpacket.ID]bool{}, reruns: map[rpcpacket.ID]bool{},
		oneways: oneways{queues: map[[16]byte][]*owedOneway{}, waiting: map[rpcpacket.ID][]*owedOneway{}},
	}
}

// State is what the node's records add up to. It must not be changed.
func (t *Table) State() *record.State { return t.state }

// misnamed is the verdict on a message about a call that does not name it as its caller may; 0 for others. The id of a plain call has
// its caller and its place. Those of executions follow from what their node knows: nobody else can use them before.
func misnamed(caller [16]byte, h *rpcpacket.Header) Verdict {
	switch {
	case h.Call.IsZero() || !h.Slot.Valid() || h.CallerIncarnation > rpcpacket.MaxIncarnation || h.Number.Incarnation() != h.CallerIncarnation:
		return Malformed
	case !h.Call.Derived() && h.Call != rpcpacket.PlainID(netip.AddrFrom16(caller), h.Slot, h.Number):
		return Foreign
	}
	return 0
}

// Receive takes a copy of a call from a node; arguments is the hash of its arguments. A call
// that is to be run is known from then on.
func (t *Table) Receive(caller [16]byte, h *rpcpacket.Header, arguments uint64) (Verdict, *record.Execution) {
	if v := misnamed(caller, h); v != 0 {
		return v, nil
	}
	at := record.Place{Caller: caller, Slot: h.Slot}
	dead, _ := t.state.Dead(caller)
	e := t.state.Execution(h.Call)
	switch {
	case t.mains[h.Call] || !t.asks(caller, e, t.running[h.Call]):
		return Foreign, nil // it would get another's answer
	case e != nil && e.Forgotten:
		return Late, nil
	case t.running[h.Call] != nil && t.supersedes(caller, h, t.running[h.Call]):
		return Superseded, e
	case t.running[h.Call] != nil:
		return Duplicate, nil
	case e != nil && e.Done != nil && e.Done.Arguments != arguments:
		return Diverged, e
	case e != nil && e.Done != nil:
		return Answer, e
	case e != nil:
		return Duplicate, nil
	case h.CallerIncarnation <= dead || h.CallerIncarnation < t.heard[caller]:
		return Late, nil
	case h.Number < max(t.floors[at], t.state.Floor(at)):
		return Refused, nil
	}
	t.heard[caller] = h.CallerIncarnation
	t.floors[at] = h.Number
	t.running[h.Call] = &running{at: at, number: h.Number, fate: fateOf(h)}
	return Run, nil
}

// Claim keeps the id of a durable main that begins from being a call's: everybody knows it who knows the main's
// name. If a call has the id already, it is forgotten. Claim returns the record that says so, if there is something
// to write, and whether the id is free after that.
func (t *Table) Claim(main rpcpacket.ID) (r record.Record, free bool) {
	t.mains[main] = true
	e, runs := t.state.Execution(main), t.running[main]
	switch {
	case e == nil && runs == nil || e != nil && e.Main():
		return nil, true
	case e == nil || e.Done == nil:
		if runs != nil {
			runs.forgotten = true // as soon as it is done
		}
		return nil, false
	case e.Forgotten:
		return nil, false
	}
	return &record.Forgotten{Executions: []rpcpacket.ID{main}}, e.Over
}

// unaskable reports whether nobody may ask such a question: it comes from a later incarnation than the call's.
func unaskable(h *rpcpacket.Header) bool {
	return !h.Slot.Valid() || h.CallerIncarnation > rpcpacket.MaxIncarnation || h.Number.Incarnation() >= h.CallerIncarnation
}

// Ask takes a question what has become of a call, of a later incarnation of its caller's, or of the Gatekeeper in its name, which
// names slot and number only: Answer if it is done, though nobody else may ask for that any more; Duplicate if it is to come to
// its end, with the execution if it has begun; Superseded as in Receive; or Unbegun. Before that is said, a record (Bury) has to say
// that the caller's incarnations before the asker's are dead: so the call does not begin any more.
func (t *Table) Ask(asker [16]byte, h *rpcpacket.Header) (Verdict, *record.Execution) {
	if unaskable(h) {
		return Malformed, nil
	}
	at, id := record.Place{Caller: asker, Slot: h.Slot}, h.Call
	e, r := t.state.Execution(id), t.running[id]
	if e == nil && r == nil {
		if e = t.state.At(at, h.Number); e != nil {
			id, r = e.ID, t.running[e.ID]
		} else {
			id, r = t.runningAt(at, h.Number)
		}
	}
	switch {
	case t.mains[h.Call] || !t.asks(asker, e, r):
		return Foreign, nil
	case r != nil && id == h.Call && t.supersedes(asker, h, r):
		return Superseded, e
	case r != nil || e != nil && e.Done == nil:
		return Duplicate, e
	case e != nil:
		return Answer, e
	}
	return Unbegun, nil
}

// runningAt is the call that runs here and has come in a slot under a number.
func (t *Table) runningAt(at record.Place, n rpcpacket.Number) (rpcpacket.ID, *running) {
	for id, r := range t.running {
		if r.at == at && r.number == n {
			return id, r
		}
	}
	return rpcpacket.ID{}, nil
}

// Reruns is how many executions and mains are to be run again, and have not come to an end since.
func (t *Table) Reruns() int { return len(t.reruns) }

// Unwritten is that of the state.
func (t *Table) Unwritten(records int) { t.state.Unwritten(records) }

// Resumes notes that an execution is run again.
func (t *Table) Resumes(id rpcpacket.ID) {
	r := new(running)
	if e := t.state.Execution(id); e != nil {
		r.at, _, r.number = e.Caller()
		r.fate = t.fateAgain(e)
	}
	t.running[id] = r
}

// Drop forgets that a call runs: it was not run after all, and a copy of it is new.
func (t *Table) Drop(id rpcpacket.ID) { delete(t.running, id) }

// Refuse takes back that a call is run, for good: a node that closes has its caller choose
// another one. When the record is settled, no later incarnation of the node runs the call
// either.
func (t *Table) Refuse(caller [16]byte, h *rpcpacket.Header) record.Record {
	delete(t.running, h.Call)
	at := record.Place{Caller: caller, Slot: h.Slot}
	t.floors[at] = max(t.floors[at], h.Number+1)
	return &record.Forgotten{Slots: []record.Slot{{Place: at, Floor: h.Number + 1}}}
}

// Obsolete reports whether the outcome of a caller's call must not be written: its slot has gone on, and
// the ledger does not know that it has begun, so nobody can have seen anything of it.
func (t *Table) Obsolete(caller [16]byte, h *rpcpacket.Header) bool {
	return t.state.Execution(h.Call) == nil && h.Number < t.state.Floor(record.Place{Caller: caller, Slot: h.Slot})
}

// Apply notes a record that has been written. It returns the records that are to follow.
func (t *Table) Apply(r record.Record) (follow []record.Record, err error) {
	var touched []*record.Execution
	switch r := r.(type) {
	case *record.Begun:
		touched = t.state.Before(record.Place{Caller: r.Caller, Slot: r.Slot}, r.Number)
	case *record.Done:
		touched = t.state.Before(record.Place{Caller: r.Caller, Slot: r.Slot}, r.Number)
	case *record.Forgotten:
		for _, id := range r.Executions {
			touched = append(touched, t.state.Execution(id))
		}
		for _, l := range r.Slots {
			touched = append(touched, t.state.Before(l.Place, l.Floor)...)
		}
		if len(r.Callers) > 0 {
			touched = t.state.Executions()
		}
	}
	if err := t.state.Apply(r); err != nil {
		return nil, fault.New(fault.Internal, "ledger", "a record does not follow from those before it: %v", err)
	}
	t.lower(r)
	if r, ok := r.(*record.Done); ok {
		was := t.running[r.Execution]
		delete(t.running, r.Execution)
		delete(t.reruns, r.Execution)
		e := t.state.Execution(r.Execution)
		touched = append(touched, e)
		t.owe(e)
		t.oweOneways(r.Execution, r.Owed.Oneways)
		if e != nil && !e.Forgotten && (was != nil && was.forgotten || t.state.Buried(e)) {
			f := &record.Forgotten{Executions: []rpcpacket.ID{r.Execution}}
			if was != nil && was.number > r.Number { // a later run of its caller has sent it again
				f.Slots = []record.Slot{{Place: was.at, Floor: was.number + 1}}
			}
			follow = append(follow, f)
		}
	}
	if r, ok := r.(*record.Checkpoint); ok {
		delete(t.reruns, r.Main)
		e := t.state.Execution(r.Main)
		touched = append(touched, e)
		t.has(e)
		t.owe(e)
		t.oweMemory(e)
		t.oweOneways(r.Main, r.Owed.Oneways)
	}
	for _, e := range touched {
		if t.owe(e); t.paid(e) {
			follow = append(follow, &record.Over{Execution: e.ID})
		}
	}
	return follow, nil
}

// lower forgets the floors of slots that the ledger has now, and of callers that are gone.
func (t *Table) lower(r record.Record) {
	passed := func(at record.Place) {
		if floor, set := t.floors[at]; set && floor <= t.state.Floor(at) {
			delete(t.floors, at)
		}
	}
	switch r := r.(type) {
	case *record.Begun:
		passed(record.Place{Caller: r.Caller, Slot: r.Slot})
	case *record.Done:
		passed(record.Place{Caller: r.Caller, Slot: r.Slot})
	case *record.Forgotten:
		for i := range r.Slots {
			passed(r.Slots[i].Place)
		}
		for _, k := range r.Callers {
			if k.Gone {
				maps.DeleteFunc(t.floors, func(at record.Place, _ rpcpacket.Number) bool { return at.Caller == k.Node })
			}
		}
	}
}

// Resumption is what the next incarnation of a node has to do, by what its ledger adds up
// to.
type Resumption struct {
	// Rerun are executions that have begun and are not done.
	Rerun []*record.Execution
	// Rollback are those of Rerun that may have written to memory, or have lent some to calls of policy none.
	// Commit are those that are done whose changes may not be committed, or which have regions to be freed after that; so are
	// durable mains with a checkpoint. This comes before a re-run, and before an answer.
	Rollback, Commit []*record.Execution
	// Oneways are those that owe one-ways, which leave when the changes are committed.
	Oneways []*record.Execution
	// Over are records of executions that owe nothing, or that nobody asks for, though the ledger does not say so.
	Over []record.Record
}

// lendsUnheard reports whether an execution has lent memory to calls of policy none. Its next run does not make the
// same calls again, so it begins when these have ended: until then it may not write what they have.
func lendsUnheard(e *record.Execution) bool {
	return slices.ContainsFunc(e.Called, func(k record.Call) bool { return k.Lends && !k.Direct() })
}

// Resume decides what the next incarnation of a node has to do. What it owes is noted.
func (t *Table) Resume() (r Resumption) {
	for _, e := range t.state.Executions() {
		t.owe(e)
		if e.Main() {
			t.has(e)
			t.oweMemory(e)
		}
		if owed := e.Owed(); len(owed.Oneways) > 0 {
			t.oweOneways(e.ID, owed.Oneways)
			r.Oneways = append(r.Oneways, e)
		}
		if t.commits[e.ID] || t.regions[e.ID] != nil {
			r.Commit = append(r.Commit, e)
		}
		if e.Done != nil && !e.Forgotten && t.state.Buried(e) {
			r.Over = append(r.Over, &record.Forgotten{Executions: []rpcpacket.ID{e.ID}})
		}
		begun := e.Done == nil && e.Begun != nil
		if begun || e.Main() && len(e.Called) > 0 {
			t.reruns[e.ID] = true
		}
		if begun && (len(e.Machines) > 0 || lendsUnheard(e)) {
			r.Rollback = append(r.Rollback, e)
		}
		switch {
		case begun:
			r.Rerun = append(r.Rerun, e)
		case t.paid(e):
			r.Over = append(r.Over, &record.Over{Execution: e.ID})
		}
	}
	return r
}

// Failures is with how many runs of an execution that has begun the node's program has ended. The incarnation before the one that runs now
// is before, and exited says that it ended with its program: that counts if the execution ran there.
func Failures(e *record.Execution, before uint32, exited bool) uint32 {
	n := e.Begun.Failures
	if exited && e.Begun.Run == before && n < math.MaxUint32 {
		n++
	}
	return n
}

// A node's account of the calls that it knows, for the rebuilding of the switch's registers.

// Known calls f with each call that the node knows, and that somebody may ask for, with what the records add up to; nil of one that has no record.
func (t *Table) Known(f func(at record.Place, n rpcpacket.Number, id rpcpacket.ID, e *record.Execution)) {
	t.state.Each(func(e *record.Execution) {
		if at, _, n := e.Caller(); !e.Main() && !e.Forgotten {
			f(at, n, e.ID, e)
		}
	})
	for id, r := range t.running {
		if r.at.Slot != 0 {
			f(r.at, r.number, id, t.state.Execution(id))
		}
	}
}
