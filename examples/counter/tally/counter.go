// Package tally is the counter example: a service whose calls must happen exactly
// once, one that passes its calls on, and a durable main that makes calls.
//
//	Teller ── add ──▶ Front ── add ──▶ Counter ── accounts in its state, in the ledger with each answer
//	(durable main)    (no state)          └────── the same accounts in a region, taken back and
//	                                              written anew when a call runs again
package tally

import (
	"context"
	"encoding/binary"

	"github.com/bifrost-rack/bifrost/dsm"
	"github.com/bifrost-rack/bifrost/examples/counter/gen-go/counter"
	"github.com/bifrost-rack/bifrost/rpc"
)

// The services' names.
const (
	CounterName = "Counter"
	FrontName   = "Front"
)

// Accounts is how many accounts a counter has.
const Accounts = 64

// slot is the size of an account in memory and in the state, in bytes.
const slot = 8

// Counter implements the service. The runtime calls it for one call at a time, as
// the IDL says that it has state.
type Counter struct {
	// Entered, if set, is called in the middle of each add: memory has been written,
	// the state has not.
	Entered func(ctx context.Context)

	region   dsm.Pointer // of the accounts in memory; zero until there are any
	accounts [Accounts]int64
}

var (
	_ counter.CounterRefHandler = (*Counter)(nil)
	_ rpc.State                 = (*Counter)(nil)
)

// Add implements the service.
func (c *Counter) Add(ctx context.Context, account int32, amounts *rpc.Ref[[]byte]) (int64, error) {
	if account < 0 || account >= Accounts {
		return 0, &counter.NoSuchAccount{Account: account, Accounts: Accounts}
	}
	b, err := amounts.Load(ctx)
	if err != nil {
		return 0, err
	}
	sum := Sum(b)
	if err := c.addInMemory(ctx, account, sum); err != nil {
		return 0, err
	}
	if c.Entered != nil {
		c.Entered(ctx)
	}
	c.accounts[account] += sum
	return c.accounts[account], nil
}

// Sum is what an array adds to an account.
func Sum(amounts []byte) (sum int64) {
	for _, a := range amounts {
		sum += int64(a)
	}
	return sum
}

// addInMemory reads an account, checks it against the state, and writes it.
func (c *Counter) addInMemory(ctx context.Context, account int32, sum int64) error {
	memory := rpc.Memory(ctx)
	if c.region == (dsm.Pointer{}) {
		p, err := memory.Alloc(ctx, Accounts*slot) // zero
		if err != nil {
			return err
		}
		c.region = p
	}
	at := c.region.Add(int64(account) * slot)
	b := make([]byte, slot)
	if _, err := memory.Read(ctx, at, b); err != nil {
		return err
	}
	was := int64(binary.BigEndian.Uint64(b))
	if was != c.accounts[account] {
		return &counter.Inconsistent{Account: account, State: c.accounts[account], Memory: was}
	}
	_, err := memory.Write(ctx, at, binary.BigEndian.AppendUint64(nil, uint64(was+sum)))
	return err
}

// Totals implements the service.
func (c *Counter) Totals(ctx context.Context) ([]int64, error) {
	if c.region == (dsm.Pointer{}) {
		return c.accounts[:], nil
	}
	b := make([]byte, Accounts*slot)
	if _, err := rpc.Memory(ctx).Read(ctx, c.region, b); err != nil {
		return nil, err
	}
	for i, total := range c.accounts {
		if m := int64(binary.BigEndian.Uint64(b[i*slot:])); m != total {
			return nil, &counter.Inconsistent{Account: int32(i), State: total, Memory: m}
		}
	}
	return c.accounts[:], nil
}

// Snapshot implements rpc.State.
func (c *Counter) Snapshot() ([]byte, error) {
	b := append([]byte(nil), c.region[:]...)
	for _, total := range c.accounts {
		b = binary.BigEndian.AppendUint64(b, uint64(total))
	}
	return b, nil
}

// Restore implements rpc.State.
func (c *Counter) Restore(b []byte) error {
	if len(b) != len(c.region)+Accounts*slot {
		return rpc.Errorf(rpc.Internal, "a counter's state of %d bytes", len(b))
	}
	b = b[copy(c.region[:], b):]
	for i := range c.accounts {
		c.accounts[i] = int64(binary.BigEndian.Uint64(b[i*slot:]))
	}
	return nil
}
