package rpc

import (
	"bytes"
	"context"
	"slices"

	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/internal/join"
	"github.com/bifrost-rack/bifrost/rpc/endpoint"
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
	// have at most a megabyte (packet.MaxWhole). A call after which they have more
	// fails as NoSpace, and Restore undoes what it has changed.
	Snapshot() ([]byte, error)
	// Restore replaces the state by one that Snapshot returned.
	Restore(snapshot []byte) error
}

// IncrementalState is a State that can tell what has changed. Snapshots are then
// taken only from time to time, when the changes since the last are larger.
type IncrementalState interface {
	State
	// Delta returns what has changed since the last Delta or Snapshot, or
	// Restore and Apply; nothing if nothing has.
	Delta() ([]byte, error)
	// Apply repeats on the state what a Delta describes.
	Apply(delta []byte) error
}

// leastFold is how many bytes of deltas are not worth a snapshot.
const leastFold = 4 << 10

// keeper looks after a service's state. It belongs to whoever has the service's
// one slot.
type keeper struct {
	state       State
	incremental IncrementalState // nil if it is not
	was         past
}

// past is what a state was when the last answer left: a snapshot and, of an
// incremental state, what has changed since. The log has the same, or the changes alone.
type past struct {
	base   []byte
	deltas [][]byte
	since  int // bytes of deltas
}

func newKeeper(s State) *keeper {
	k := &keeper{state: s}
	k.incremental, _ = s.(IncrementalState)
	return k
}

// restore brings the state to what is logged.
func (k *keeper) restore(s join.State) error {
	if k.incremental == nil && len(s.Deltas) > 0 {
		return fault.New(BadRequest, "restore", "%d deltas are logged, and the state has no Apply", len(s.Deltas))
	}
	k.was = past{base: s.Base, deltas: s.Deltas}
	if s.Base == nil { // no snapshot is logged: the service begins with what it has
		b, err := k.state.Snapshot()
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
func (k *keeper) undo() error {
	if err := k.state.Restore(slices.Clone(k.was.base)); err != nil {
		return err
	}
	return k.repeat()
}

// repeat applies what has changed since the snapshot.
func (k *keeper) repeat() error {
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
func (k *keeper) change(room int) ([]byte, *Error) {
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
func (k *keeper) sections(room int) ([]byte, past, error) {
	now := k.was
	if k.incremental == nil {
		s, err := k.state.Snapshot()
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
	if now.since <= max(len(now.base), leastFold) && len(b) <= room {
		return b, now, nil
	}
	s, err := k.state.Snapshot()
	if err != nil {
		return nil, now, err
	}
	if folded := (trailer.Section{Type: trailer.Snapshot, Data: s}); folded.Size() <= room {
		b = folded.Append(nil)
	}
	return b, past{base: slices.Clone(s)}, nil
}

// recover fetches a service's state before its first call.
func (x *export) recover(ctx context.Context, op string) error {
	s, err := join.FetchState(ctx, x.node.session, x.name)
	if err != nil {
		return coded(op, err)
	}
	if err := x.keeper.restore(s); err != nil {
		return &Error{Code: Internal, Op: op, Msg: "restore the state", Err: err}
	}
	x.order = endpoint.NewOrder[*execution](max(s.Next, 1), x.config.queue+1)
	return nil
}
