package dsmclient_test

import (
	"bytes"
	"context"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/bifrost-rack/bifrost/dsm/dsmclient"
	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/internal/memrack"
	"github.com/bifrost-rack/bifrost/internal/wire"
	"github.com/bifrost-rack/bifrost/p4switch/shared/bubble"
)

// An execution that is cut off at any moment, on a bad network, and run again by
// the next incarnations: its pointers are the same in each run, and memory ends as
// if it had run once.
func TestCrashAndReplay(t *testing.T) {
	crashes := 0
	for seed := range uint64(16) {
		bubble.Test(t, func(t *testing.T) {
			r := newImpairedRack(t, memrack.Virtual(seed, 9000), 3, memrack.Bad)
			r.KeepUndo()
			random := rand.New(rand.NewPCG(seed, 0))
			program := &replayed{execution: &memrack.Execution{ID: [16]byte{7, byte(seed)}}, seed: seed}
			owner := r.Client(1, 1)
			program.shared, program.doomed = alloc(t, owner, 20_000), alloc(t, owner, 64)
			_, err := owner.Write(t.Context(), program.shared, fill(20_000, 1))
			must(t, err)
			incarnation, reached := uint32(1), 0
			for {
				c := r.Client(2, incarnation)
				if incarnation > 1 {
					r.Rollback(c, incarnation-1, program.execution)
					program.before(t, owner)
				}
				ctx, cancel := context.WithTimeout(t.Context(), time.Duration(random.IntN(20_000))*time.Microsecond)
				if incarnation > 5 {
					ctx = t.Context()
				}
				done := program.run(ctx, t, c, incarnation > 1) == nil
				cancel()
				if done {
					r.Commit(c, incarnation, program.execution)
					break
				}
				must(t, c.Close())
				r.Fence(2, incarnation)
				incarnation++
				if program.own[1] != (dsmclient.Pointer{}) {
					reached++
				}
			}
			r.Undone()
			program.after(t, owner)
			crashes += reached
		})
	}
	if crashes < 6 {
		t.Errorf("only %d crashes after the second allocation", crashes)
	}
}

// replayed is a deterministic execution: it reads, changes and frees what there
// was, and allocates.
type replayed struct {
	execution      *memrack.Execution
	seed           uint64
	shared, doomed dsmclient.Pointer
	own            [4]dsmclient.Pointer // nil until the first run has got that far
}

func (p *replayed) run(ctx context.Context, t *testing.T, c *dsmclient.Client, again bool) error {
	trunk := c.With(dsmclient.Scope{Execution: p.execution.ID}, p.execution)
	if _, err := trunk.Write(ctx, p.shared.Add(3000), fill(9000, 2)); err != nil {
		return err
	}
	for i := range p.own {
		q, err := trunk.Alloc(ctx, uint64(1000<<i))
		if err != nil {
			return err
		}
		if p.own[i] != (dsmclient.Pointer{}) && p.own[i] != q {
			t.Errorf("seed %d: allocation %d gets %s, had %s", p.seed, i, q, p.own[i])
		}
		p.own[i] = q
		got := make([]byte, 1000)
		if _, err := trunk.Read(ctx, q, got); err != nil {
			return err
		}
		if !bytes.Equal(got, make([]byte, 1000)) {
			t.Errorf("seed %d: allocation %d is not zero", p.seed, i)
		}
		if _, err := trunk.Write(ctx, q, fill(1000, uint64(i))); err != nil {
			return err
		}
	}
	if err := trunk.Free(ctx, p.doomed); err != nil {
		return err
	}
	if _, err := trunk.Read(ctx, p.doomed, make([]byte, 8)); fault.CodeOf(err) != fault.PermissionDenied && ctx.Err() == nil {
		t.Errorf("seed %d: read of what was freed: %v", p.seed, err)
	}
	if err := trunk.Free(ctx, p.own[3]); err != nil {
		return err
	}
	return trunk.Finish(ctx)
}

// before checks that nothing has happened.
func (p *replayed) before(t *testing.T, c *dsmclient.Client) {
	got := make([]byte, 20_000)
	if _, err := c.Read(t.Context(), p.shared, got); err != nil || !bytes.Equal(got, fill(20_000, 1)) {
		t.Errorf("seed %d: not rolled back: %v", p.seed, err)
	}
	if _, err := c.Read(t.Context(), p.doomed, got[:64]); err != nil {
		t.Errorf("seed %d: freed before the end: %v", p.seed, err)
	}
}

