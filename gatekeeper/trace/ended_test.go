package trace

import (
	"slices"
	"testing"
	"time"

	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// Each call that has ended is taken once; of many the latest ones, and failed ones are not
// pushed out by others.
func TestTakeEnded(t *testing.T) {
	r := New(1000, nil)
	end := func(n int, code fault.Code) {
		r.Note(sent(n, 0, n))
		e := event(n, Answered, n+1)
		e.Code = code
		r.Note(e)
	}
	end(1, fault.Unavailable)
	r.Note(sent(2, 0, 2)) // is under way
	for n := 3; n < 3+MaxEnded+10; n++ {
		end(n, fault.OK)
	}
	calls, missed := r.TakeEnded()
	if len(calls) != MaxEnded+1 || missed != 10 || calls[0].ID != id(3+10) || calls[MaxEnded].ID != id(1) {
		t.Errorf("%d calls, %d missed, first %v", len(calls), missed, calls[0].ID)
	}
	r.Note(event(2, Answered, 900))
	r.Note(event(2, Answered, 901)) // the same answer again
	if calls, missed = r.TakeEnded(); len(calls) != 1 || missed != 0 || calls[0].ID != id(2) {
		t.Errorf("then %d calls, %d missed", len(calls), missed)
	}
	small := New(2, nil)
	for n := range 5 {
		small.Note(sent(n+1, 0, n))
		small.Note(event(n+1, Answered, n))
	}
	if calls, missed = small.TakeEnded(); len(calls) != 2 || missed != 3 {
		t.Errorf("of a small recorder: %d calls, %d missed", len(calls), missed)
	}
}

// What was taken can be looked at in another Recorder, with those that belong together.
func TestRestore(t *testing.T) {
	r := New(10, nil)
	r.Note(sent(1, 0, 0))
	r.Note(sent(2, 1, 1))
	for _, n := range []int{2, 1} {
		r.Note(event(n, Delivered, 5))
		e := event(n, Answered, 10)
		e.Code = fault.Unavailable
		r.Note(e)
	}
	calls, _ := r.TakeEnded()
	next := New(10, nil)
	next.Restore(append(slices.Clone(calls), calls[0], Call{ID: id(3)})) // one twice, and one that is not over
	if next.Len() != 2 || len(next.Methods()) != 0 || next.Totals() != (Totals{}) {
		t.Errorf("%d calls, figures of %d methods", next.Len(), len(next.Methods()))
	}
	tree, _ := next.Tree(id(2), 10)
	if len(tree) != 2 || tree[0].ID != id(1) || tree[1].Depth != 1 || len(tree[0].Steps) != 3 {
		t.Errorf("%+v", tree)
	}
	if page, _ := next.Recent(Query{Failed: true, Limit: 5}, 100); len(page) != 2 {
		t.Errorf("%d failed calls", len(page))
	}
	next.Restore([]Call{{ID: rpcpacket.ID{9}, Over: true, Steps: make([]Step, 3*MaxSteps)}})
	if c, _ := next.Call(rpcpacket.ID{9}); len(c.Steps) != MaxSteps {
		t.Errorf("%d steps", len(c.Steps))
	}
}

// Totals of two moments tell what happened in between.
func TestTotals(t *testing.T) {
	r := New(100, nil)
	play(r, 0, "look", fault.OK, 3*time.Millisecond, 4*time.Millisecond)
	former := r.Totals()
	play(r, 10, "store", fault.Unavailable, 30*time.Millisecond)
	r.Ended("S", "straight", fault.OK, 7)
	since := r.Totals().Since(&former)
	if since.Calls != 8 || since.Failed != 1 || former.Calls != 2 || former.Failed != 0 {
		t.Errorf("%+v since %+v", since, former)
	}
	if q, ok := since.Quantile(0.5); !ok || q < 25e-3 || q > 50e-3 {
		t.Errorf("half took at most %v", q)
	}
}
