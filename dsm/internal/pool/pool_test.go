package pool

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
)

const (
	prefix = 0x10
	plenty = 1 << 40
)

func region(machine uint8, number uint64, class uint8) dsmpacket.Region {
	return dsmpacket.Region{Base: dsmpacket.Make(prefix, machine, dsmpacket.IDOf(uint32(number), 1)), Class: class}
}

func anywhere(uint8) bool { return true }

// lab is a pool with a program that does one thing each millisecond.
type lab struct {
	*Pool
	t    *testing.T
	now  time.Duration
	next uint64
}

func newLab(t *testing.T) *lab { return &lab{Pool: New(), t: t} }

// alloc takes a region, or makes one as the memory blade would.
func (l *lab) alloc(class uint8) (p dsmpacket.Pointer, again bool) {
	l.now += time.Millisecond
	if p, ok := l.Take(l.now, class, anywhere); ok {
		return p, true
	}
	l.next++
	r := region(1, l.next, class)
	l.Fresh(r)
	return r.Base, false
}

func (l *lab) free(p dsmpacket.Pointer, want Verdict) {
	l.t.Helper()
	l.now += time.Millisecond
	if v := l.Free(l.now, p, plenty); v != want {
		l.t.Errorf("free of %s: %d, want %d", p, v, want)
	}
}

// warm makes a size one in demand.
func (l *lab) warm(class uint8) dsmpacket.Pointer {
	for range again - 1 {
		l.alloc(class)
	}
	p, _ := l.alloc(class)
	return p
}

func TestWhatIsAskedForAgainIsKept(t *testing.T) {
	l := newLab(t)
	p := l.warm(12)
	l.free(p, Kept)
	l.free(p, Twice)
	l.free(p.Add(8), Twice)
	if q, again := l.alloc(12); !again || q != p {
		t.Errorf("got %s, want %s again", q, p)
	}
	if q, again := l.alloc(13); again {
		t.Errorf("%s is of another size", q)
	}
}

func TestWhatIsOutIsNotKept(t *testing.T) {
	l := newLab(t)
	p := l.warm(12)
	l.Lend(p.Add(100))
	l.free(p, Unknown)
	l.Back(p) // too late, it is forgotten
	l.free(p, Unknown)

	p = l.warm(12)
	l.Lend(p)
	l.Lend(p)
	l.Back(p)
	if !l.Find(p).Lent() {
		t.Error("one call still has it")
	}
	l.Back(p)
	l.free(p, Kept)

	q := l.warm(13)
	l.Find(q).Enter(Span{})
	l.free(q, Unknown)

	q = l.warm(13)
	l.Forget(q)
	l.free(q, Unknown)
}

func TestGained(t *testing.T) {
	l := newLab(t)
	for i := range uint64(again + 1) {
		r := region(2, i, 12)
		l.Gained(r.Base)
		want := Unknown
		if i+1 >= again {
			want = Deferred
		}
		l.free(r.Base, want)
		l.free(r.Base, Unknown)
	}
	p := l.warm(12)
	l.Forget(p) // it has been handed over
	l.Gained(p) // and has come back
	l.Lend(p)
	l.free(p, Unknown)
}

func TestOnlyMachinesInService(t *testing.T) {
	l := newLab(t)
	p := l.warm(12)
	l.free(p, Kept)
	if q, ok := l.Take(l.now, 12, func(m uint8) bool { return m != p.Machine() }); ok {
		t.Errorf("%s is on a machine out of service", q)
	}
	if got := l.Recall(p.Machine()); len(got) != 1 || got[0] != p {
		t.Errorf("recalled %v, want %s", got, p)
	}
	if l.Find(p) != nil {
		t.Error("it is known still")
	}
}

func TestTrim(t *testing.T) {
	l := newLab(t)
	p := l.warm(12)
	l.free(p, Kept)
	due, ok := l.Due()
	if !ok || due != l.now+KeepTime {
		t.Errorf("due at %v, %v", due, ok)
	}
	if got := l.Trim(due-1, false); got != nil {
		t.Errorf("%v is trimmed too early", got)
	}
	if got := l.Trim(due, false); len(got) != 1 || got[0] != p {
		t.Errorf("trimmed %v, want %s", got, p)
	}
	if _, ok := l.Due(); ok || l.idle != 0 {
		t.Errorf("%d bytes are idle still", l.idle)
	}
}

