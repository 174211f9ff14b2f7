package rpc

import (
	"bytes"
	"context"
	"slices"
	"sync/atomic"
	"unicode/utf8"

	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/rpc/trailer"
)

// State is what a service keeps between calls and must not lose: what an exactly-once call made
// of the state is in its node's ledger together with the call's answer, and
// when the service's node dies, the next one goes on from there. Regions of the
// distributed memory that the service keeps belong to it by their pointers.
// What a call of [PolicyNone] makes of the state is kept when the next
// exactly-once call of the service is done; a node that ends or moves before loses it.
//
// The methods are called one at a time, and not while a handler runs; handlers of
// the service run one at a time as well.
//
// A method that panics, or fails, fails the call, and Restore undoes what the call has changed. If Restore panics or fails then, the
// node ends, since only its ledger knows the state.
type State interface {
	// Snapshot returns the whole state. The states of a node's services and the checkpoints of its durable mains may take half of
	// its ledger together: 32 MiB of the 64 MiB that "bifrost memory --ledger-space" gives a node if nobody says otherwise. A call
	// after which they take more fails as NoSpace, and Restore undoes what the call has changed.
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
// Each snapshot is kept together with the version that wrote it.
type VersionedState interface {
	State
	// Version names the form of what Snapshot returns, in 1 to 255 bytes of UTF-8. It is constant.
	Version() string
	// Reads lists the versions that RestoreVersion can read, at most 64; "" is that of a program that names none. It is constant. The
	// rack does not let the program have the state in another version: it refuses to roll back to the program, and to export its service.
	Reads() []string
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
	reads       []string               // the versions that it reads
	kept        atomic.Pointer[string] // the version of what is kept; nil while nothing is
}

// past is what a state was when the last answer left: a snapshot and, of an
// incremental state, what has changed since. The ledger has the same, or the changes alone.
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

// restore brings the state to what the ledger has: a snapshot, nil if there is none, and what has changed since.
func (k *stateManager) restore(base []byte, deltas [][]byte) error {
	if k.incremental == nil && len(deltas) > 0 {
		return fault.New(BadRequest, "restore", "%d deltas of the state are kept, and the state has no Apply: implement rpc.IncrementalState", len(deltas))
	}
	deltas = slices.Clip(deltas) // the ledger's state appends to them, too
	k.was = past{base: base, deltas: deltas}
	if base == nil { // the service begins with what it has
		b, err := k.snapshot()
		if err != nil {
			return err
		}
		k.was.base = append([]byte{}, b...)
	}
	for _, d := range deltas {
		k.was.since += len(d)
	}
	if base == nil {
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
		if err := guarded("Apply", func() error { return k.incremental.Apply(slices.Clone(d)) }); err != nil {
			return err
		}
	}
	return nil
}

// size is how many bytes the state has, as it is kept.
func (p *past) size() int { return len(p.base) + p.since }

// change returns, as sections of a trailer, what has become of the state since the
// last answer. If the state has more bytes than the limit then, the change is undone: a call that fails for
// that reason has no effect.
func (k *stateManager) change(limit int) ([]byte, *Error) {
	b, now, err := k.sections(limit)
	switch {
	case err != nil:
		err = fault.New(Internal, "", "the service's state: %v", err)
	case len(b) > 0 && now.size() > limit:
		err = tooLarge("", "service", now.size(), limit)
	default:
		k.was = now
		return b, nil
	}
	return nil, k.revert(err)
}

// revert undoes what a call has made of the state since the last answer, and returns why.
func (k *stateManager) revert(why error) *Error {
	if undone := k.undo(); undone != nil {
		return &Error{Code: Internal, Msg: "the service's state is neither kept nor undone (" + why.Error() + ")", Err: plain("undo", undone)}
	}
	return codedIn(why)
}

// sections returns what has changed, and what the past is once that has left.
func (k *stateManager) sections(limit int) ([]byte, past, error) {
	now := k.was
	if k.incremental == nil {
		s, err := k.snapshot()
		if err != nil || bytes.Equal(s, now.base) {
			return nil, now, err
		}
		return trailer.Section{Type: trailer.Snapshot, Data: s}.Append(nil), past{base: slices.Clone(s)}, nil
	}
	var d []byte
	err := guarded("Delta", func() (err error) { d, err = k.incremental.Delta(); return err })
	if err != nil || len(d) == 0 {
		return nil, now, err
	}
	now.deltas, now.since = append(now.deltas, slices.Clone(d)), now.since+len(d)
	if now.since <= max(len(now.base), leastFold) && now.size() <= limit && k.sameVersion(now.base) {
		return trailer.Section{Type: trailer.Delta, Data: d}.Append(nil), now, nil
	}
	s, err := k.snapshot()
	if err != nil {
		return nil, now, err
	}
	return trailer.Section{Type: trailer.Snapshot, Data: s}.Append(nil), past{base: slices.Clone(s)}, nil
}

// The state of a service is in its node's ledger, and nowhere else.
//
//	call  runs ── done, with the change ──▶ ledger        the next call runs meanwhile
//	                          settled ──▶ REPLY

// recover brings a service's state, before the first call, to what the ledger has of it.
func (x *export) recover(ctx context.Context, op string, methods []control.Method) error {
	if err := x.settled(ctx); err != nil {
		return coded(op, err)
	}
	l := x.node.ledger
	l.mu.Lock()
	v, _ := l.table.State().Service(x.hash)
	l.mu.Unlock()
	var base []byte
	if v.HasSnapshot {
		base = append([]byte{}, v.Snapshot...)
	}
	if v.HasSnapshot {
		x.manager.note(base)
	}
	if err := x.manager.learn(); err != nil {
		return &Error{Code: BadRequest, Op: op, Msg: "the versions of the state", Err: err}
	}
	if err := x.mayRead(ctx, op, methods); err != nil {
		return err
	}
	if err := x.manager.restore(base, v.Deltas); err != nil {
		return &Error{Code: Internal, Op: op, Msg: "restore the state", Err: err}
	}
	return nil
}

// mayRead has the rack refuse a service whose program does not read the version of the state that is kept.
func (x *export) mayRead(ctx context.Context, op string, methods []control.Method) error {
	f := x.manager.form()
	if f.Kept == nil || slices.Contains(f.Reads, *f.Kept) {
		return nil
	}
	if _, err := x.node.session.Export(ctx, x.exportOf(methods)); err != nil {
		return coded(op, err)
	}
	return fault.New(BadRequest, op, "version %q of the state is kept, and the program reads %q only", *f.Kept, f.Reads)
}

// noteKept tells the rack when a state is kept for the first time, or in another version than before. Calls do not wait for that.
func (x *export) noteKept() {
	if !x.manager.note(x.manager.was.base) {
		return
	}
	go func() {
		o := x.offer.Load()
		if _, methods, err := x.methodList(o.processor); err == nil {
			x.tellMethods(o, methods)
		}
	}()
}

// afterSettled waits, before the execution of a call of policy none runs, whose doings the ledger does not order, until
// all is settled that the service's state comes from. It reports false if the node has ended.
func (e *execution) afterSettled() bool {
	if e.export == nil || e.export.manager == nil || e.journal != nil {
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

// takeBack restores the state before an execution whose outcome is not written.
func (x *export) takeBack(e *execution) {
	if len(e.change) == 0 {
		return
	}
	x.manager.was = e.former
	x.noteKept()
	x.undo("a call that was given up")
}

// The snapshot of a VersionedState is kept behind a header that names the version: 16 bytes
// that no other snapshot begins with, drawn at random once for all, then the version's length
// in a byte, then the version.

// versionMark begins such a header.
var versionMark = []byte("\xb7\x1f\x05\x9e\xd3\x6a\x48\xc2\x93\x7d\xe1\x50\x2b\xf8\x84\x66")

// snapshot returns the state as it is kept.
func (k *stateManager) snapshot() ([]byte, error) {
	var s []byte
	err := guarded("Snapshot", func() (err error) { s, err = k.state.Snapshot(); return err })
	if err != nil || k.versioned == nil {
		return s, err
	}
	v, err := k.version()
	if err != nil {
		return nil, err
	}
	if v == "" || len(v) > control.MaxVersion || !utf8.ValidString(v) {
		return nil, fault.New(BadRequest, "", "the state's version has %d bytes: must have 1 to %d of UTF-8", len(v), control.MaxVersion)
	}
	return bytes.Join([][]byte{versionMark, {byte(len(v))}, []byte(v), s}, nil), nil
}

// load replaces the state by what is kept of it.
func (k *stateManager) load(kept []byte) error {
	version, snapshot, err := versionOf(kept)
	switch {
	case err != nil:
		return err
	case k.versioned != nil:
		return guarded("RestoreVersion", func() error { return k.versioned.RestoreVersion(version, snapshot) })
	case version != "":
		return fault.New(BadRequest, "", "version %q of the state is kept, and the state has no RestoreVersion: implement rpc.VersionedState", version)
	}
	return guarded("Restore", func() error { return k.state.Restore(snapshot) })
}

// note notes the version of what is kept now, and reports whether it is another one than before.
func (k *stateManager) note(kept []byte) (changed bool) {
	version, _, err := versionOf(kept)
	was := k.kept.Load()
	if changed = err == nil && (was == nil || *was != version); changed {
		k.kept.Store(&version)
	}
	return changed
}

// learn asks the state which versions it reads.
func (k *stateManager) learn() error {
	k.reads = []string{""}
	if k.versioned == nil {
		return nil
	}
	if err := guarded("Reads", func() error { k.reads = slices.Clone(k.versioned.Reads()); return nil }); err != nil {
		return err
	}
	own, err := k.version()
	if err == nil && !slices.Contains(k.reads, own) {
		k.reads = append(k.reads, own)
	}
	return err
}

// form is what the rack is told of the state.
func (k *stateManager) form() *control.StateForm {
	return &control.StateForm{Kept: k.kept.Load(), Reads: k.reads}
}

// version is that of the state, which has versions.
func (k *stateManager) version() (v string, err error) {
	err = guarded("Version", func() error { v = k.versioned.Version(); return nil })
	return v, err
}

// sameVersion reports whether a snapshot that is kept is of the version that the state writes, so that
// deltas may follow it.
func (k *stateManager) sameVersion(kept []byte) bool {
	version, _, err := versionOf(kept)
	if k.versioned == nil {
		return err == nil && version == ""
	}
	now, faulty := k.version()
	return err == nil && faulty == nil && version == now
}

// versionOf splits a snapshot that is kept.
func versionOf(kept []byte) (version string, snapshot []byte, err error) {
	rest, ok := bytes.CutPrefix(kept, versionMark)
	if !ok {
		return "", kept, nil
	}
	if len(rest) == 0 || rest[0] == 0 || len(rest) < 1+int(rest[0]) {
		return "", nil, fault.New(Internal, "", "the state that is kept ends in the middle of its version")
	}
	n := 1 + int(rest[0])
	return string(rest[1:n]), rest[n:], nil
}
