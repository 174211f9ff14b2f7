package rpc

import (
	"context"
	"encoding/binary"
	"reflect"
	"slices"

	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/rpc/trailer"
)

// WaitAny waits until one of the branches has ended or ctx ends. It returns the
// index of the one that has, with what its Wait returns; -1 if none has. Which one
// an execution sees first is journalled, so a re-run sees the same. A branch that
// has been seen is not taken off the list: that is up to the caller.
func WaitAny(ctx context.Context, branches ...*Branch) (int, error) {
	const op = "rpc.WaitAny"
	if len(branches) == 0 {
		return -1, fault.New(BadRequest, op, "no branches to wait for")
	}
	b := branchOf(ctx)
	if !b.journalled() {
		return anyOf(ctx, op, branches)
	}
	o, err := b.begin(op, trailer.Order, trailer.Outcome)
	if err != nil {
		return -1, err
	}
	defer o.end()
	if o.known != nil {
		return o.sameOf(branches)
	}
	b.e.promote()
	i, err := anyOf(ctx, op, branches)
	if i < 0 {
		failure := plain(op, err)
		o.record(trailer.Outcome, outcome{code: failure.Code, message: failure.Msg}.append(nil))
		return i, failure
	}
	o.record(trailer.Order, binary.BigEndian.AppendUint32(nil, branches[i].number))
	return i, err
}

// sameOf waits for the branch that was seen when the execution ran before.
func (o *operation) sameOf(branches []*Branch) (int, error) {
	if o.known.Type == trailer.Outcome {
		out, err := parseOutcome(o.known.Data)
		if err != nil {
			return -1, o.diverged("%v", err)
		}
		return -1, &Error{Code: out.code, Op: o.op, Msg: out.message}
	}
	if len(o.known.Data) != 4 {
		return -1, o.diverged("an order entry of %d bytes", len(o.known.Data))
	}
	number := binary.BigEndian.Uint32(o.known.Data)
	i := slices.IndexFunc(branches, func(b *Branch) bool { return b.number == number })
	if i < 0 {
		return -1, o.diverged("branch %d ended first when the execution ran before, and is not waited for now", number)
	}
	return i, branches[i].Wait()
}

// anyOf waits for whichever branch ends first.
func anyOf(ctx context.Context, op string, branches []*Branch) (int, error) {
	for i, b := range branches {
		select {
		case <-b.done:
			return i, b.err
		default:
		}
	}
	cases := make([]reflect.SelectCase, 0, len(branches)+1)
	for _, b := range branches {
		cases = append(cases, reflect.SelectCase{Dir: reflect.SelectRecv, Chan: reflect.ValueOf(b.done)})
	}
	cases = append(cases, reflect.SelectCase{Dir: reflect.SelectRecv, Chan: reflect.ValueOf(ctx.Done())})
	if i, _, _ := reflect.Select(cases); i < len(branches) {
		return i, branches[i].err
	}
	return -1, fault.FromContext(op, ctx.Err())
}
