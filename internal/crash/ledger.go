package crash

import (
	"fmt"
	"maps"
	"math"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/bifrost-rack/bifrost/dsm"
	"github.com/bifrost-rack/bifrost/internal/join"
	"github.com/bifrost-rack/bifrost/rpc"
)

// ledger is what is known outside of the rack, where nothing crashes: side
// effects, and what executions have seen. Methods may be called concurrently.
type ledger struct {
	mu       sync.Mutex
	effects  map[int]int                 // by operation
	observed map[int]Outcome             // of calls and one-ways, by operation
	trial    map[int]uint64              // values of tries that have not failed, by operation
	givenUp  map[int]bool                // calls that executions say they have given up
	spans    map[int]*span               // of calls, one-ways and memory operations
	finished map[int]*Outcome            // of clients
	runs     map[int]int                 // of calls' and one-ways' scripts
	latest   map[ranAt]uint32            // incarnations that have begun them; a main's at no node, since it may move
	nodes    map[int]map[netip.Addr]bool // which have an execution as begun in their ledgers, since it has shown something
	issues   map[int][]int64             // when calls and one-ways were made
	refusals map[int]failure             // of calls that may fail, by operation
	ran      map[int][]*stint            // the runs of executions, as of attempt
	wrong    []string
	began    time.Time
	memory   []*access
	inTry    map[int]bool // operations of which each may be several: see Program.tried
	// What explains that a re-run makes another call than before, or gets another answer.
	first     map[ranAt]uint32 // the incarnation that has begun a call's or one-way's script first
	forgotten map[int]bool     // those begun again at a node that had lost what it had written down of them
	outer     map[int]int      // which call or one-way an operation is part of: see Program.outer
	diverged  bool             // after that, a re-run has failed as nondeterminism
}

// ranAt is an execution at a node.
type ranAt struct {
	execution int
	node      netip.Addr
}

// span is the time from when an operation was first begun until it was first seen
// to be over, in nanoseconds of the run.
type span struct{ from, to int64 }

// never is the end of what was not seen to be over.
const never = math.MaxInt64

// access is one operation on a region, or the rollback of what an attempt did.
type access struct {
	span
	by       attempt
	op       int
	region   dsm.Pointer // its first byte
	at       int
	write    bool
	fresh    bool // the region's allocation: it holds zeros from now on
	rollback bool
	data     []byte
}

func newLedger(inTry map[int]bool) *ledger {
	return &ledger{inTry: inTry, first: map[ranAt]uint32{}, forgotten: map[int]bool{},
		effects: map[int]int{}, trial: map[int]uint64{}, givenUp: map[int]bool{}, latest: map[ranAt]uint32{}, ran: map[int][]*stint{}, refusals: map[int]failure{}, issues: map[int][]int64{}, nodes: map[int]map[netip.Addr]bool{}, runs: map[int]int{}, observed: map[int]Outcome{}, finished: map[int]*Outcome{}, spans: map[int]*span{}, began: time.Now(),
	}
}

func (l *ledger) now() int64 { return int64(time.Since(l.began)) }

// issue notes that a call or one-way is about to be made.
func (l *ledger) issue(op int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.issues[op] = append(l.issues[op], l.now())
	if l.spans[op] == nil {
		l.spans[op] = &span{l.now(), never}
	}
}

// span is when an operation was under way; false if it was never begun.
func (l *ledger) span(op int) (span, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := l.spans[op]
	if s == nil {
		return span{}, false
	}
	return *s, true
}

// attempt is one run of an execution, since its last commit. An execution is a
// call's, by its operation, a main's or a client's, by −1 and less.
type attempt struct {
	execution, run, since int
	// fenced: a later incarnation of its node has run the execution before.
	fenced bool
}

// begin notes that an execution's script is begun, or goes on after the operation
// since, which has committed it. The run before it was rolled back to there. An
// incarnation that has been fenced, and goes on later, may begin one, too.
func (l *ledger) begin(execution, since int, incarnation uint32) attempt {
	return l.beginIn(ranAt{execution: execution}, since, incarnation)
}

func (l *ledger) beginIn(at ranAt, since int, incarnation uint32) attempt {
	execution := at.execution
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.inTry[execution] { // nothing is rolled back, and another node may run it, too
		l.runs[execution]++
		return attempt{execution: execution, run: l.runs[execution]}
	}
	if incarnation < l.latest[at] {
		return attempt{execution: execution, fenced: true}
	}
	l.latest[at] = incarnation
	l.runs[execution]++
	a := attempt{execution: execution, run: l.runs[execution], since: since}
	if a.run > 1 {
		l.rollback(attempt{execution: execution, run: a.run - 1, since: since})
	}
	return a
}

// beginAt is begin for a call or one-way, whose execution a node's ledger has.
func (l *ledger) beginAt(execution int, node join.Identity) attempt {
	l.mu.Lock()
	at := ranAt{execution, node.Address}
	if before, again := l.first[at]; !again {
		l.first[at] = node.Incarnation
	} else if node.Ledger != nil && before < node.Ledger.Since {
		l.forgotten[execution] = true
	}
	l.mu.Unlock()
	return l.beginIn(at, 0, node.Incarnation)
}

// shows notes that an execution has done what others see. Its node has it as begun in its ledger then.
func (l *ledger) shows(by attempt, node netip.Addr) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.nodes[by.execution] == nil {
		l.nodes[by.execution] = map[netip.Addr]bool{}
	}
	l.nodes[by.execution][node] = true
}

// atSeveral reports whether several nodes have an execution as begun.
func (l *ledger) atSeveral(execution int) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.nodes[execution]) > 1 && !l.inTry[execution]
}

