package rpc

import (
	"bytes"
	"context"
	"slices"
	"time"

	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/internal/join"
	"github.com/bifrost-rack/bifrost/rpc/endpoint"
	"github.com/bifrost-rack/bifrost/rpc/record"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
	"github.com/bifrost-rack/bifrost/rpc/trailer"
)

// State is what a service keeps between calls and must not lose: the answer to an
// exactly-once call is logged together with what the call made of the state, and
// when the service's node dies, the next one goes on from there. Regions of the
// distributed memory that the service keeps belong to it by their pointers.
//
// The methods are called one at a time, and not while a handler runs; handlers of
// the service run one at a time as well.
type State interface {
	// Snapshot returns the whole state. It is logged with an answer: both together
	// have at most a megabyte (rpcpacket.MaxWhole); where the rack keeps states in ledgers
	// the state may have 64 megabytes (and half of the ledger's room). A call after which they have more
	// fails as NoSpace, and Restore undoes what it has changed.
	Snapshot() ([]byte, error)
	// Restore replaces the state by one that Snapshot returned.
	Restore(snapshot []byte) error
}

// IncrementalState is a [State] that can tell what has changed. Snapshots are then
// taken only from time to time, when the changes since the last are larger.
type IncrementalState interface {
	State
	// Delta returns what has changed since the last Delta or Snapshot, or
	// Restore and Apply; nothing if nothing has.
	Delta() ([]byte, error)
	// Apply repeats on the state what a Delta describes.
	Apply(delta []byte) error
}

// VersionedState is a [State] that can read what earlier versions of its program have written.
// Each snapshot is logged together with the version that wrote it.
type VersionedState interface {
	State
	// Version names the form of what Snapshot returns, in 1 to 255 bytes. It is constant.
	Version() string
	// RestoreVersion is called in the place of Restore, with the version that wrote the
	// snapshot: Version, or that of another program, "" for one that names none. Of an
	// IncrementalState, Apply may be called next with what Delta returned in that version.
	// An error keeps the service from being exported, so a rollout of the program is rolled back.
	RestoreVersion(version string, snapshot []byte) error
}

// leastFold is how many bytes of deltas are not worth a snapshot.
const leastFold = 4 << 10

// stateManager looks after a service's state. It belongs to whoever has the service's
// one slot.
type stateManager struct {
	state       State
	incremental IncrementalState // nil if it is not
	versioned   VersionedState   // likewise
	was         past
}

// past is what a state was when the last answer left: a snapshot and, of an
// incremental state, what has changed since. The log has the same, or the changes alone.
type past struct {
	base   []byte
	deltas [][]byte
	since  int // bytes of deltas
}

func newStateManager(s State) *stateManager {
	k := &stateManager{state: s}
	k.incremental, _ = s.(IncrementalState)
	k.versioned, _ = s.(VersionedState)
	return k
}

// restore brings the state to what is logged.
func (k *stateManager) restore(s join.State) error {
	if k.incremental == nil && len(s.Deltas) > 0 {
		return fault.New(BadRequest, "restore", "%d deltas of the state are logged, and the state has no Apply: implement rpc.IncrementalState", len(s.Deltas))
	}
	k.was = past{base: s.Base, deltas: s.Deltas}
	if s.Base == nil { // no snapshot is logged: the service begins with what it has
		b, err := k.snapshot()
		if err != nil {
			return err
		}
		k.was.base = append([]byte{}, b...)
	}
	for _, d := range s.Deltas {
		k.was.since += len(d)
	}
	if s.Base == nil {
		return k.repeat()
	}
	return k.undo()
}

// undo brings the state back to what it was when the last answer left.
func (k *stateManager) undo() error {
	if err := k.load(slices.Clone(k.was.base)); err != nil {
		return err
	}
	return k.repeat()
}

// repeat applies what has changed since the snapshot.
func (k *stateManager) repeat() error {
	for _, d := range k.was.deltas {
		if err := k.incremental.Apply(slices.Clone(d)); err != nil {
			return err
		}
	}
	return nil
}

// change returns, as sections of a trailer, what has become of the state since the
// last answer. If the log has no room for it, it is undone: a call that fails for
// that reason has no effect.
func (k *stateManager) change(room int) ([]byte, *Error) {
	b, now, err := k.sections(room)
	switch {
	case err != nil:
		err = fault.New(Internal, "", "the service's state: %v", err)
	case len(b) > room:
		err = fault.New(NoSpace, "", "the service's state has changed by %d bytes, an answer has room for %d: keep large data in distributed memory", len(b), room)
	default:
		k.was = now
		return b, nil
	}
	if undone := k.undo(); undone != nil {
		return nil, &Error{Code: Internal, Msg: "the service's state is neither logged nor undone (" + err.Error() + ")", Err: undone}
	}
	return nil, codedIn(err)
}

