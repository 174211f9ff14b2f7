package trace

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

var begin = time.Date(2026, 11, 21, 3, 0, 0, 0, time.UTC)

func id(n int) rpcpacket.ID { return rpcpacket.ID{byte(n >> 8), byte(n), 1} }

// event is a step of call n, ms after begin.
func event(n int, kind Kind, ms int) *Event {
	return &Event{Call: id(n), Step: Step{Time: begin.Add(time.Duration(ms) * time.Millisecond), Kind: kind}}
}

func sent(n, parent, ms int) *Event {
	e := event(n, Sent, ms)
	e.Caller, e.Callee = Node{rackaddr.Node(1), 1}, Node{rackaddr.Node(2), 1}
	if e.Service, e.Method = "S", fmt.Sprint("m", n); parent != 0 {
		e.Parent = id(parent)
	}
	return e
}

// TestCheckpoints follows a call whose callee fails once.
func TestCheckpoints(t *testing.T) {
	r := New(4, nil)
	steps := []struct {
		kind    Kind
		ms      int
		attempt uint16
	}{{Delivered, 1, 0}, {Delivered, 2, 0}, {Replayed, 9, 1}, {Replayed, 10, 1}, {Replied, 12, 1}, {Answered, 14, 1}, {Answered, 900, 1}}
	r.Note(sent(1, 0, 0))
	again := sent(1, 0, 50)
	again.Details.Arguments = 7
	r.Note(again)
	if c, _ := r.Call(id(1)); c.Details.Arguments != 7 {
		t.Errorf("what is known by now: %+v", c.Details)
	}
	for _, s := range steps {
		e := event(1, s.kind, s.ms)
		e.Attempt = s.attempt
		r.Note(e)
	}
	c, ok := r.Call(id(1))
	ms := func(at time.Time) int64 { return at.Sub(begin).Milliseconds() }
	if !ok || ms(c.A1) != 0 || ms(c.B1) != 1 || ms(c.B2) != 12 || ms(c.A2) != 14 || c.Attempts != 1 || !c.Failed() || !c.Over || c.Method != "m1" {
		t.Errorf("the call: %+v", c)
	}
	var kinds []string
	for _, s := range c.Steps {
		kinds = append(kinds, s.Kind.String())
	}
	if got := strings.Join(kinds, ", "); got != "sent, delivered, replayed, replied, answered, recalled" {
		t.Errorf("steps %s", got)
	}
	c.Steps[0].Kind = Replayed
	if again, _ := r.Call(id(1)); again.Steps[0].Kind != Sent {
		t.Error("what is returned is shared")
	}
	r.Note(event(9, Replied, 1))
	if _, known := r.Call(id(9)); known || r.dropped != 1 {
		t.Error("a step without a beginning made a call")
	}
	e := event(2, Answered, 2)
	e.Code = fault.PermissionDenied
	r.Note(sent(2, 0, 2))
	r.Note(e)
	if c, _ := r.Call(id(2)); !c.Over || !c.Failed() || c.Code != fault.PermissionDenied {
		t.Errorf("refused: %+v", c)
	}
}

// A call that fails for ever does not grow.
func TestSteps_Bounded(t *testing.T) {
	r := New(1, nil)
	r.Note(sent(1, 0, 0))
	for i := range 1000 {
		e := event(1, Replayed, i)
		e.Attempt = uint16(i) //nolint:gosec // small
		r.Note(e)
	}
	if c, _ := r.Call(id(1)); len(c.Steps) != MaxSteps || c.Skipped != 1001-MaxSteps || c.Steps[MaxSteps-1].Time != begin.Add(999*time.Millisecond) {
		t.Errorf("%d steps, %d skipped", len(c.Steps), c.Skipped)
	}
}

