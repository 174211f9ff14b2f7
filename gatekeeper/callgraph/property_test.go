package callgraph

import (
	"cmp"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// TestModel runs random events on the graph and on the model, and compares every
// answer.
func TestModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := &world{g: New(1000), m: &model{heard: map[rpcpacket.ID]time.Time{}}, now: time.Unix(100, 0).UTC()}
		t.Repeat(map[string]func(*rapid.T){
			"":        w.check,
			"sent":    w.sent,
			"sent 2":  w.sent,
			"sent 3":  w.sent,
			"again":   w.sendAgain,
			"advance": w.advance,
			"remove":  w.remove,
			"gone":    w.gone,
			"moved":   w.moved,
			"expire":  w.expire,
			"domain":  w.domain,
			"page":    w.page,
		})
		for _, v := range slices.Clone(w.m.calls) {
			w.g.Remove(v.ID)
		}
		w.checkEmpty(t)
	})
}

// TestDeadlocks makes many nested calls between few stateful services.
func TestDeadlocks(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := &world{g: New(1000), m: &model{heard: map[rpcpacket.ID]time.Time{}}, now: time.Unix(100, 0).UTC()}
		t.Repeat(map[string]func(*rapid.T){
			"client": func(t *rapid.T) { w.send(t, w.serialCall(t)) },
			"nested": func(t *rapid.T) {
				c := w.serialCall(t)
				if len(w.m.calls) > 0 {
					parent := rapid.SampledFrom(w.m.calls).Draw(t, "parent")
					c.Parent, c.Caller = parent.ID, parent.Callee
				}
				w.send(t, c)
			},
			"advance": w.advance,
		})
	})
}

// serialCall is a client's call to one of three services, two of them stateful.
func (w *world) serialCall(t *rapid.T) Call {
	w.next++
	k := rapid.IntRange(0, 2).Draw(t, "service")
	return Call{
		ID: rpcpacket.ID{15: w.next}, Caller: testNodes[4], Callee: testNodes[k], Service: fmt.Sprintf("S%d", k), Method: "m",
		Serial: k > 0, Oneway: rapid.IntRange(0, 9).Draw(t, "one-way") == 0,
	}
}

type world struct {
	g    *Graph
	m    *model
	now  time.Time
	next byte
}

var testNodes = []Node{
	{rackaddr.Node(1), 1}, {rackaddr.Node(1), 2}, {rackaddr.Node(2), 1}, {rackaddr.Node(3), 1}, {rackaddr.Node(4), 1},
}

var testPointers = []dsmpacket.Pointer{dsmpacket.Make(16, 1, 64), dsmpacket.Make(16, 1, 128), dsmpacket.Make(16, 2, 64)}

func drawNode(t *rapid.T, label string) Node { return rapid.SampledFrom(testNodes).Draw(t, label) }

func (w *world) tick() time.Time {
	w.now = w.now.Add(time.Millisecond)
	return w.now
}

func (w *world) sent(t *rapid.T) {
	w.next++
	c := Call{
		ID: rpcpacket.ID{15: w.next}, Caller: drawNode(t, "caller"), Callee: drawNode(t, "callee"),
		Method: rapid.SampledFrom([]string{"m", "n"}).Draw(t, "method"),
		Policy: rpcpacket.Policy(rapid.IntRange(0, 3).Draw(t, "policy")),
		Oneway: rapid.IntRange(0, 9).Draw(t, "one-way") == 0, Loose: rapid.Bool().Draw(t, "loose"),
	}
	c.Serial = rapid.Bool().Draw(t, "serial")
	c.Service = fmt.Sprintf("S%t", c.Serial)
	switch from := rapid.IntRange(0, 9).Draw(t, "parent"); {
	case from < 7 && len(w.m.calls) > 0: // a nested call
		parent := w.m.calls[len(w.m.calls)-1-rapid.IntRange(0, min(5, len(w.m.calls)-1)).Draw(t, "which")]
		c.Parent, c.Caller = parent.ID, parent.Callee
	case from == 7: // an execution that is not there, or not yet
		c.Parent = rpcpacket.ID{15: byte(rapid.IntRange(1, int(w.next)+3).Draw(t, "id"))}
	}
	if k := rapid.IntRange(0, 3).Draw(t, "pointers"); k > 0 {
		c.Pointers = rapid.SliceOfN(rapid.SampledFrom(testPointers), k, k).Draw(t, "which pointers")
	}
	w.send(t, c)
}

