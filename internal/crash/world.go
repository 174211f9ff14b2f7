package crash

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/bifrost-rack/bifrost/dsm"
	"github.com/bifrost-rack/bifrost/internal/crash/gen-go/actor"
	"github.com/bifrost-rack/bifrost/rpc"
	"github.com/bifrost-rack/bifrost/rpc/idl/bifrost"
)

// rackWorld is an execution on a rack, a branch of one, or a plain client.
type rackWorld struct {
	run    *Run
	ctx    context.Context //nolint:containedctx // the execution's, or the branch's
	node   *rpc.Node
	memory func(context.Context) *dsm.Client
	actor  *performer // nil for a client
	by     attempt
	// durable says that it is a durable main.
	durable  bool
	branches time.Duration // that were begun
}

func (w *rackWorld) Alloc(size int) (dsm.Pointer, error) {
	from := w.run.ledger.now()
	p, err := w.memory(w.ctx).Alloc(w.ctx, uint64(size))
	if err == nil {
		w.run.ledger.allocated(w.by, from, p)
	}
	return p, err
}

func (w *rackWorld) Write(op int, p dsm.Pointer, at int, b []byte) error {
	done := w.run.ledger.touch(&access{by: w.by, op: op, region: p, at: at, write: true, data: b})
	_, err := w.memory(w.ctx).Write(w.ctx, p.Add(int64(at)), b)
	if err == nil {
		done()
	}
	return err
}

func (w *rackWorld) Read(op int, p dsm.Pointer, at int, b []byte) error {
	done := w.run.ledger.touch(&access{by: w.by, op: op, region: p, at: at, data: b})
	_, err := w.memory(w.ctx).Read(w.ctx, p.Add(int64(at)), b)
	if err == nil {
		done()
	}
	return err
}

func (w *rackWorld) Free(p dsm.Pointer) error { return w.memory(w.ctx).Free(w.ctx, p) }

// client returns stubs for a service. They may be used by one goroutine.
func (w *rackWorld) client(service int, p rpc.Policy) *actor.ActorClient {
	return actor.NewActorClient(w.node.Client(ServiceName(service), rpc.WithPolicy(p)))
}

// policy is that of an operation's call.
func (w *rackWorld) policy(op *Op) rpc.Policy { return cmp.Or(op.Policy, w.run.opt.Policy) }

// encode is what a call carries. One that is long ends in spaces.
func (w *rackWorld) encode(op *Op) []byte {
	b, err := json.Marshal(op)
	if err != nil {
		panic(err) // nothing in it can fail
	}
	if w.run.opt.Setting.Long && (op.N%longEach == 0 || op.Slot >= 0 && op.N%2 == 0) {
		b = append(b, bytes.Repeat([]byte(" "), longSpaces)...)
	}
	return b
}

// longSpaces is more than a jumbo frame.
const longSpaces = 20_000

// asLong makes the answer to a long call as long: with marks that say nothing.
func asLong(script []byte, answer []*actor.Mark) []*actor.Mark {
	if len(script) < longSpaces {
		return answer
	}
	return append(answer, slices.Repeat([]*actor.Mark{{Op: noMark}}, longMarks)...)
}

// noMark is the operation of a mark that says nothing.
const noMark = -1

func references(ptrs []dsm.Pointer) []*bifrost.GlobalPointer {
	out := []*bifrost.GlobalPointer{}
	for _, p := range ptrs {
		out = append(out, rpc.GlobalPointer(p))
	}
	return out
}

func (w *rackWorld) Call(op *Op, noise uint64, lent []dsm.Pointer) (Outcome, error) {
	w.run.ledger.issue(op.N)
	answer, err := w.client(op.Service, w.policy(op)).Act(w.ctx, w.encode(op), int64(noise), references(lent))
	var refused *actor.Refused
	if errors.As(err, &refused) {
		out := Outcome{Value: uint64(refused.Value), Noise: uint64(refused.Noise), Marks: marksOf(refused.Marks), Refused: true}
		w.run.ledger.observe(op.N, out)
		return out, nil
	}
	if err != nil {
		return Outcome{}, fmt.Errorf("operation %d: %w", op.N, err)
	}
	out := Outcome{Value: uint64(answer.Value), Noise: uint64(answer.Noise), Marks: marksOf(answer.Marks)}
	if out.Region, err = rpc.PointerOf(answer.Region); err != nil {
		return out, err
	}
	w.run.ledger.observe(op.N, out)
	return out, nil
}

func (w *rackWorld) Post(op *Op, noise uint64, given []dsm.Pointer) error {
	w.run.ledger.issue(op.N)
	err := w.client(op.Service, w.policy(op)).Post(w.ctx, w.encode(op), int64(noise), references(given))
	if err != nil {
		return fmt.Errorf("operation %d: %w", op.N, err)
	}
	w.run.ledger.sent(op.N)
	return nil
}

func (w *rackWorld) Try(op *Op, noise uint64, lent []dsm.Pointer) (uint64, error) {
	answer, err := w.client(op.Service, rpc.PolicyNone).Act(w.ctx, w.encode(op), int64(noise), references(lent))
	switch {
	case err == nil:
		w.run.ledger.tried(op.N, uint64(answer.Value))
		return uint64(answer.Noise), nil
	case rpc.CodeOf(err) == rpc.Unavailable && w.run.crash.hits() > 0:
		return 1, nil
	}
	return 0, fmt.Errorf("operation %d: %w", op.N, err)
}

