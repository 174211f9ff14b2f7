// Package direct decides about exactly-once calls that go straight to their callee, whose
// ledger is all that says what became of them. It does no I/O: packets and records in,
// verdicts and records out. The shell (package rpc) settles the records before it acts.
//
//	CALL ──Receive──▶ Run ─▶ [begun, journal] ─▶ done ─▶ REPLY ─▶ forgotten
//	          └─▶ Answer, Duplicate, Late, Refused
//
// A caller sends all copies of a call to one node. It numbers its calls within lanes, in
// which one call at a time is out; so a copy that is not known, and has a lower number than
// another call of the lane, is late, or the call has been refused. Each copy of one that was
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
	Malformed                     // its id is no id: drop it
	Foreign                       // its lane is another node's, or the call is: drop it
	Superseded                    // the caller has failed, whose fate it shares: Bury it, and see Outlived
	Gone                          // it is bound to another incarnation, which may have run it: refuse it
	Lost                          // it has run, and its answer is not kept any more: refuse it
	Full                          // there is no room to remember it, so it cannot be run at most once: drop it, it will be sent again
)

var verdicts = [...]string{"?", "run", "duplicate", "answer", "late", "refused", "diverged", "malformed", "foreign", "superseded", "gone", "lost", "full"}

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
	floors  map[uint64]floor    // of lanes: while what was accepted has no record
	heard   map[[16]byte]uint32 // the latest incarnation of each caller
	items   map[debt]*item
	owed    map[rpcpacket.ID]int // how many items an execution owes
	quota   quota
	commits map[rpcpacket.ID]bool // executions whose changes in memory are to be committed
	regions map[rpcpacket.ID]*regions
	oneways oneways
	mains   map[rpcpacket.ID]bool // durable mains that have begun here: their ids are no calls'
}

// floor is the lowest number in a caller's lane of a call that is not late.
type floor struct {
	number uint64
	caller [16]byte
}

// running is a call that has been accepted and is not done.
type running struct {
	caller    [16]byte
	lane      uint64 // in which it has come
	promised  int    // bytes that it may still write into the ledger
	forgotten bool   // nobody asks for its outcome
	fate
}

// New returns the Table of a node whose ledger adds up to a state. The Table changes it. A function, which must not call the Table, says whose a
// caller is; nil stands for share.Stranger.
func New(state *record.State, ownerOf func(node netip.Addr) share.Owner) *Table {
	return &Table{
		state: state, running: map[rpcpacket.ID]*running{}, floors: map[uint64]floor{}, heard: map[[16]byte]uint32{},
		items: map[debt]*item{}, owed: map[rpcpacket.ID]int{}, quota: quota{held: share.NewNodes(0, ownerOf)},
		commits: map[rpcpacket.ID]bool{}, regions: map[rpcpacket.ID]*regions{}, mains: map[rpcpacket.ID]bool{},
		oneways: oneways{queues: map[[16]byte][]*owedOneway{}, waiting: map[rpcpacket.ID][]*owedOneway{}},
	}
}

// State is what the node's records add up to. It must not be changed.
func (t *Table) State() *record.State { return t.state }

// LaneOf returns the lane of a direct call and its number there. Those of a session are
// in the call's id; those of an execution's call are in two fields of the header that such
// a call has no other use for. Lane 0 is none. A lane is a session number of its node.
func LaneOf(h *rpcpacket.Header) (lane, number uint64) {
	if h.Flags&rpcpacket.FlagSession != 0 {
		return h.Call.Session(), h.Call.Sequence()
	}
	return h.Order, h.Floor
}

// Receive takes a copy of a call from a node; arguments is the hash of its arguments. A call
// that is to be run is known from then on.
func (t *Table) Receive(caller [16]byte, h *rpcpacket.Header, arguments uint64) (Verdict, *record.Execution) {
	lane, number := LaneOf(h)
	if lane == 0 || h.Call.IsZero() {
		return Malformed, nil
	}
	if !rpcpacket.Owns(netip.AddrFrom16(caller), lane) {
		return Foreign, nil
	}
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
	case number < max(t.floors[lane].number, t.state.Floor(lane)):
		return Refused, nil
	}
	t.heard[caller] = h.CallerIncarnation
	t.floors[lane] = floor{number, caller}
	t.running[h.Call] = &running{caller: caller, lane: lane, fate: fateOf(h)}
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

// Probe takes the Gatekeeper's question what has become of a call that lends memory, or of a one-way that hands
// some over, in its caller's name: Answer if it is done, though nobody else may ask for that any more, Duplicate if it
// is to come to its end, with the execution if it has begun, and Late if it never came: it is then to be refused for good (Void).
func (t *Table) Probe(caller [16]byte, h *rpcpacket.Header) (Verdict, *record.Execution) {
	lane, _ := LaneOf(h)
	e := t.state.Execution(h.Call)
	switch {
	case lane == 0 || h.Call.IsZero():
		return Malformed, nil
	case !rpcpacket.Owns(netip.AddrFrom16(caller), lane):
		return Foreign, nil
	case e != nil && e.Done != nil && e.Done.Caller == caller:
		return Answer, e
	case e != nil || t.running[h.Call] != nil:
		return Duplicate, e
	}
	return Late, nil
}

