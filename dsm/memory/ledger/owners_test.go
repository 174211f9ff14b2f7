package ledger

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
	"github.com/bifrost-rack/bifrost/internal/share"
)

// fillUp appends to a node's ledger until it is refused.
func fillUp(s *Store, w Writer, size int) (taken uint64) {
	name := NameOf(w.Node)
	for {
		st, _ := s.Stat(name)
		if a := s.Append(name, w.Incarnation, w, 0, dsmpacket.Chunk{Number: st.Next, Data: make([]byte, size)}); a.Status != fault.OK {
			return st.Used
		}
	}
}

// TestOwners: many nodes of one owner that write all they can leave room for others, and every ledger that is open has its last eighth.
func TestOwners(t *testing.T) {
	const space, total = 64 << 10, 32 * 64 << 10
	s := New(Config{Birth: 1, Space: space, Total: total})
	begin := func(node uint64, owner share.Owner) Writer {
		w := Writer{rackaddr.Node(node), 1}
		if a := s.Grant(NameOf(w.Node), w, owner); a.Status != fault.OK {
			t.Fatalf("node %d: %v", node, a.Status)
		}
		s.Open(NameOf(w.Node), 1, w)
		return w
	}
	honest := begin(1, share.Owner{Port: 1, User: 1000})
	neighbour := begin(2, share.Owner{Port: 2, User: 1000})
	var hostile []Writer
	for node := range uint64(24) {
		hostile = append(hostile, begin(3+node, share.Owner{Port: 2, User: 666}))
	}
	for _, w := range hostile {
		fillUp(s, w, 1000)
	}
	for who, w := range map[string]Writer{"another blade's": honest, "a neighbour's": neighbour} {
		if st, _ := s.Stat(NameOf(w.Node)); s.answer(s.ledgers[NameOf(w.Node)]).Room < space/8 {
			t.Errorf("%s ledger of %d bytes has room for %d", who, st.Used, s.answer(s.ledgers[NameOf(w.Node)]).Room)
		}
		if taken := fillUp(s, w, 100); taken < space/4 {
			t.Errorf("%s ledger can have %d bytes", who, taken)
		}
	}
	refused := map[share.Owner]uint64{}
	s.Refused(func(o share.Owner, n uint64) { refused[o] = n })
	if refused[share.Owner{Port: 2, User: 666}] == 0 {
		t.Errorf("refused: %v", refused)
	}
}

// TestOwners_Tail: what others write does not take what a ledger is to have for the end of its executions.
func TestOwners_Tail(t *testing.T) {
	const space, total = 64 << 10, 4 * 64 << 10
	s := New(Config{Birth: 1, Space: space, Total: total})
	var all []Writer
	for node := range uint64(5) {
		w := Writer{rackaddr.Node(1 + node), 1}
		s.Grant(NameOf(w.Node), w, share.Owner{Port: uint32(node)})
		s.Open(NameOf(w.Node), 1, w)
		all = append(all, w)
	}
	for _, w := range all[1:] { // they stop where new work stops
		for s.answer(s.ledgers[NameOf(w.Node)]).Room > 200 {
			st, _ := s.Stat(NameOf(w.Node))
			s.Append(NameOf(w.Node), 1, w, 0, dsmpacket.Chunk{Number: st.Next, Data: make([]byte, 100)})
		}
	}
	for _, w := range all {
		before, _ := s.Stat(NameOf(w.Node))
		if after := fillUp(s, w, 100); after-before.Used < s.tail()-200 {
			t.Errorf("%v could write %d bytes more than new work may take, of %d", w.Node, after-before.Used, s.tail())
		}
	}
}

// TestCharges: whatever happens, owners are charged with what their ledgers take and have reserved, and with nothing when they are gone.
func TestCharges(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := New(Config{Birth: 1, Space: 4096, Total: 5 * 4096})
		incarnation := map[uint64]uint32{}
		t.Repeat(map[string]func(*rapid.T){
			"grant": func(t *rapid.T) {
				node := rapid.Uint64Range(1, 6).Draw(t, "node")
				w := Writer{rackaddr.Node(node), incarnation[node] + 1}
				if s.Grant(NameOf(w.Node), w, share.Owner{Port: rapid.Uint32Range(1, 3).Draw(t, "port")}).Status == fault.OK &&
					s.Open(NameOf(w.Node), w.Incarnation, w).Status == fault.OK {
					incarnation[node]++
				}
			},
			"append": func(t *rapid.T) {
				node := rapid.Uint64Range(1, 6).Draw(t, "node")
				w := Writer{rackaddr.Node(node), incarnation[node]}
				st, _ := s.Stat(NameOf(w.Node))
				number := st.Next + rapid.Uint64Range(0, 2).Draw(t, "ahead")
				keep := uint64(0)
				if rapid.Bool().Draw(t, "keeps") {
					keep = min(number, st.Next)
				}
				s.Append(NameOf(w.Node), w.Incarnation, w, keep, dsmpacket.Chunk{Number: number, Data: make([]byte, rapid.IntRange(0, 1500).Draw(t, "size"))})
			},
			"fence": func(t *rapid.T) {
				node := rapid.Uint64Range(1, 6).Draw(t, "node")
				s.Fence(Writer{rackaddr.Node(node), incarnation[node]})
			},
			"delete": func(t *rapid.T) {
				node := rapid.Uint64Range(1, 6).Draw(t, "node")
				s.Delete(NameOf(rackaddr.Node(node)))
			},
			"": func(t *rapid.T) { checkCharges(t, s) },
		})
	})
}

func checkCharges(t interface{ Fatalf(string, ...any) }, s *Store) {
	used, held := uint64(0), map[share.Owner]uint64{}
	for _, l := range s.ledgers {
		if l.counted != l.room() || l.held < l.room() || l.held > max(l.room(), min(l.room()+s.cfg.Space/reserve, 2*s.cfg.Space)) {
			t.Fatalf("a ledger of %d bytes, counted as %d, is charged %d", l.room(), l.counted, l.held)
		}
		used += ledgerCost + l.room()
		held[l.owner] += ledgerCost + l.held
	}
	if s.used != used {
		t.Fatalf("%d bytes are taken, %d counted", used, s.used)
	}
	for o, n := range held {
		if got := s.shares.Held(o); got != n {
			t.Fatalf("%v is charged %d, not %d", o, got, n)
		}
		used -= min(used, n)
	}
	if total := s.shares.Used(); total > s.cfg.Total && len(held) > 0 {
		t.Fatalf("%d of %d bytes are charged", total, s.cfg.Total)
	}
}
