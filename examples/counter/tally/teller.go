package tally

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/bifrost-rack/bifrost/examples/counter/gen-go/counter"
	"github.com/bifrost-rack/bifrost/rpc"
)

// Adder is a client of Counter or Front.
type Adder interface {
	Add(ctx context.Context, account int32, amounts *rpc.Ref[[]byte]) (int64, error)
}

// Open returns a client of a service of the package.
func Open(node *rpc.Node, service string, opts ...rpc.ClientOption) (Adder, error) {
	switch service {
	case CounterName:
		return counter.OpenCounter(node, service, opts...), nil
	case FrontName:
		return counter.OpenFront(node, service, opts...), nil
	}
	return nil, rpc.Errorf(rpc.NoSuchMethod, "no service %q: there are %s and %s", service, CounterName, FrontName)
}

// Teller adds to an account again and again. It is a durable main: killed at any
// moment and started again, it makes each call once in all. Nobody else may use its
// account.
type Teller struct {
	// Name tells tellers of a rack apart.
	Name    string
	Account int32
	// Calls is how many to make, in all; or, if it is 0, For is how long to make some.
	Calls int64
	For   time.Duration
	// Every is how many calls there are between two checkpoints; 0 stands for 1.
	Every int64
	// To is who is called.
	To Adder
	// Answered, if set, is told of each call that has been answered, also again
	// after a crash: how many there have been, and what the account has.
	Answered func(ctx context.Context, calls, total int64)
}

// Run makes the calls. It fails if the account has not what it must have.
func (t *Teller) Run(ctx context.Context, node *rpc.Node) error {
	return rpc.Main(ctx, node, t.Name, t.main)
}

func (t *Teller) main(ctx context.Context, state []byte) error {
	at, err := t.resume(ctx, state)
	if err != nil {
		return err
	}
	for !t.enough(ctx, at) {
		amounts := t.Amounts(at.calls)
		got, err := t.add(ctx, at.total, amounts)
		if err != nil {
			return err
		}
		at.calls++
		if at.total += Sum(amounts); got != at.total {
			return fmt.Errorf("teller %s: after %d calls account %d has %d, must have %d", t.Name, at.calls, t.Account, got, at.total)
		}
		if t.Answered != nil {
			t.Answered(ctx, at.calls, at.total)
		}
		if at.calls%max(t.Every, 1) == 0 {
			if err := rpc.Checkpoint(ctx, at.append(nil)); err != nil {
				return err
			}
		}
	}
	return nil
}

// progress is what a teller goes on from after a crash.
type progress struct {
	calls, total int64
	until        int64 // Unix microseconds; of one that has a time
}

func (p progress) append(b []byte) []byte {
	for _, v := range []int64{p.calls, p.total, p.until} {
		b = binary.BigEndian.AppendUint64(b, uint64(v))
	}
	return b
}

// resume is where the last checkpoint was. The time is the journal's: a re-run ends
// when the first run would have.
func (t *Teller) resume(ctx context.Context, state []byte) (at progress, err error) {
	switch len(state) {
	case 0:
		at.until = rpc.Now(ctx).Add(t.For).UnixMicro() + 1 // nanoseconds would end in 2262
	case 24:
		word := func(k int) int64 { return int64(binary.BigEndian.Uint64(state[8*k:])) }
		at = progress{word(0), word(1), word(2)}
	default:
		err = rpc.Errorf(rpc.Internal, "a teller's state of %d bytes", len(state))
	}
	return at, err
}

// enough reports whether all calls have been made.
func (t *Teller) enough(ctx context.Context, at progress) bool {
	if t.Calls > 0 {
		return at.calls >= t.Calls
	}
	return rpc.Now(ctx).UnixMicro() >= at.until
}

// add makes one call. A call is given up when too many nodes have failed while they
// executed it. The Front's call of the Counter may have happened all the same, so add
// looks at the account, which had before so far, and calls again only if it has not.
func (t *Teller) add(ctx context.Context, before int64, amounts []byte) (int64, error) {
	ref := rpc.RefOf(amounts)
	total, err := t.To.Add(ctx, t.Account, ref)
	for givenUp(err) {
		if total, err = t.look(ctx); err == nil && total == before {
			total, err = t.To.Add(ctx, t.Account, ref)
		}
	}
	if err != nil {
		return 0, err
	}
	return total, ref.Free(ctx)
}

// look returns what the account has, by adding nothing to it.
func (t *Teller) look(ctx context.Context) (int64, error) {
	select {
	case <-time.After(retryPause):
	case <-ctx.Done():
		return 0, ctx.Err()
	}
	return t.To.Add(ctx, t.Account, rpc.RefOf([]byte{0}))
}

// retryPause is how long to wait after a call was given up.
const retryPause = 100 * time.Millisecond

// givenUp reports whether the other side says so.
func givenUp(err error) bool {
	var e *rpc.Error
	return errors.As(err, &e) && e.Code == rpc.Unavailable && e.Remote
}

// Amounts are those of the teller's next call: no two sums are alike soon. Every other
// call has so many that they stand in memory; the others travel inside the call.
func (t *Teller) Amounts(calls int64) []byte {
	amounts := []byte{1, byte(t.Account), byte(calls), byte(calls >> 8)}
	if calls%2 == 0 {
		amounts = append(amounts, make([]byte, 64<<10)...)
	}
	return amounts
}