// failed notes that an attempt has failed. With a ledger the journals are lost of the executions that were
// begun there: one that runs again may see what others have done since, and so may one that calls it
// again.
func (l *ledger) failed(by attempt, err error) {
	if err == nil || rpc.CodeOf(err) != rpc.Nondeterminism {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.diverged = l.diverged || len(l.forgotten) > 0 && by.run > 1
}

// explained reports whether an execution may have failed as nondeterminism.
func (l *ledger) explained() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.diverged
}

// rollback notes that an attempt was rolled back by now: after all that it was told
// is done. The rest of it was done before, or never. The caller holds l.mu.
func (l *ledger) rollback(by attempt) {
	r := &access{span: span{0, l.now()}, by: by, rollback: true}
	for _, a := range l.memory {
		switch {
		case a.by != by, a.to == never && !a.write:
		case a.to == never:
			a.to, r.from = r.to, max(r.from, a.from)
		default:
			r.from = max(r.from, a.to)
		}
	}
	l.memory = append(l.memory, r)
}

func (l *ledger) begun() map[int]int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return maps.Clone(l.runs)
}

// seen reports whether an operation's end was seen.
func (l *ledger) seen(op int) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	_, ok := l.observed[op]
	return ok
}

// touch notes that an operation on memory begins; done must be called when it has
// succeeded.
func (l *ledger) touch(a *access) (done func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if a.by.fenced {
		return func() { l.complain("operation %d of an incarnation that was fenced, has had access to memory", a.op) }
	}
	a.span = span{l.now(), never}
	l.memory = append(l.memory, a)
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		a.to = l.now()
	}
}

// allocated notes that a region was allocated between from and now. A node may give the
// pointer of a region that one of its calls of policy none has freed to the next
// allocation, so a pointer alone does not tell which region it names.
func (l *ledger) allocated(by attempt, from int64, region dsm.Pointer) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !by.fenced {
		l.memory = append(l.memory, &access{span: span{from, l.now()}, by: by, region: region, fresh: true})
	}
}

// accesses are all operations on memory.
func (l *ledger) accesses() (all []access) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, a := range l.memory {
		all = append(all, *a)
	}
	return all
}

// complain notes that something is wrong with the run.
func (l *ledger) complain(format string, args ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.wrong = append(l.wrong, fmt.Sprintf(format, args...))
}

func (l *ledger) complaints() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.wrong)
}

// effect counts a side effect, and returns how many this operation has had.
func (l *ledger) effect(op int) uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.effects[op]++
	return uint64(l.effects[op])
}

// observe notes what a call has brought. However often its caller runs, it must
// see the same, unless the callee's ledger was lost, or that of an execution which the call is part of: then the
// call has run once more.
func (l *ledger) observe(op int, o Outcome) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if was, ok := l.observed[op]; ok && !was.same(o) && !l.inTry[op] && !l.anew(op) {
		l.wrong = append(l.wrong, fmt.Sprintf("operation %d has brought %+v, and when it was repeated %+v", op, was, o))
	}
	l.observed[op] = o
	if s := l.spans[op]; s != nil && s.to == never && !l.inTry[op] {
		s.to = l.now()
	}
}

// anew reports whether an operation is part of an execution that has begun anew since its node's ledger was lost. What it
// had called was forgotten if it was done. The caller holds l.mu.
func (l *ledger) anew(op int) bool {
	for op != 0 && !l.forgotten[op] {
		op = l.outer[op]
	}
	return op != 0
}

// anews is anew for many, with how often anything has run.
func (l *ledger) anews() (all map[int]bool, most int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	all = map[int]bool{}
	for op := range l.outer {
		if l.anew(op) {
			all[op] = true
		}
	}
	for _, n := range l.runs {
		most = max(most, n)
	}
	return all, most
}

// tried notes what a try has come to.
func (l *ledger) tried(op int, value uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if was, ok := l.trial[op]; ok && was != value {
		l.wrong = append(l.wrong, fmt.Sprintf("operation %d has come to %#x, and when it was repeated to %#x", op, was, value))
	}
	l.trial[op] = value
}

func (l *ledger) trials() map[int]uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return maps.Clone(l.trial)
}

// gaveUp notes that an execution acts on having given a call up.
func (l *ledger) gaveUp(op int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.givenUp[op] = true
}

// promised reports whether an execution acts on having given a call up: the call runs.
func (l *ledger) promised(op int) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.givenUp[op]
}

// neverRan are the calls that executions have given up, as they say, and that have never begun.
func (l *ledger) neverRan() (all []int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for op := range l.givenUp {
		if l.runs[op] == 0 {
			all = append(all, op)
		}
	}
	slices.Sort(all)
	return all
}

// sent notes that a one-way is logged. When it ran, nobody sees.
func (l *ledger) sent(op int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.observed[op] = Outcome{}
}

// finish notes what came out of a client's script. A durable main that crashes
// before its end is logged comes to it again; what it has seen of time and dice since
// its last message may be another then.
func (l *ledger) finish(client int, o Outcome) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if was := l.finished[client]; was != nil && (was.Value != o.Value || !slices.Equal(was.Marks, o.Marks)) {
		l.wrong = append(l.wrong, fmt.Sprintf("client %d has come to %+v, and when it was repeated to %+v", client, *was, o))
	}
	l.finished[client] = &o
}

// outcome is what finish was told, if it was.
func (l *ledger) outcome(client int) (Outcome, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	o := l.finished[client]
	if o == nil {
		return Outcome{}, false
	}
	return *o, true
}

func (l *ledger) sideEffects() map[int]int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return maps.Clone(l.effects)
}