func (w *world) send(t *rapid.T, c Call) {
	at := w.tick()
	err := w.g.Sent(c, at)
	var d *Deadlock
	if errors.As(err, &d) != w.m.deadlocked(c) {
		t.Fatalf("%v; the model finds a deadlock: %t", err, w.m.deadlocked(c))
	}
	if d != nil {
		w.checkCycle(t, d)
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	w.m.sent(c, at)
	w.again(t, c)
}

// again sends a call once more.
func (w *world) again(t *rapid.T, c Call) {
	at := w.tick()
	if err := w.g.Sent(c, at); !errors.Is(err, ErrKnown) {
		t.Fatalf("sent again: %v", err)
	}
	w.m.heard[c.ID] = at
}

func (w *world) sendAgain(t *rapid.T) {
	if v := w.m.find(w.pick(t)); v != nil {
		w.again(t, v.Call)
	}
}

// checkCycle follows a deadlock's cycle as its documentation reads.
func (w *world) checkCycle(t *rapid.T, d *Deadlock) {
	head := w.m.running(d.Call.Callee, d.Call.Service)
	if d.Cycle[0].ID != head.ID || d.Cycle[len(d.Cycle)-1].ID != d.Call.Parent {
		t.Fatalf("%v: does not go from %s to %s", d, head.ID, d.Call.Parent)
	}
	isLoose := d.Cycle[0].Loose
	for k := range d.Cycle[1:] {
		a, b := d.Cycle[k], d.Cycle[k+1]
		if b.Parent != a.ID && a.Behind != b.ID {
			t.Fatalf("%v: step %d waits for nothing", d, k)
		}
		isLoose = isLoose || b.Loose
	}
	if d.Loose != isLoose {
		t.Fatalf("%v: loose is %t", d, d.Loose)
	}
}

func (w *world) pick(t *rapid.T) rpcpacket.ID {
	if len(w.m.calls) == 0 || rapid.IntRange(0, 20).Draw(t, "unknown") == 0 {
		return rpcpacket.ID{15: 255}
	}
	return rapid.SampledFrom(w.m.calls).Draw(t, "call").ID
}

// advance takes a call to a later stage.
func (w *world) advance(t *rapid.T) {
	id, at := w.pick(t), w.tick()
	switch rapid.IntRange(0, 2).Draw(t, "stage") {
	case 0:
		callee := drawNode(t, "callee")
		if v := w.m.find(id); v != nil && rapid.IntRange(0, 9).Draw(t, "moves") > 0 {
			callee = v.Callee
		}
		if a, b := w.g.Delivered(id, callee, at), w.m.delivered(id, callee, at); a != b {
			t.Fatalf("delivered: %t, want %t", a, b)
		}
	case 1:
		if a, b := w.g.Finished(id, at), w.m.finished(id, at); a != b {
			t.Fatalf("finished: %t, want %t", a, b)
		}
	case 2:
		was := w.m.find(id)
		v, known := w.g.Returned(id, at)
		if known != (was != nil) || known && (v.Stage != A2 || v.Times[A2] != at || v.ID != id) {
			t.Fatalf("returned: %+v, %t, was %+v", v, known, was)
		}
		w.m.remove(id)
	}
}

func (w *world) remove(t *rapid.T) {
	id := w.pick(t)
	was := w.m.find(id)
	if _, known := w.g.Remove(id); known != (was != nil) {
		t.Fatalf("removed: %t", known)
	}
	w.m.remove(id)
}

func (w *world) gone(t *rapid.T) {
	if rapid.IntRange(0, 3).Draw(t, "really") > 0 {
		return
	}
	n := drawNode(t, "node")
	same(t, "cut", w.g.NodeGone(n), w.m.gone(n))
}

func (w *world) moved(t *rapid.T) {
	from, to := drawNode(t, "from"), drawNode(t, "to")
	w.g.NodeMoved(from, to)
	w.m.moved(from, to)
}

func (w *world) expire(t *rapid.T) {
	before := w.now.Add(-time.Duration(rapid.IntRange(5, 100).Draw(t, "age")) * time.Millisecond)
	var want []rpcpacket.ID
	for _, v := range slices.Clone(w.m.calls) {
		if v.Loose && w.m.heard[v.ID].Before(before) {
			want = append(want, v.ID)
			w.m.remove(v.ID)
		}
	}
	slices.SortFunc(want, func(a, b rpcpacket.ID) int { return w.m.heard[a].Compare(w.m.heard[b]) })
	if got := w.g.Expire(before); !slices.Equal(got, want) {
		t.Fatalf("expired %v, want %v", got, want)
	}
}

func (w *world) domain(t *rapid.T) {
	failed := rapid.SliceOfNDistinct(rapid.SampledFrom(testNodes), 1, 2, rapid.ID).Draw(t, "failed")
	got, want := w.g.Domain(failed...), w.m.domain(failed)
	for _, nodes := range [][]Node{got.Nodes, want.Nodes} {
		slices.SortFunc(nodes, func(a, b Node) int {
			return cmp.Or(a.Address.Compare(b.Address), cmp.Compare(a.Incarnation, b.Incarnation))
		})
	}
	if !slices.Equal(got.Nodes, want.Nodes) {
		t.Fatalf("nodes %v, want %v", got.Nodes, want.Nodes)
	}
	same(t, "rerun", got.Rerun, want.Rerun)
	same(t, "cut", got.Cut, want.Cut)
	same(t, "out", got.Out, want.Out)
	same(t, "waiting", got.Waiting, want.Waiting)
}

// page lists a few calls at a time, while one of them goes.
func (w *world) page(t *rapid.T) {
	var got []View
	var from Cursor
	size := rapid.IntRange(1, 4).Draw(t, "size")
	gone := rpcpacket.ID{}
	for more := true; more; {
		var page []View
		page, from, more = w.g.List(from, size)
		got = append(got, page...)
		if gone.IsZero() && len(page) > 0 {
			gone = page[len(page)-1].ID
			w.g.Remove(gone)
			got = got[:len(got)-1]
		}
	}
	w.m.remove(gone)
	var ids []rpcpacket.ID
	for _, v := range got {
		ids = append(ids, v.ID)
	}
	var want []rpcpacket.ID
	for _, v := range w.m.calls {
		want = append(want, v.ID)
	}
	if !slices.Equal(ids, want) {
		t.Fatalf("listed %v, want %v", ids, want)
	}
}

func (w *world) check(t *rapid.T) {
	if w.g.Len() != len(w.m.calls) {
		t.Fatalf("%d calls, want %d", w.g.Len(), len(w.m.calls))
	}
	all, _, _ := w.g.List(Cursor{}, 1<<20)
	same(t, "all", all, w.m.where(func(*View) bool { return true }))
	nodes := map[Node]bool{}
	for _, v := range w.m.calls {
		nodes[v.Caller], nodes[v.Callee] = true, true
	}
	if len(nodes) != len(w.g.Nodes()) {
		t.Fatalf("nodes %v, want %v", w.g.Nodes(), nodes)
	}
	for _, n := range testNodes {
		same(t, "serves", w.g.Serves(n), w.m.serves(n))
		got, want := w.g.WaitsFor(n), w.m.where(func(v *View) bool { return v.Caller == n })
		for _, views := range [][]View{got, want} { // a merged node's are not in order
			slices.SortFunc(views, func(a, b View) int { return cmp.Compare(a.Sequence, b.Sequence) })
		}
		same(t, "waits", got, want)
	}
	for _, p := range testPointers {
		same(t, "carrying", w.g.Carrying(p), w.m.carrying(p))
	}
	for _, v := range w.m.calls {
		same(t, "children", w.g.Children(v.ID), w.m.where(func(o *View) bool { return o.Parent == v.ID }))
		same(t, "chain", w.g.Chain(v.ID), w.m.chain(v.ID))
	}
}

// checkEmpty finds what a graph without calls has not given back.
func (w *world) checkEmpty(t *rapid.T) {
	g := w.g
	left := []int{
		g.calls.len, g.carried.len, g.nodes.slab.len, g.services.slab.len, g.servers.slab.len, g.methods.slab.len,
		len(g.index), len(g.parents), len(g.pointers), len(g.nodes.index), len(g.servers.index), int(g.age.first), int(g.age.last), int(g.heard.first), int(g.heard.last),
	}
	if slices.Max(left) > 0 {
		t.Fatalf("left over: %v", left)
	}
}

func same(t *rapid.T, what string, got, want []View) {
	if len(got) == 0 && len(want) == 0 {
		return
	}
	if !reflect.DeepEqual(got, want) {
		t.Fatalf("%s:\n%s\nwant\n%s", what, lines(got), lines(want))
	}
}

func lines(views []View) (s string) {
	for _, v := range views {
		s += fmt.Sprintf("%+v\n", v)
	}
	return s
}
