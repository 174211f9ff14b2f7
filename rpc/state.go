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
	// have at most a megabyte (packet.MaxWhole).
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
	last        []byte           // the snapshot last logged, unless incremental
	base, since int              // bytes of the last snapshot, and of deltas since
	unsent      []byte           // sections that had no room
}

func newKeeper(s State) *keeper {
	k := &keeper{state: s}
	k.incremental, _ = s.(IncrementalState)
	return k
}

// restore brings the state to what is logged.
func (k *keeper) restore(s join.State) error {
	if s.Base != nil {
		if err := k.state.Restore(s.Base); err != nil {
			return err
		}
		k.base = len(s.Base)
	}
	if k.incremental == nil {
		if len(s.Deltas) > 0 {
			return fault.New(BadRequest, "restore", "%d deltas are logged, and the state has no Apply", len(s.Deltas))
		}
		var err error
		k.last, err = k.state.Snapshot()
		return err
	}
	for _, d := range s.Deltas {
		if err := k.incremental.Apply(d); err != nil {
			return err
		}
		k.since += len(d)
	}
	return nil
}

// change returns, as sections of a trailer, what has become of the state since the
// last answer. What does not fit room comes again with the next.
func (k *keeper) change(room int) ([]byte, *Error) {
	b, err := k.sections(room)
	if err != nil {
		return nil, fault.New(Internal, "", "the service's state: %v", err)
	}
	if len(b) > room {
		k.last, k.unsent = nil, b
		if k.incremental == nil {
			k.unsent = nil // the next snapshot has it all
		}
		return nil, fault.New(NoSpace, "", "the service's state has changed by %d bytes, an answer has room for %d: keep large data in distributed memory", len(b), room)
	}
	k.unsent = nil
	return b, nil
}

func (k *keeper) sections(room int) ([]byte, error) {
	if k.incremental == nil {
		s, err := k.state.Snapshot()
		if err != nil || k.last != nil && bytes.Equal(s, k.last) {
			return nil, err
		}
		k.last = slices.Clone(s)
		return trailer.Section{Type: trailer.Snapshot, Data: s}.Append(nil), nil
	}
	d, err := k.incremental.Delta()
	if err != nil {
		return nil, err
	}
	b := k.unsent
	if len(d) > 0 {
		b = trailer.Section{Type: trailer.Delta, Data: d}.Append(b)
		k.since += len(d)
	}
	if len(b) == 0 || k.since <= max(k.base, leastFold) && len(b) <= room {
		return b, nil
	}
	s, err := k.state.Snapshot()
	if err != nil {
		return nil, err
	}
	if folded := (trailer.Section{Type: trailer.Snapshot, Data: s}); folded.Size() <= room {
		k.base, k.since = len(s), 0
		return folded.Append(nil), nil
	}
	return b, nil
}

// undo takes back what an execution has done that will not be logged. Of an
// incremental state only the log knows what it was.
func (k *keeper) undo() error {
	if k.last == nil {
		return fault.New(Internal, "", "the state keeps what the diverged handler did to it")
	}
	return k.state.Restore(k.last)
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
