package resolve

import (
	"encoding/json"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

var add = control.Serving{Service: "Arrays", Method: "add"}

// answerer is the rack: nodes that share the values of an id's last byte.
type answerer struct {
	nodes   int
	ledgers bool
}

func (r answerer) answer(t testing.TB, b []byte) rpcpacket.Message {
	t.Helper()
	m, err := rpcpacket.Parse(b)
	if err != nil {
		t.Fatal(err)
	}
	if q, err := Parse(rackaddr.Service("Arrays"), &m); err != nil || q.Service != "Arrays" || q.Method != "add" {
		t.Fatalf("the request asks for %+v: %v", q, err)
	}
	a := Answer{List: &control.ServingList{Why: "nobody"}}
	if r.nodes > 0 {
		n := uint64(int(m.Call[15]) * r.nodes / 256)
		a = Answer{Node: rackaddr.Node(n + 1), Incarnation: uint32(n + 7), Ledger: r.ledgers}
	}
	b, err = Reply(&m.Header, a)
	if err != nil {
		t.Fatal(err)
	}
	if m, err = rpcpacket.Parse(b); err != nil {
		t.Fatal(err)
	}
	return m
}

func newLookup(t testing.TB, q control.Serving, random func() uint64) *Lookup {
	t.Helper()
	l, err := New(q, random)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// TestLookup: whatever is lost and comes twice, a lookup finds all nodes of a method that has few, and enough of one that has many.
func TestLookup(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		r := answerer{rapid.IntRange(1, 200).Draw(rt, "nodes"), true}
		rng := rand.New(rand.NewPCG(rapid.Uint64().Draw(rt, "seed"), 1))
		l := newLookup(t, add, rng.Uint64)
		var late []rpcpacket.Message
		sent := 0
		for rounds := 1; ; rounds++ {
			for over := false; !over; {
				for b := range l.Requests() {
					sent++
					m := r.answer(t, b)
					if late = append(late, m); rng.IntN(3) == 0 {
						continue // lost
					}
					over = l.Take(&m) || l.Take(&late[rng.IntN(len(late))])
				}
			}
			if !l.More() {
				break
			}
			if rounds == 5 {
				rt.Fatal("it asks for ever")
			}
		}
		list, ok := l.List()
		want := min(r.nodes, lastRound/2)
		if !ok || len(list.Nodes) < want || len(list.Incarnations) != len(list.Nodes) || list.Awaited {
			rt.Fatalf("of %d nodes it knows %d after %d requests", r.nodes, len(list.Nodes), sent)
		}
		for i, n := range list.Nodes {
			if rackaddr.Node(uint64(list.Incarnations[i]-6)) != n {
				rt.Fatalf("node %s has incarnation %d", n, list.Incarnations[i])
			}
		}
		if !slices.IsSortedFunc(list.Nodes, netip.Addr.Compare) {
			rt.Fatalf("nodes come twice: %v", list.Nodes)
		}
	})
}

// TestLookup_Nobody: the Gatekeeper's word counts if no blade has answered.
func TestLookup_Nobody(t *testing.T) {
	ask := func(q control.Serving, racks ...answerer) (control.ServingList, bool) {
		l := newLookup(t, q, rand.Uint64)
		i := 0
		for b := range l.Requests() {
			if i < len(racks) {
				m := racks[i].answer(t, b)
				l.Take(&m)
			}
			i++
		}
		return l.List()
	}
	if list, ok := ask(add); ok {
		t.Errorf("nobody has answered, and it knows %+v", list)
	}
	if list, ok := ask(add, answerer{}); !ok || list.Why != "nobody" {
		t.Errorf("nobody serves it: %+v, %v", list, ok)
	}
	if list, ok := ask(add, answerer{nodes: 1}, answerer{}); !ok || len(list.Nodes) > 0 || list.Why != control.NoLedger {
		t.Errorf("exactly once, without ledgers: %+v, %v", list, ok)
	}
	if list, ok := ask(control.Serving{Service: "Arrays", Method: "add", AtMostOnce: true}, answerer{}, answerer{nodes: 1}); !ok || len(list.Nodes) != 1 {
		t.Errorf("at most once, without ledgers: %+v, %v", list, ok)
	}
	if _, err := New(control.Serving{Service: "Arrays"}, rand.Uint64); fault.CodeOf(err) != fault.BadRequest {
		t.Errorf("a method without a name: %v", err)
	}
}

// TestParse: a request for another service or method than its header's is none.
func TestParse(t *testing.T) {
	l := newLookup(t, add, rand.Uint64)
	for b := range l.Requests() {
		good, err := rpcpacket.Parse(b)
		if err != nil {
			t.Fatal(err)
		}
		bad := map[string]func(m *rpcpacket.Message){
			"an answer":      func(m *rpcpacket.Message) { m.Type = rpcpacket.Reply },
			"no question":    func(m *rpcpacket.Message) { m.Payload = []byte("thrift") },
			"another method": func(m *rpcpacket.Message) { m.Method[0]++ },
			"another service": func(m *rpcpacket.Message) {
				m.Payload, _ = json.Marshal(control.Serving{Service: "Other", Method: "add"})
			},
		}
		for what, spoil := range bad {
			m := good
			spoil(&m)
			if q, err := Parse(rackaddr.Service("Arrays"), &m); fault.CodeOf(err) != fault.BadRequest {
				t.Errorf("%s is a request for %+v: %v", what, q, err)
			}
		}
	}
}

// FuzzTake: no answer ends a round that it does not belong to, or names nobody.
func FuzzTake(f *testing.F) {
	l := newLookup(f, add, func() uint64 { return 7 << 8 })
	for b := range l.Requests() {
		m := answerer{nodes: 3}.answer(f, b)
		f.Add(m.Append(nil))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := rpcpacket.Parse(b)
		if err != nil {
			return
		}
		l := newLookup(t, add, func() uint64 { return 7 << 8 })
		l.Take(&m)
		if list, ok := l.List(); ok && (m.Type != rpcpacket.Reply || KeyOf(m.Call) != l.Key()) {
			t.Errorf("%+v of an answer to somebody else", list)
		}
		q, err := Parse(rackaddr.Service("Arrays"), &m)
		if method, e := rpcpacket.MethodOf(q.Method); err == nil && (e != nil || method != m.Method || q.Service != "Arrays" || m.Type != rpcpacket.Call) {
			t.Errorf("%+v of %+v", q, m.Header)
		}
	})
}
