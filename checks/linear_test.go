package checks

import (
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/bifrost-rack/bifrost/dsm/dsmclient"
	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/internal/memrack"
	"github.com/bifrost-rack/bifrost/p4switch/shared/bubble"
)

// access is one operation on one region's first 8 bytes.
type access struct {
	region int
	write  bool
	value  uint64 // written
}

// outcome is how it ended. A write that was cancelled is unsure until Settle has
// returned, which is taken as its end.
type outcome struct {
	value  uint64 // read
	denied bool
	unsure bool
}

// register is a region as a model: a read returns the last write's value, a
// denied write has no effect, an unsure one has its effect before it ends, or
// never.
var register = porcupine.NondeterministicModel{
	Partition: func(history []porcupine.Operation) (parts [][]porcupine.Operation) {
		for _, op := range history {
			r := op.Input.(access).region
			for len(parts) <= r {
				parts = append(parts, nil)
			}
			parts[r] = append(parts[r], op)
		}
		return parts
	},
	Init: func() []any { return []any{uint64(0)} },
	Step: func(state, input, output any) []any {
		in, out := input.(access), output.(outcome)
		switch {
		case out.denied || !in.write && out.unsure:
			return []any{state}
		case in.write && out.unsure:
			return []any{state, in.value}
		case in.write:
			return []any{in.value}
		case out.value == state.(uint64):
			return []any{state}
		}
		return nil
	},
	DescribeOperation: func(input, output any) string { return fmt.Sprintf("%+v → %+v", input, output) },
}

// Reads and writes of several nodes on the same regions are linearizable, through
// a bad network, with denials that come and go, and with operations cancelled
// at any moment; with every other seed on behalf of executions that are committed.
func TestLinearizable(t *testing.T) {
	seeds := uint64(6)
	if testing.Short() {
		seeds = 2
	}
	for seed := range seeds {
		t.Run(fmt.Sprintf("seed %d", seed), func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				history := record(t, seed, seed%2 == 1)
				if len(history) < 200 {
					t.Fatalf("only %d operations", len(history))
				}
				if !porcupine.CheckOperations(register.ToModel(), history) {
					t.Error("the history is not linearizable")
				}
			})
		})
	}
}

// record lets three nodes work on two regions and returns what happened.
func record(t *testing.T, seed uint64, undo bool) []porcupine.Operation {
	r := memrack.New(t, memrack.Virtual(seed, 9000), 1, memrack.Bad)
	var clients []*dsmclient.Client
	for node := range uint64(3) {
		clients = append(clients, r.Client(node+1, 1))
	}
	var ptrs []dsmclient.Pointer
	for range 2 {
		p, err := clients[0].Alloc(context.Background(), 64)
		if err != nil {
			t.Fatal(err)
		}
		ptrs = append(ptrs, p)
	}
	var turn atomic.Uint64
	r.Deny(func(node, to dsmpacket.Pointer) bool { // each node has its bad moments
		return to.Op() == dsmpacket.OpWrite && (turn.Add(1)/8+uint64(node[15]))%5 == 0
	})
	if undo {
		r.KeepUndo()
	}
	control := make([]chan struct{}, len(ptrs)) // of each region; goes on with each commit
	for i := range control {
		control[i] = make(chan struct{}, 1)
	}
	var running sync.WaitGroup
	start := time.Now()
	histories := make([][]porcupine.Operation, 6)
	for worker := range histories {
		running.Go(func() {
			w := accessor{rack: r, undo: undo, control: control, client: clients[worker/2], ptrs: ptrs, id: worker, start: start,
				rand: rand.New(rand.NewPCG(seed, uint64(worker)))}
			for range 40 {
				w.next(t)
			}
			histories[worker] = w.history
		})
	}
	running.Wait()
	r.Undone()
	var all []porcupine.Operation
	for _, h := range histories {
		all = append(all, h...)
	}
	return all
}

// accessor is one worker.
type accessor struct {
	rack    *memrack.Rack
	undo    bool // writes are executions'
	control []chan struct{}
	client  *dsmclient.Client
	ptrs    []dsmclient.Pointer
	id      int
	start   time.Time
	rand    *rand.Rand
	history []porcupine.Operation
	values  uint64
}

// next carries out and records one operation.
func (w *accessor) next(t *testing.T) {
	ctx, cancel := context.Background(), context.CancelFunc(func() {})
	if w.rand.IntN(4) == 0 {
		ctx, cancel = context.WithTimeout(ctx, time.Duration(w.rand.IntN(300))*time.Microsecond)
	}
	defer cancel()
	in := access{region: w.rand.IntN(len(w.ptrs)), write: w.rand.IntN(2) == 0}
	p, b := w.ptrs[in.region], make([]byte, 8)
	op := porcupine.Operation{ClientId: w.id, Call: int64(time.Since(w.start))}
	var err error
	if in.write {
		w.values++
		in.value = uint64(w.id)<<32 | w.values
		binary.BigEndian.PutUint64(b, in.value)
		err = w.write(ctx, in, b)
	} else {
		_, err = w.client.Read(ctx, p, b)
	}
	out := outcome{value: binary.BigEndian.Uint64(b)}
	switch fault.CodeOf(err) {
	case fault.OK:
	case fault.PermissionDenied:
		out.denied = true
	case fault.Deadline:
		out.unsure = true
		if err := w.client.Settle(context.Background(), p); err != nil {
			t.Error(err)
		}
	default:
		t.Error(err)
	}
	op.Input, op.Output, op.Return = in, out, int64(time.Since(w.start))
	w.history = append(w.history, op)
}

// write writes as the node or, with undo, as an execution that is committed.
func (w *accessor) write(ctx context.Context, in access, b []byte) error {
	c, p := w.client, w.ptrs[in.region]
	if !w.undo {
		_, err := c.Write(ctx, p, b)
		return err
	}
	w.control[in.region] <- struct{}{}
	defer func() { <-w.control[in.region] }()
	e := &memrack.Execution{ID: [16]byte{byte(w.id + 1)}}
	binary.BigEndian.PutUint64(e.ID[8:], in.value)
	c = c.With(dsmclient.Scope{Execution: e.ID}, e)
	_, err := c.Write(ctx, p, b)
	if err := c.Finish(context.Background()); err != nil {
		w.rack.T.Error(err)
	}
	w.rack.Commit(w.client, 1, e)
	return err
}