// sections returns what has changed, and what the past is once that has left.
func (k *stateManager) sections(room int) ([]byte, past, error) {
	now := k.was
	if k.incremental == nil {
		s, err := k.snapshot()
		if err != nil || bytes.Equal(s, now.base) {
			return nil, now, err
		}
		return trailer.Section{Type: trailer.Snapshot, Data: s}.Append(nil), past{base: slices.Clone(s)}, nil
	}
	d, err := k.incremental.Delta()
	if err != nil || len(d) == 0 {
		return nil, now, err
	}
	b := trailer.Section{Type: trailer.Delta, Data: d}.Append(nil)
	now.deltas, now.since = append(now.deltas, slices.Clone(d)), now.since+len(d)
	if now.since <= max(len(now.base), leastFold) && len(b) <= room && k.sameVersion(now.base) {
		return b, now, nil
	}
	s, err := k.snapshot()
	if err != nil {
		return nil, now, err
	}
	if folded := (trailer.Section{Type: trailer.Snapshot, Data: s}); folded.Size() <= room {
		b = folded.Append(nil)
	} else if !k.sameVersion(now.base) {
		return nil, now, fault.New(NoSpace, "", "the state's version has changed, which needs a snapshot of %d bytes; an answer has room for %d: keep large data in distributed memory", len(s), room)
	}
	return b, past{base: slices.Clone(s)}, nil
}

// recover fetches a service's state before its first call.
func (x *export) recover(ctx context.Context, op string) error {
	if err := x.forwarded(ctx); err != nil {
		return coded(op, err)
	}
	if err := x.settled(ctx); err != nil {
		return coded(op, err)
	}
	s, err := join.FetchState(ctx, x.node.session, x.name)
	if err != nil {
		return coded(op, err)
	}
	if x.inLedger() {
		s = x.fromLedger(s)
	}
	if err := x.manager.restore(s); err != nil {
		return &Error{Code: Internal, Op: op, Msg: "restore the state", Err: err}
	}
	x.order = endpoint.NewOrder[*execution](max(s.Next, 1), x.config.queue+1)
	return nil
}

// The state of a service whose calls go direct is in its node's ledger, and nowhere else.
//
//	direct call   runs ── done, with the change ──▶ ledger        the next call runs meanwhile
//	                                  settled ──▶ REPLY
//	other call    waits until that is settled, runs ── changed ──▶ ledger
//	                                  settled ──▶ REPLY, with the call's id as the state ──▶ logged
//	              decided ──▶ ledger ◀── ACK ◀──────────────────────────────────────────────┘
//
// So a change by a call that the Gatekeeper decides about counts if, and only if, the
// Gatekeeper has logged the call's answer. After a crash the id in its log says so: only the
// last change can be in doubt, since the next call waits for the decision.

// inLedger reports whether the service's state is in the node's ledger.
func (x *export) inLedger() bool {
	n := x.node
	return x.manager != nil && n.ledger.placed() && n.ledger.place.Load().Stays
}

// maxState is the size of a state, or of a change of it, in a ledger.
const maxState = 64 << 20

// room is how large a change of a state may be: the ledger must have room for a base with it,
// too.
func (l *ledger) room() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.file == nil {
		return maxState
	}
	room := l.file.Room()
	return int(min(maxState, (room-min(room, uint64(l.reserved)))/2)) //nolint:gosec // at most maxState
}

// afterSettled waits, before an execution runs whose doings the ledger does not order, until
// all is settled that the service's state comes from. It reports false if the node has ended.
func (e *execution) afterSettled() bool {
	if e.export == nil || !e.export.inLedger() || e.direct.Load() {
		return true
	}
	l := e.node.ledger
	last, settled := l.unsettled()
	if settled {
		return true
	}
	e.promote()
	return l.settle(last)
}

// recordChange keeps what a direct call has made of the state for its done. The change by any other
// call is written down, and what it returns is the state that the Gatekeeper logs.
func (x *export) recordChange(e *execution, former past, change []byte) []byte {
	if len(change) == 0 {
		return nil
	}
	e.former, e.change = former, change
	if e.direct.Load() {
		return nil
	}
	l, id := x.node.ledger, e.call.Call
	e.promote()
	e.unsettled = !l.settle(l.write(&record.Changed{Execution: id, Service: x.hash, State: change}))
	return trailer.Section{Type: trailer.Snapshot, Data: id[:]}.Append(nil)
}

// takeBack restores the state before an execution whose outcome is not written.
func (x *export) takeBack(e *execution) {
	if len(e.change) == 0 {
		return
	}
	x.manager.was = e.former
	if err := x.manager.undo(); err != nil {
		x.node.fail(&Error{Code: Internal, Op: "service " + x.name, Msg: "undo what a call that was given up did to the state", Err: err})
	}
}

// decided notes that the Gatekeeper has logged an answer.
func (x *export) decided(c *commitment, id rpcpacket.ID) {
	if c.changed && x.inLedger() {
		x.node.ledger.write(&record.Decided{Execution: id, Service: x.hash, Counts: true})
	}
}

