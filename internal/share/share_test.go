package share

import (
	"testing"

	"pgregory.net/rapid"
)

// One owner alone may have much, but never the reserve; each further one finds some.
func TestRoom(t *testing.T) {
	for _, tc := range []struct{ held, used, total, room uint64 }{
		{0, 0, 1, 1}, {0, 0, 2, 2}, {0, 0, 4, 4}, // no reserve
		{0, 0, 64, 50}, {50, 50, 64, 0}, // alone
		{0, 50, 64, 6}, {0, 56, 64, 1}, {1, 57, 64, 0}, // the second; newcomers by the reserve
		{0, 63, 64, 1}, {0, 64, 64, 0}, {0, 70, 64, 0},
		{0, 0, 1 << 63, 1<<60/8*7/9*8 + 1}, // about: no overflow
	} {
		if tc.total == 1<<63 {
			if room := Room(0, 0, tc.total); room < 1<<59 || room > 1<<60 {
				t.Errorf("of a huge total: %d", room)
			}
			continue
		}
		if room := Room(tc.held, tc.used, tc.total); room != tc.room {
			t.Errorf("Room(%d, %d, %d) = %d, want %d", tc.held, tc.used, tc.total, room, tc.room)
		}
	}
}

// Whatever owners take and release: a newcomer gets something while anything is free; nobody takes of the
// reserve beyond an eighth of what is free; what is released is there again, to the unit; and nothing but
// what is held is refused.
func TestPool(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		total := rapid.Uint64Range(1, 5000).Draw(t, "total")
		p := New[int](total)
		held, used := map[int]uint64{}, uint64(0)
		for range rapid.IntRange(1, 200).Draw(t, "steps") {
			o := rapid.IntRange(0, 40).Draw(t, "owner")
			if rapid.Bool().Draw(t, "takes") {
				n := rapid.Uint64Range(1, total).Draw(t, "n")
				if rapid.Bool().Draw(t, "all") {
					n = max(1, p.Room(o))
				}
				free := total - used
				ok := p.Take(o, n)
				if ok {
					held[o] += n
					used += n
				}
				switch {
				case used > total:
					t.Fatalf("%d of %d are used", used, total)
				case !ok && n == 1 && held[o] == 0 && free > 0:
					t.Fatalf("owner %d has nothing and gets nothing, with %d of %d free", o, free, total)
				case ok && total-used < total/part && held[o] > up(free, part):
					t.Fatalf("owner %d holds %d and takes of the reserve; %d of %d are free", o, held[o], total-used, total)
				}
			} else if held[o] > 0 {
				n := rapid.Uint64Range(1, held[o]).Draw(t, "released")
				p.Release(o, n)
				held[o] -= n
				used -= n
			}
			if p.Used() != used || p.Held(o) != held[o] {
				t.Fatalf("owner %d holds %d of %d, want %d of %d", o, p.Held(o), p.Used(), held[o], used)
			}
		}
		for o, n := range held {
			p.Release(o, n)
		}
		if p.Used() != 0 || len(p.held) != 0 {
			t.Fatalf("%d are used after all was released, by %v", p.Used(), p.held)
		}
	})
}

// Any number of owners that want all they can get come one after the other: eight find
// something, and more if the reserve is larger than that.
func TestPool_NoStarvation(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		total := rapid.Uint64Range(8, 100_000).Draw(t, "total")
		p := New[int](total)
		owners := int(min(total/part, part)) //nolint:gosec // far below
		for round := range 3 {
			for o := range owners {
				n := p.Room(o)
				if round == 0 && n == 0 {
					t.Fatalf("owner %d of %d gets nothing of %d", o, owners, total)
				}
				p.Take(o, n)
			}
		}
	})
}

// A blade is one owner, however many users it says it has; its users share what it may have.
func TestOwners(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		total := rapid.Uint64Range(64, 100_000).Draw(t, "total")
		s := NewOwners(total)
		first := Owner{Port: 1, User: 1}
		s.Take(first, s.Room(first))
		if s.Held(first) >= Room(0, 0, total) {
			t.Fatalf("one user has %d of %d: nothing is left of what its blade may have", s.Held(first), total)
		}
		if n := s.Room(Owner{Port: 1, User: 2}); n == 0 {
			t.Fatal("another user of the blade gets nothing")
		}
		for user := range uint32(500) {
			o := Owner{Port: 1, User: 100 + user}
			s.Take(o, s.Room(o))
		}
		if s.Used() > Room(0, 0, total)+1 {
			t.Fatalf("a blade with many users has %d of %d", s.Used(), total)
		}
		other := Owner{Port: 2, User: 1}
		if free := total - s.Used(); s.Room(other) < free/part/2 {
			t.Fatalf("another blade gets %d of %d", s.Room(other), free)
		}
		s.Force(other, total) // what is there already
		if s.Room(Owner{Port: 3}) != 0 || s.Take(Owner{Port: 3}, 1) {
			t.Fatal("more is given than there is")
		}
		s.Release(other, total)
		if s.Held(other) != 0 {
			t.Fatal("something is left")
		}
	})
}

// Refusals are counted by owner, in bounded space.
func TestRefusals(t *testing.T) {
	p := New[int](8)
	for o := range 2 * MaxOwners {
		p.Take(o, 9)
	}
	owners := 0
	others := p.Refusals().Each(func(_ int, n uint64) { owners += int(n) })
	if owners != MaxOwners || others != MaxOwners {
		t.Errorf("%d owners, %d others", owners, others)
	}
}