// TestAhead: a size whose regions do not come back is allocated ahead; one whose
// regions do is not.
func TestAhead(t *testing.T) {
	l := newLab(t)
	ahead := 0
	for range 100 {
		p, _ := l.alloc(12)
		ahead += l.Ahead(12, plenty)
		l.Forget(p)
	}
	if ahead == 0 || ahead > maxAhead {
		t.Fatalf("%d asked for ahead, want up to %d", ahead, maxAhead)
	}
	for i := range uint64(ahead) {
		l.Came(l.now, region(3, i, 12))
	}
	p, again := l.alloc(12)
	if !again || p.Machine() != 3 {
		t.Errorf("got %s, want one from ahead", p)
	}
	l.Trim(l.now+KeepTime, false)
	if n := l.Ahead(12, plenty); n != 0 {
		t.Errorf("%d asked for, which nobody wanted", n)
	}
	if n := l.Ahead(12, 0); n != 0 {
		t.Errorf("%d asked for beyond the limit", n)
	}

	p = l.warm(14)
	for range 100 {
		l.free(p, Kept)
		p, _ = l.alloc(14)
		if n := l.Ahead(14, plenty); n > 0 && l.shelves[14].missed.n < demand {
			t.Fatalf("%d asked for ahead of %d misses", n, l.shelves[14].missed.n)
		}
	}
}

// TestAnyOrder holds the pool against what it must never do, whatever happens: give out
// what somebody has, keep what is out, or lose count.
func TestAnyOrder(t *testing.T) {
	for seed := range uint64(300) {
		anyOrder(t, rand.New(rand.NewPCG(seed, 0)))
	}
}

func anyOrder(t *testing.T, r *rand.Rand) {
	l := newLab(t)
	var held []dsmpacket.Pointer
	out := map[dsmpacket.Pointer]int{}
	for range 300 {
		at := r.IntN(max(1, len(held)))
		var p dsmpacket.Pointer
		if len(held) > 0 {
			p = held[at]
		}
		switch what := r.IntN(6); {
		case what <= 1 || len(held) == 0:
			q, _ := l.alloc(12 + uint8(r.IntN(2)))
			if slices.Contains(held, q) || l.Find(q) == nil || l.Find(q).Idle() {
				t.Fatalf("%s is given out twice", q)
			}
			held = append(held, q)
		case what == 2:
			l.Lend(p)
			out[p]++
		case what == 3 && out[p] > 0:
			l.Back(p)
			out[p]--
		case what == 4:
			v := l.Free(l.now, p, 64<<10)
			if v == Twice || v == Kept && out[p] > 0 {
				t.Fatalf("free of %s, %d times out: %d", p, out[p], v)
			}
			held = slices.Delete(held, at, at+1)
			delete(out, p)
		case what == 5 && r.IntN(10) == 0:
			l.now += KeepTime
			for _, q := range l.Trim(l.now, false) {
				if slices.Contains(held, q) || l.Find(q) != nil {
					t.Fatalf("%s is trimmed", q)
				}
			}
		}
		idle := uint64(0)
		for class := range l.shelves {
			idle += uint64(len(l.shelves[class].idle)) << class
		}
		if idle != l.idle || idle > 64<<10 {
			t.Fatalf("%d bytes idle, counted %d", idle, l.idle)
		}
	}
}

func TestSpan(t *testing.T) {
	s := Span{10, 20}
	for _, c := range []struct {
		take, left Span
		ok         bool
	}{
		{Span{0, 5}, s, true}, {Span{20, 30}, s, true}, {Span{}, s, true},
		{Span{5, 15}, Span{15, 20}, true}, {Span{15, 25}, Span{10, 15}, true},
		{Span{12, 15}, s, false},
	} {
		if left, ok := s.Without(c.take); left != c.left || ok != c.ok {
			t.Errorf("%v without %v: %v, %v", s, c.take, left, ok)
		}
	}
	if left, ok := s.Without(s); !ok || !left.Empty() {
		t.Errorf("without itself: %v, %v", left, ok)
	}
	if h := s.Hull(Span{30, 31}); h != (Span{10, 31}) {
		t.Errorf("hull %v", h)
	}
	if h := (Span{}).Hull(s).Hull(Span{5, 5}); h != s {
		t.Errorf("hull with nothing: %v", h)
	}
}