// Unwritten is that of the state.
func (t *Table) Unwritten(records int) { t.state.Unwritten(records) }

// Resumes notes that an execution is run again.
func (t *Table) Resumes(id rpcpacket.ID) {
	r := new(running)
	if e := t.state.Execution(id); e != nil {
		r.caller, _, r.lane, _ = e.Caller()
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
	return &record.Forgotten{Lanes: []record.Lane{t.refuse(caller, h)}}
}

func (t *Table) refuse(caller [16]byte, h *rpcpacket.Header) record.Lane {
	delete(t.running, h.Call)
	lane, number := LaneOf(h)
	t.floors[lane] = floor{max(t.floors[lane].number, number+1), caller}
	return record.Lane{Lane: lane, Caller: caller, Incarnation: h.CallerIncarnation, Floor: number + 1}
}

// Void refuses for good, as Refuse does, a call that the Gatekeeper has asked about: the attempt that it names, and those
// of the caller's earlier incarnations, copies of which may be on their way.
func (t *Table) Void(caller [16]byte, h *rpcpacket.Header) record.Record {
	r := &record.Forgotten{Lanes: []record.Lane{t.refuse(caller, h)}}
	if dead, _ := t.state.Dead(caller); h.CallerIncarnation > dead+1 {
		r.Callers = []record.Caller{{Node: caller, Dead: h.CallerIncarnation - 1}}
	}
	return r
}

// Obsolete reports whether a call's outcome must not be written: its lane has gone on, and
// the ledger does not know that it has begun, so nobody can have seen anything of it.
func (t *Table) Obsolete(h *rpcpacket.Header) bool {
	lane, number := LaneOf(h)
	return t.state.Execution(h.Call) == nil && number < t.state.Floor(lane)
}

// Apply notes a record that has been written. It returns the records that are to follow.
func (t *Table) Apply(r record.Record) (follow []record.Record, err error) {
	var touched []*record.Execution
	switch r := r.(type) {
	case *record.Begun:
		touched = t.state.Before(r.Lane, r.Number)
	case *record.Done:
		touched = t.state.Before(r.Lane, r.Number)
	case *record.Forgotten:
		for _, id := range r.Executions {
			touched = append(touched, t.state.Execution(id))
		}
		for _, l := range r.Lanes {
			touched = append(touched, t.state.Before(l.Lane, l.Floor)...)
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
		e := t.state.Execution(r.Execution)
		touched = append(touched, e)
		t.owe(e)
		t.oweOneways(r.Execution, r.Owed.Oneways)
		if e != nil && !e.Forgotten && (was != nil && was.forgotten || t.state.Buried(e)) {
			follow = append(follow, &record.Forgotten{Executions: []rpcpacket.ID{r.Execution}})
		}
	}
	if r, ok := r.(*record.Checkpoint); ok {
		e := t.state.Execution(r.Main)
		touched = append(touched, e)
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

// lower forgets the floors of lanes that the ledger has now, and of callers that are gone.
func (t *Table) lower(r record.Record) {
	passed := func(lane uint64) {
		if at, set := t.floors[lane]; set && at.number <= t.state.Floor(lane) {
			delete(t.floors, lane)
		}
	}
	switch r := r.(type) {
	case *record.Begun:
		passed(r.Lane)
	case *record.Done:
		passed(r.Lane)
	case *record.Forgotten:
		for i := range r.Lanes {
			passed(r.Lanes[i].Lane)
		}
		for _, k := range r.Callers {
			if k.Gone {
				maps.DeleteFunc(t.floors, func(_ uint64, at floor) bool { return at.caller == k.Node })
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
// same calls again, so it begins when these have ended: a lease keeps it from writing.
func lendsUnheard(e *record.Execution) bool {
	return slices.ContainsFunc(e.Called, func(k record.Call) bool { return k.Lends && !k.Direct() })
}

// Resume decides what the next incarnation of a node has to do. What it owes is noted.
func (t *Table) Resume() (r Resumption) {
	for _, e := range t.state.Executions() {
		t.owe(e)
		if e.Main() {
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

// Failures is with how many runs of an execution that has begun the node's program has ended. The incarnation before the one that runs now is
// exited if it ended with its program, else that is 0: it counts if the execution ran there.
func Failures(e *record.Execution, exited uint32) uint32 {
	n := e.Begun.Failures
	if exited != 0 && e.Begun.Run == exited && n < math.MaxUint32 {
		n++
	}
	return n
}
