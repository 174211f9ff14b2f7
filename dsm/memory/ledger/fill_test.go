package ledger

import (
	"bytes"
	"fmt"
	"testing"

	"pgregory.net/rapid"

	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
	"github.com/bifrost-rack/bifrost/internal/share"
)

// describe writes down all that another copy must have.
func describe(s *Store) string {
	var b bytes.Buffer
	for _, name := range s.Names() {
		l := s.ledgers[name]
		state := l.state
		fmt.Fprintf(&b, "%x %+v %+v %v\n", name, state, l.granted, l.chunks)
	}
	return b.String()
}

// TestFill: a copy that is filled while ledgers are opened, written, cut, sealed, ended and
// deleted has what the source has, also on its disk, and is what is written next.
func TestFill(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := New(Config{Birth: 7, Space: 1 << 20, Total: 1 << 20})
		var next *Store
		node := func() Writer {
			return Writer{rackaddr.Node(rapid.Uint64Range(1, 2).Draw(t, "node")), rapid.Uint32Range(1, 3).Draw(t, "incarnation")}
		}
		hand := func(n int) {
			for ; n > 0; n-- {
				item, ok := s.FillNext(5000)
				if !ok {
					return
				}
				if err := next.Take(item); err != nil {
					t.Fatal(err)
				}
			}
		}
		t.Repeat(map[string]func(*rapid.T){
			"grant": func(*rapid.T) { w := node(); s.Grant(NameOf(w.Node), w, share.Owner{Port: 1}) },
			"open":  func(*rapid.T) { w := node(); s.Open(NameOf(w.Node), w.Incarnation, w) },
			"append": func(t *rapid.T) {
				w := node()
				st, _ := s.Stat(NameOf(w.Node))
				number := st.Next + rapid.Uint64Range(0, 2).Draw(t, "ahead")
				s.Append(NameOf(w.Node), st.Run, st.Writer, rapid.Uint64Range(0, number).Draw(t, "keep"), dsmpacket.Chunk{
					Number: number, Continues: rapid.Bool().Draw(t, "continues"), Data: rapid.SliceOfN(rapid.Byte(), 0, 9).Draw(t, "data"),
				})
			},
			"fence": func(*rapid.T) { s.Fence(node()) },
			"end": func(t *rapid.T) {
				w := node()
				st, _ := s.Stat(NameOf(w.Node))
				if st.First > 0 {
					s.End(NameOf(w.Node), st.Run, st.First, rapid.Uint64Range(st.First, st.Next).Draw(t, "next"))
				}
			},
			"delete": func(*rapid.T) { s.Delete(NameOf(node().Node)) },
			"begin": func(*rapid.T) {
				next = New(Config{Birth: 8, Space: 1 << 20, Total: 1 << 20, Durable: true})
				next.BeFilled()
				s.Fill()
			},
			"copy": func(t *rapid.T) {
				if next == nil {
					t.Skip()
				}
				hand(rapid.IntRange(1, 5).Draw(t, "items"))
			},
			"complete": func(t *rapid.T) {
				if next == nil {
					t.Skip()
				}
				s.CloseFill()
				hand(1 << 20)
				for _, l := range s.ledgers { // what nobody has acknowledged is not given
					s.used -= l.waiting
					l.early, l.waiting = nil, 0
				}
				if a, b := describe(s), describe(next); a != b || next.Filling() || next.Birth() != 7 || next.used != s.used {
					t.Fatalf("the copy is not what the source is: %d and %d bytes\n%s\n%s", s.used, next.used, a, b)
				}
				kept := newDisk() // and so has its disk
				kept.apply(next.Changes())
				loaded, err := kept.load()
				if err != nil || describe(loaded) != describe(next) {
					t.Fatalf("%v; its disk has\n%s", err, describe(loaded))
				}
				s, next = next, nil
			},
		})
	})
}

// FuzzTake: items of a hostile or broken source are errors and nothing else, and
// what is taken is counted.
func FuzzTake(f *testing.F) {
	f.Add(encode(itemChunk, chunkItem{Number: 1}))
	f.Add(encode(itemState, stateItem{First: 1, Next: 1}))
	f.Add(encode(itemState, stateItem{First: 1, Next: 1 << 63}))
	f.Add(encode(itemEnd, endItem{Birth: 1}))
	f.Add(encode(itemCut, cutItem{First: 1, Next: 2}))
	f.Fuzz(func(t *testing.T, item []byte) {
		complete := New(Config{Birth: 1, Space: 1 << 10, Total: 1 << 10})
		if err := complete.Take(item); err != nil && fault.CodeOf(err) != fault.BadRequest {
			t.Fatal(err)
		}
		s := New(Config{Birth: 1, Space: 1 << 10, Total: 1 << 10})
		s.BeFilled()
		for range 2 {
			if err := s.Take(item); err != nil && fault.CodeOf(err) != fault.BadRequest && fault.CodeOf(err) != fault.NoSpace {
				t.Fatal(err)
			}
		}
		want := uint64(0)
		for _, l := range s.ledgers {
			want += l.room()
		}
		if s.filled == nil {
			want += uint64(len(s.ledgers)) * ledgerCost
		} else {
			for _, of := range s.filled.chunks {
				for _, c := range of {
					want += cost(len(c.Data))
				}
			}
		}
		if s.used != want {
			t.Fatalf("%d bytes are taken, %d counted", want, s.used)
		}
	})
}

// TestFillAfterDrop: a chunk that was given to the other copy and is dropped then, by a seal,
// by the Gatekeeper or with its ledger, is given again as what has its number next.
func TestFillAfterDrop(t *testing.T) {
	node := rackaddr.Node(1)
	name, first, second := NameOf(node), Writer{node, 1}, Writer{node, 2}
	for what, drop := range map[string]func(s *Store){
		"seal": func(s *Store) { s.Fence(first) },
		"end": func(s *Store) {
			s.Fence(first)
			s.End(name, 1, 1, 2)
		},
		"delete": func(s *Store) {
			s.Fence(first)
			s.Delete(name)
			s.Grant(name, second, share.Owner{Port: 1})
		},
	} {
		t.Run(what, func(t *testing.T) {
			s, next := New(Config{Birth: 7, Space: 1 << 20, Total: 1 << 20}), New(Config{Birth: 8, Space: 1 << 20, Total: 1 << 20})
			next.BeFilled()
			s.Fill()
			hand := func() {
				for item, ok := s.FillNext(5000); ok; item, ok = s.FillNext(5000) {
					if err := next.Take(item); err != nil {
						t.Fatal(err)
					}
				}
			}
			write := func(w Writer, text string, continues bool) {
				t.Helper()
				st, _ := s.Stat(name)
				if a := s.Append(name, w.Incarnation, w, 0, dsmpacket.Chunk{Number: st.Next, Continues: continues, Data: []byte(text)}); a.Status != fault.OK {
					t.Fatalf("%s: %v", text, a.Status)
				}
			}
			s.Grant(name, first, share.Owner{Port: 1})
			s.Open(name, 1, first)
			write(first, "a whole record", false)
			write(first, "half of one", what != "end")
			hand()
			drop(s)
			s.Open(name, 2, second)
			for s.ledgers[name].state.Next < 3 {
				write(second, "another one", false)
			}
			s.CloseFill()
			hand()
			if a, b := describe(s), describe(next); a != b {
				t.Fatalf("the copy is not what the source is:\n%s\n%s", a, b)
			}
		})
	}
}
