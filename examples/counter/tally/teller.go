package tally

import (
	"context"
	"encoding/binary"
	"fmt"

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
	// Calls is how many to make, in all.
	Calls int64
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
	var calls, total int64
	if len(state) == 16 {
		calls, total = int64(binary.BigEndian.Uint64(state)), int64(binary.BigEndian.Uint64(state[8:]))
	}
	for calls < t.Calls {
		amounts := t.Amounts(calls)
		got, err := t.add(ctx, amounts)
		if err != nil {
			return err
		}
		calls++
		if total += Sum(amounts); got != total {
			return fmt.Errorf("teller %s: after %d calls account %d has %d, must have %d", t.Name, calls, t.Account, got, total)
		}
		if t.Answered != nil {
			t.Answered(ctx, calls, total)
		}
		if calls%max(t.Every, 1) != 0 && calls < t.Calls {
			continue
		}
		state = binary.BigEndian.AppendUint64(nil, uint64(calls))
		if err := rpc.Checkpoint(ctx, binary.BigEndian.AppendUint64(state, uint64(total))); err != nil {
			return err
		}
	}
	return nil
}

// add makes one call.
func (t *Teller) add(ctx context.Context, amounts []byte) (int64, error) {
	ref := rpc.RefOf(amounts)
	total, err := t.To.Add(ctx, t.Account, ref)
	if err != nil {
		return 0, err
	}
	return total, ref.Free(ctx)
}

// Amounts are those of the teller's next call: no two sums are alike soon.
func (t *Teller) Amounts(calls int64) []byte {
	return []byte{1, byte(t.Account), byte(calls), byte(calls >> 8)}
}