// forwarded waits until the Gatekeeper knows all executions that former incarnations of the
// node have handed over: one of them may be the service's next.
func (x *export) forwarded(ctx context.Context) error {
	if !x.inLedger() {
		return nil
	}
	return x.node.ledger.await(ctx, x.node.ledger.resumes.forwarded)
}

// adopted stands for the execution that has brought a state from the Gatekeeper's log.
var adopted = rpcpacket.ID{1}

// fromLedger is the service's state as the ledger has it; logged is what the Gatekeeper has.
// A change in doubt is decided. A state that the Gatekeeper has, from when the service's
// node had no ledger for it, is taken over.
func (x *export) fromLedger(logged join.State) join.State {
	l := x.node.ledger
	l.mu.Lock()
	defer l.mu.Unlock()
	v, _ := l.table.State().Service(x.hash)
	if !v.By.IsZero() {
		x.node.stats.doubtful.Add(1)
		l.add(&record.Decided{Execution: v.By, Service: x.hash, Counts: bytes.Equal(logged.Base, v.By[:])})
		v, _ = l.table.State().Service(x.hash)
	}
	if logged.Unsettled || logged.First != (rpcpacket.ID{}) {
		x.gate.Store(true)
		x.first = logged
	}
	switch state := logged.Append(nil); {
	case !v.HasSnapshot && len(v.Deltas) == 0 && len(state) > 0:
		l.add(&record.Changed{Execution: adopted, Service: x.hash, State: state}, &record.Decided{Execution: adopted, Service: x.hash, Counts: true})
	default:
		logged.Base, logged.Deltas = nil, v.Deltas
		if v.HasSnapshot {
			logged.Base = append([]byte{}, v.Snapshot...)
		}
	}
	return logged
}

// lift opens the gate: what the Gatekeeper does not order may run when earlier outcomes are in
// effect, and the call has run that a former incarnation may have begun.
func (x *export) lift(after []*record.Execution) {
	was, pace := x.first, leastGatePace
	for now := was; now.Unsettled || now.First != (rpcpacket.ID{}) && (was.Unsettled || now.First == was.First); {
		select {
		case <-time.After(pace):
		case <-x.node.base.Done():
			return
		}
		s, err := join.FetchState(x.node.base, x.node.session, x.name)
		if err != nil {
			continue
		}
		if now = s; was.Unsettled {
			was = now
		}
		pace = min(2*pace, maxGatePace)
	}
	if x.rerun(after) {
		x.gate.Store(false)
		x.announce()
	}
}

// The gate is looked after at these intervals.
const (
	leastGatePace = 2 * time.Millisecond
	maxGatePace   = 100 * time.Millisecond
)

// The snapshot of a VersionedState is logged behind a header that names the version: 16 bytes
// that no other snapshot begins with, drawn at random once for all, then the version's length
// in a byte, then the version.

// versionMark begins such a header.
var versionMark = []byte("\xb7\x1f\x05\x9e\xd3\x6a\x48\xc2\x93\x7d\xe1\x50\x2b\xf8\x84\x66")

// snapshot returns the state as it is logged.
func (k *stateManager) snapshot() ([]byte, error) {
	s, err := k.state.Snapshot()
	if err != nil || k.versioned == nil {
		return s, err
	}
	v := k.versioned.Version()
	if v == "" || len(v) > 255 {
		return nil, fault.New(BadRequest, "", "the state's version has %d bytes: must have 1 to 255", len(v))
	}
	return bytes.Join([][]byte{versionMark, {byte(len(v))}, []byte(v), s}, nil), nil
}

// load replaces the state by what is logged of it.
func (k *stateManager) load(logged []byte) error {
	version, snapshot, err := versionOf(logged)
	switch {
	case err != nil:
		return err
	case k.versioned != nil:
		return k.versioned.RestoreVersion(version, snapshot)
	case version != "":
		return fault.New(BadRequest, "", "version %q of the state is logged, and the state has no RestoreVersion: implement rpc.VersionedState", version)
	}
	return k.state.Restore(snapshot)
}

// sameVersion reports whether a logged snapshot is of the version that the state writes, so that
// deltas may follow it.
func (k *stateManager) sameVersion(logged []byte) bool {
	version, _, err := versionOf(logged)
	if k.versioned == nil {
		return err == nil && version == ""
	}
	return err == nil && version == k.versioned.Version()
}

// versionOf splits a logged snapshot.
func versionOf(logged []byte) (version string, snapshot []byte, err error) {
	rest, ok := bytes.CutPrefix(logged, versionMark)
	if !ok {
		return "", logged, nil
	}
	if len(rest) == 0 || rest[0] == 0 || len(rest) < 1+int(rest[0]) {
		return "", nil, fault.New(Internal, "", "the logged state ends in the middle of its version")
	}
	n := 1 + int(rest[0])
	return string(rest[1:n]), rest[n:], nil
}
