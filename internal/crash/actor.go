package crash

import (
	"bytes"
	"context"
	"encoding/json"
	"slices"

	"github.com/bifrost-rack/bifrost/dsm"
	"github.com/bifrost-rack/bifrost/internal/crash/gen-go/actor"
	"github.com/bifrost-rack/bifrost/internal/join"
	"github.com/bifrost-rack/bifrost/rpc"
	"github.com/bifrost-rack/bifrost/rpc/idl/bifrost"
)

//go:generate thrift -nowarn -out gen-go --gen go:package_prefix=github.com/bifrost-rack/bifrost/rpc/idl/,skip_remote actor.thrift
//go:generate gofmt -w gen-go

// performer serves one service of a program: an actor.Actor.
type performer struct {
	run     *Run
	service int
	node    *rpc.Node
	self    join.Identity   // the node's
	program context.Context //nolint:containedctx // the program's
	books   *books          // nil if the service has no state
}

// Act implements actor.Actor.
func (a *performer) Act(ctx context.Context, script []byte, noise int64, lent []*bifrost.GlobalPointer) (*actor.Outcome, error) {
	if about, is := bytes.CutPrefix(script, []byte(leasePrefix)); is {
		return a.aboutLease(ctx, about, lent)
	}
	out, large, err := a.perform(ctx, script, noise, lent)
	switch {
	case err != nil:
		return nil, err
	case out.Refused:
		return nil, &actor.Refused{Value: int64(out.Value), Noise: int64(out.Noise), Marks: asLong(script, wireMarks(out.Marks))}
	}
	answer := &actor.Outcome{Value: int64(out.Value), Noise: int64(out.Noise), Marks: asLong(script, wireMarks(out.Marks))}
	if !out.Region.IsNil() {
		answer.Region = rpc.GlobalPointer(out.Region)
	}
	if large > 0 {
		answer.Padding = make([]byte, large)
	}
	a.run.crash.wasLong(script, len(lent) > 0, answer.Region != nil)
	return answer, nil
}

// Post implements actor.Actor.
func (a *performer) Post(ctx context.Context, script []byte, noise int64, given []*bifrost.GlobalPointer) error {
	_, _, err := a.perform(ctx, script, noise, given)
	return err
}

// perform runs a script, and tells how large its answer is to be beside what it says.
func (a *performer) perform(ctx context.Context, script []byte, noise int64, lent []*bifrost.GlobalPointer) (out Outcome, large int, err error) {
	var op Op
	if err := json.Unmarshal(script, &op); err != nil {
		return Outcome{}, 0, err
	}
	by := a.run.ledger.beginAt(op.N, a.self)
	over := a.run.ledger.stints(ctx, by)
	var ptrs []dsm.Pointer
	for _, g := range lent {
		p, err := rpc.PointerOf(g)
		if err != nil {
			return Outcome{}, 0, err
		}
		ptrs = append(ptrs, p)
	}
	if op.Kind == Hurry { // what it has begun it does, though nobody waits for it
		ctx = context.WithoutCancel(ctx)
	}
	s := &op.Body[0]
	m := newMachine(s, uint64(noise), ptrs)
	m.Out.Value = uint64(op.N)
	out, err = m.run(ctx, &rackWorld{run: a.run, ctx: ctx, node: a.node, memory: rpc.Memory, actor: a, by: by}, s)
	over(err)
	a.run.ledger.failed(by, err)
	return out, a.run.opt.Setting.large(op.N), err
}

// Audit implements actor.Actor: it tells the books and gives up the region that
// the service keeps.
func (a *performer) Audit(ctx context.Context) (*actor.Books, error) {
	if a.books == nil {
		return &actor.Books{}, nil
	}
	out := &actor.Books{Marks: wireMarks(a.books.Marks)}
	if a.books.Region.IsNil() {
		return out, nil
	}
	w := &rackWorld{run: a.run, ctx: ctx, node: a.node, memory: rpc.Memory, actor: a, by: attempt{execution: never, run: a.service}}
	n, err := w.counter(-1 - a.service)
	if err != nil {
		return nil, err
	}
	out.Bumps = int64(n)
	err = rpc.Memory(ctx).Free(ctx, a.books.Region)
	a.books.Region = dsm.Pointer{}
	return out, err
}

func wireMarks(ms []Mark) []*actor.Mark {
	out := []*actor.Mark{}
	for _, m := range ms {
		out = append(out, &actor.Mark{Op: int32(m.Op), Value: int64(m.Value)})
	}
	return out
}

func marksOf(ms []*actor.Mark) (out []Mark) {
	for _, m := range ms {
		if m.Op != noMark {
			out = append(out, Mark{int(m.Op), uint64(m.Value)})
		}
	}
	return out
}

// books are a service's state: an rpc.State, and an rpc.IncrementalState as delta
// books.
type books struct {
	Marks  []Mark      `json:"marks"`
	Region dsm.Pointer `json:"region"` // holds the counter
	large  int         // how many spaces a snapshot ends in
}

// Snapshot implements rpc.State.
func (b *books) Snapshot() ([]byte, error) {
	s, err := json.Marshal(b)
	return append(s, bytes.Repeat([]byte(" "), b.large)...), err
}

// Restore implements rpc.State.
func (b *books) Restore(s []byte) error {
	*b = books{large: b.large}
	return json.Unmarshal(s, b)
}

// deltaBooks tell what has changed.
type deltaBooks struct {
	*books
	told books // what Snapshot or Delta has told last
}

func (b *deltaBooks) tell() { b.told = books{Marks: slices.Clip(b.Marks), Region: b.Region} }

// Snapshot implements rpc.State.
func (b *deltaBooks) Snapshot() ([]byte, error) {
	b.tell()
	return b.books.Snapshot()
}

// Restore implements rpc.State.
func (b *deltaBooks) Restore(s []byte) error {
	defer b.tell()
	return b.books.Restore(s)
}

// Delta implements rpc.IncrementalState.
func (b *deltaBooks) Delta() ([]byte, error) {
	if len(b.Marks) == len(b.told.Marks) && b.Region == b.told.Region {
		return nil, nil
	}
	d := books{Marks: b.Marks[len(b.told.Marks):], Region: b.Region}
	b.tell()
	return json.Marshal(d)
}

// Apply implements rpc.IncrementalState.
func (b *deltaBooks) Apply(delta []byte) error {
	var d books
	err := json.Unmarshal(delta, &d)
	b.Marks, b.Region = append(b.Marks, d.Marks...), d.Region
	b.tell()
	return err
}