func (w *rackWorld) Hurry(op *Op, noise uint64, lent []dsm.Pointer) (uint64, error) {
	ctx, giveUp := context.WithCancel(w.ctx)
	defer giveUp()
	if op.Cancel {
		defer time.AfterFunc(op.Within, giveUp).Stop()
	} else {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(w.ctx, op.Within)
		defer cancel()
	}
	w.run.ledger.issue(op.N)
	answer, err := w.client(op.Service, w.policy(op)).Act(ctx, w.encode(op), int64(noise), references(lent))
	switch code := rpc.CodeOf(err); {
	case err == nil:
		w.run.ledger.tried(op.N, uint64(answer.Value))
		return uint64(answer.Noise), nil
	case w.ctx.Err() != nil && code == rpc.Deadline: // the program was told to end while the call was being given up
		err = &rpc.Error{Code: rpc.Canceled, Op: "call", Err: context.Cause(w.ctx)}
	case w.ctx.Err() != nil:
	case code == rpc.Deadline, code == rpc.Canceled:
		if (w.actor != nil || w.durable) && !rpc.NeverBegan(err) {
			w.run.ledger.gaveUp(op.N)
		}
		return uint64(code), nil
	}
	return 0, fmt.Errorf("operation %d: %w", op.N, err)
}

func (w *rackWorld) Risk(op *Op, noise uint64, lent []dsm.Pointer) (Outcome, error) {
	out, err := w.Call(op, noise, lent)
	select {
	case <-w.node.Done(): // the caller's own end
		return out, err
	default:
	}
	switch code := rpc.CodeOf(err); {
	case code == rpc.Deadlock, code == rpc.Unavailable && w.run.takenBack(op.Service):
		w.run.ledger.refused(op.N, code, code == rpc.Deadlock || rpc.NeverBegan(err))
		return Outcome{Refused: true, Noise: uint64(code)}, nil
	}
	return out, err
}

// Go gives each branch an instant of its own to begin at: which of them makes its first
// call first would be up to the scheduler, and a case would not replay.
func (w *rackWorld) Go(f func(world) error) branch {
	w.branches++
	inner := *w
	return rpc.Go(w.ctx, func(ctx context.Context) error {
		<-time.After(inner.branches)
		inner.ctx = ctx
		err := f(&inner)
		w.run.ledger.failed(w.by, err) // the execution may fail with it while other branches run on
		return err
	})
}

func (w *rackWorld) Any(branches []branch) (int, error) {
	var all []*rpc.Branch
	for _, b := range branches {
		all = append(all, b.(*rpc.Branch))
	}
	return rpc.WaitAny(w.ctx, all...)
}

// errNoState is a mistake in the program.
var errNoState = errors.New("crash: the script changes the state of what has none")

func (w *rackWorld) Add(op *Op, noise uint64) (int, error) {
	if w.actor == nil || w.actor.books == nil {
		return 0, errNoState
	}
	b := w.actor.books
	n := len(b.Marks) + 1
	b.Marks = append(b.Marks, Mark{op.N, markOf(noise, n)})
	return n, nil
}

func (w *rackWorld) Bump(op *Op) (uint64, error) {
	if w.actor == nil || w.actor.books == nil {
		return 0, errNoState
	}
	b := w.actor.books
	if b.Region.IsNil() {
		p, err := w.Alloc(64)
		if err != nil {
			return 0, err
		}
		b.Region = p
	}
	n, err := w.counter(op.N)
	if err != nil {
		return 0, err
	}
	return n + 1, w.Write(op.N, b.Region, 0, binary.BigEndian.AppendUint64(nil, n+1))
}

// counter reads the service's counter in distributed memory.
func (w *rackWorld) counter(op int) (uint64, error) {
	b := make([]byte, 8)
	err := w.Read(op, w.actor.books.Region, 0, b)
	return binary.BigEndian.Uint64(b), err
}

func (w *rackWorld) Effect(op *Op) (uint64, error) {
	large := w.run.opt.Setting.large(op.N)
	b, err := rpc.Effect(w.ctx, fmt.Sprint("operation ", op.N), func(context.Context) ([]byte, error) {
		return append(binary.BigEndian.AppendUint64(nil, w.run.ledger.effect(op.N)), make([]byte, large)...), nil
	})
	if err == nil && len(b) != 8+large {
		err = fmt.Errorf("crash: operation %d: an effect returned %d bytes", op.N, len(b))
	}
	if err == nil && w.actor != nil {
		w.run.ledger.shows(w.by, w.actor.self.Address)
	}
	if err != nil {
		return 0, err
	}
	return binary.BigEndian.Uint64(b), nil
}

func (w *rackWorld) Look() (uint64, error) {
	b := make([]byte, 8)
	err := rpc.Random(w.ctx, b)
	return mix(uint64(rpc.Now(w.ctx).UnixNano()), binary.BigEndian.Uint64(b)), err
}

func (w *rackWorld) Wait(d time.Duration) error {
	select {
	case <-time.After(d): // virtual
		return nil
	case <-w.ctx.Done():
		return w.ctx.Err()
	}
}

func (w *rackWorld) Checkpoint(m *machine) error {
	if !w.durable {
		return nil
	}
	defer func() { w.by.since = m.Next }()
	b, err := json.Marshal(m)
	if err != nil {
		return err
	}
	return rpc.Checkpoint(w.ctx, b)
}

// same reports whether two outcomes are one.
func (o Outcome) same(p Outcome) bool {
	return o.Value == p.Value && o.Noise == p.Noise && o.Refused == p.Refused && o.Region == p.Region && slices.Equal(o.Marks, p.Marks)
}