func TestTree(t *testing.T) {
	r := New(10, nil)
	for _, k := range [][2]int{{1, 0}, {2, 1}, {3, 2}, {4, 1}, {5, 0}, {6, 2}} {
		r.Note(sent(k[0], k[1], k[0]))
	}
	shape := func(id rpcpacket.ID, limit int) string {
		tree, more := r.Tree(id, limit)
		out := ""
		for _, l := range tree {
			out += strings.Repeat(">", l.Depth) + l.Method + " "
		}
		return fmt.Sprint(out, more)
	}
	for _, n := range []int{1, 2, 3, 4, 6} {
		if got := shape(id(n), 100); got != "m1 >m2 >>m3 >>m6 >m4 false" {
			t.Errorf("of %d: %s", n, got)
		}
	}
	if got := shape(id(5), 100) + shape(id(3), 2) + shape(id(7), 9); got != "m5 false"+"m1 >m2 true"+"false" {
		t.Errorf("others: %s", got)
	}
	for n := 10; n < 19; n++ { // all but call 6 are pushed out
		r.Note(sent(n, 6, n))
	}
	if got := shape(id(6), 4); got != "m6 >m10 >m11 >m12 true" {
		t.Errorf("later: %s", got)
	}
	if root, none := r.Root(id(18)), r.Root(id(99)); root != id(6) || none != id(99) {
		t.Errorf("roots %s and %s", root, none)
	}
	r.Note(sent(19, 19, 19)) // nonsense of a node
	if got := shape(id(19), 100); got != "m19 false" {
		t.Errorf("its own parent: %s", got)
	}
}

// TestRecorder_LikeAList holds the recorder against a list of all calls, of which
// the last ones count.
func TestRecorder_LikeAList(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		size := rapid.IntRange(1, 8).Draw(t, "size")
		r := New(size, nil)
		var all []Call
		for i := range rapid.IntRange(0, 40).Draw(t, "events") {
			n := rapid.IntRange(1, 15).Draw(t, "call")
			live := all[max(0, len(all)-size):]
			k := slices.IndexFunc(live, func(c Call) bool { return c.ID == id(n) })
			if rapid.Bool().Draw(t, "sent") {
				parent := rapid.IntRange(0, 15).Draw(t, "parent")
				r.Note(sent(n, parent, i))
				if k < 0 {
					c := Call{ID: id(n), Sequence: uint64(len(all) + 1), Steps: []Step{{}}}
					if parent != 0 {
						c.Parent = id(parent)
					}
					all = append(all, c)
				}
				continue
			}
			e := event(n, Delivered, i)
			e.Attempt = uint16(i) //nolint:gosec // small
			r.Note(e)
			if k >= 0 {
				live[k].Steps = append(live[k].Steps, Step{})
			}
		}
		live := all[max(0, len(all)-size):]
		if r.Len() != len(live) {
			t.Fatalf("%d calls, want %d", r.Len(), len(live))
		}
		var listed []Call
		for q := (Query{Limit: rapid.IntRange(1, 4).Draw(t, "limit")}); ; {
			page, next := r.Recent(q, rapid.IntRange(1, 9).Draw(t, "scan"))
			listed = append(listed, page...)
			if q.Before = next; next == 0 {
				break
			}
		}
		slices.Reverse(listed)
		if !slices.EqualFunc(listed, live, func(a, b Call) bool {
			return a.ID == b.ID && a.Parent == b.Parent && len(a.Steps) == len(b.Steps) && a.Sequence == b.Sequence
		}) {
			t.Fatalf("listed %+v\nwant %+v", listed, live)
		}
		for _, c := range live {
			tree, _ := r.Tree(c.ID, 1000)
			if !slices.ContainsFunc(tree, func(l Leaf) bool { return l.ID == c.ID }) {
				t.Fatalf("call %s is not in its own tree %+v", c.ID, tree)
			}
			want := 1
			for _, o := range live {
				if o.Parent == tree[0].ID && o.ID != tree[0].ID {
					want++
				}
			}
			if got := 1 + len(slices.DeleteFunc(tree[1:], func(l Leaf) bool { return l.Depth != 1 })); got != want {
				t.Fatalf("the root of %s has %d children, want %d", c.ID, got-1, want-1)
			}
		}
		if families := len(r.children); families > size {
			t.Fatalf("%d families of %d calls", families, size)
		}
	})
}

// BenchmarkCall is what a call of four steps costs in a full recorder.
func BenchmarkCall(b *testing.B) {
	r := New(DefaultCalls, nil)
	events := []*Event{sent(1, 0, 0), event(1, Delivered, 1), event(1, Replied, 2), event(1, Answered, 3)}
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		for _, e := range events {
			e.Call[8], e.Call[9], e.Call[10] = byte(i), byte(i>>8), byte(i>>16)
			r.Note(e)
		}
	}
}