// after checks that everything has happened.
func (p *replayed) after(t *testing.T, c *dsmclient.Client) {
	want, got := fill(20_000, 1), make([]byte, 20_000)
	copy(want[3000:], fill(9000, 2))
	if _, err := c.Read(t.Context(), p.shared, got); err != nil || !bytes.Equal(got, want) {
		t.Errorf("seed %d: not what one run writes: %v", p.seed, err)
	}
	for i, q := range p.own[:3] {
		if _, err := c.Read(t.Context(), q, got[:1000]); err != nil || !bytes.Equal(got[:1000], fill(1000, uint64(i))) {
			t.Errorf("seed %d: region %d: %v", p.seed, i, err)
		}
	}
	for _, q := range []dsmclient.Pointer{p.doomed, p.own[3]} {
		if _, err := c.Read(t.Context(), q, got[:8]); fault.CodeOf(err) != fault.NotFound {
			t.Errorf("seed %d: %s is not freed: %v", p.seed, q, err)
		}
	}
}

// A re-run finds its region although it is not where it would be placed now.
func TestReplayFindsMachine(t *testing.T) {
	r := newRack(t, wire.Config{}, 1)
	r.KeepUndo()
	e := &memrack.Execution{ID: [16]byte{1}}
	c := r.Client(1, 1)
	p := alloc(t, c.With(dsmclient.Scope{Execution: e.ID}, e), 64)
	for range 5 { // the rack grows
		r.AddMemory()
	}
	r.KeepUndo()
	for incarnation := range uint32(4) {
		must(t, c.Close())
		r.Fence(1, incarnation+1)
		c = r.Client(1, incarnation+2)
		r.Rollback(c, incarnation+1, e)
		if q := alloc(t, c.With(dsmclient.Scope{Execution: e.ID}, e), 64); q != p {
			t.Errorf("the re-run gets %s, had %s", q, p)
		}
	}
	c, e = r.Client(9, 1), &memrack.Execution{ID: [16]byte{2}}
	if alloc(t, c.With(dsmclient.Scope{Execution: e.ID}, e), 64) == p {
		t.Error("another execution gets the region")
	}
}

// A branch does one thing at a time, and none after its end.
func TestBranchInOrder(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		r := newRack(t, memrack.Virtual(1, 0), 1)
		c := r.Client(1, 1)
		in, lost := c.With(dsmclient.Scope{Execution: [16]byte{1}}, new(memrack.Execution)), dsmpacket.Make(prefix, 9, dsmpacket.IDOf(0, 1))
		ctx, cancel := context.WithCancel(t.Context())
		var writing sync.WaitGroup
		writing.Go(func() {
			_, err := in.Write(ctx, lost, make([]byte, 8))
			want(t, err, fault.Canceled, false)
		})
		<-time.After(time.Millisecond) // virtual: it has been sent
		_, err := in.Alloc(t.Context(), 64)
		want(t, err, fault.Nondeterminism, false)
		cancel()
		writing.Wait()
		alloc(t, in, 64)
		short, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		want(t, in.Settle(short), fault.Deadline, false) // what became of the write is not known
		alloc(t, in, 64)
		short, cancel = context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		want(t, in.Finish(short), fault.Deadline, false)
		_, err = in.Alloc(t.Context(), 64)
		want(t, err, fault.BadRequest, false)
		for _, c := range []*dsmclient.Client{c, c.With(dsmclient.Scope{}, nil)} {
			must(t, c.Finish(t.Context()))
			alloc(t, c, 64)
		}
	})
}

// A cancelled allocation of an execution is taken back before Finish returns, or
// has never happened.
func TestFinishTakesBack(t *testing.T) {
	for delay := range 8 {
		bubble.Test(t, func(t *testing.T) {
			r := newImpairedRack(t, memrack.Virtual(1, 0), 1, wire.Impairment{Delay: time.Millisecond})
			r.KeepUndo()
			c := r.Client(1, 1).With(dsmclient.Scope{Execution: [16]byte{1}}, new(memrack.Execution))
			ctx, cancel := context.WithTimeout(t.Context(), time.Duration(delay)*time.Millisecond/2+1)
			defer cancel()
			_, err := c.Alloc(ctx, 64)
			want(t, err, fault.Deadline, false)
			must(t, c.Finish(t.Context()))
			if used := r.Memories[0].Used(); used != 0 {
				t.Errorf("%d bytes are allocated", used)
			}
			r.Undone()
		})
	}
}
