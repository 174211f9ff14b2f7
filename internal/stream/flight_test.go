package stream

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/bifrost-rack/bifrost/internal/pace"
)

var testTimeout = pace.Timeout{First: 20 * time.Millisecond, Least: 10 * time.Millisecond, Most: time.Second}

// newTest is a flight whose window is so many parts, which count for one each.
func newTest(window int) Flight[string] {
	return NewFlight[string](1, NewWindow(window, window, window, 1), testTimeout)
}

// audit holds what a flight counts against its parts.
func (f *Flight[T]) audit(t interface{ Fatalf(string, ...any) }) {
	out, lost := 0, 0
	for _, p := range f.parts {
		switch {
		case p.lost:
			lost++
		case p.sending != 0:
			out += p.cost
		}
	}
	if out != f.out || lost != f.lost || len(f.parts) > 0 && f.parts[0].sending == 0 {
		t.Fatalf("%d under way and %d lost, counted %d and %d; the first of %d has come", out, lost, f.out, f.lost, len(f.parts))
	}
}

// TestFlight: over a network that loses, doubles and reorders, all parts come, whether the other side tells each part, or only below
// which it has all. Values stay with their parts, and no more is under way than the window allows.
func TestFlight(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const window = 12
		first := rapid.Uint64Range(0, 1<<40).Draw(t, "first")
		end := first + rapid.Uint64Range(1, 60).Draw(t, "parts")
		each := rapid.Bool().Draw(t, "told of each part")
		loss := rapid.IntRange(0, 40).Draw(t, "loss in percent")
		random := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 1))
		f := NewFlight[uint64](first, NewWindow(window, window, window, 3), testTimeout)
		type message struct {
			at        time.Duration
			number    uint64
			answer    bool
			following uint64 // of an answer: the first that has not come
		}
		var net []message
		now, has, sendings := time.Duration(0), map[uint64]bool{}, 0
		carry := func(m message) {
			for range 1 + random.IntN(20)/19 {
				if m.at = now + time.Duration(50+random.IntN(200))*time.Microsecond; random.IntN(100) >= loss {
					net = append(net, m)
				}
			}
		}
		send := func(n uint64, v *uint64) {
			if *v != n*n {
				t.Fatalf("part %d has value %d", n, *v)
			}
			sendings++
			carry(message{number: n})
		}
		for f.Low() < end {
			for n, v := range f.Again(now) {
				send(n, v)
			}
			for cost := 1 + int(f.Next()%3); f.Next() < end && f.Window.Fits(f.Out(), cost); cost = 1 + int(f.Next()%3) {
				v := f.Next() * f.Next()
				send(f.Send(now, cost, v), &v)
			}
			f.audit(t)
			due, ok := f.Due()
			if !ok || f.Out() > window {
				t.Fatalf("due %t, %d under way", ok, f.Out())
			}
			i := -1
			for k, m := range net {
				if m.at < due {
					i, due = k, m.at
				}
			}
			if now = max(now, due); i < 0 {
				if !f.Tick(now) || f.Tick(now) {
					t.Fatalf("not due once at %v", now)
				}
				continue
			}
			m := net[i]
			net = slices.Delete(net, i, i+1)
			switch {
			case !m.answer:
				has[m.number], m.answer, m.following = true, true, first
				for has[m.following] {
					m.following++
				}
				carry(m)
			case each:
				missing := m.number >= f.Low() && f.parts[m.number-f.Low()].sending != 0
				if f.Came(now, m.number) != missing {
					t.Fatalf("part %d was missing: %t", m.number, missing)
				}
			default:
				f.Below(now, m.following)
				f.Overtaken(m.following, m.number)
			}
			f.audit(t)
			if sendings > 100_000 {
				t.Fatalf("part %d has not come after %d sendings", f.Low(), sendings)
			}
		}
		if _, ok := f.Due(); ok || f.Out() != 0 {
			t.Fatalf("something is due, or %d under way, when all has come", f.Out())
		}
	})
}

// again is what a flight sends again.
func again[T any](f *Flight[T], now time.Duration) (numbers []uint64) {
	for n := range f.Again(now) {
		numbers = append(numbers, n)
	}
	return numbers
}

// TestFlight_Reorder: a part is lost when one that was sent three places later has come, and no sooner; once, until one that was sent
// three places after it was sent again has come.
func TestFlight_Reorder(t *testing.T) {
	f := newTest(20)
	for range 9 {
		f.Send(0, 1, "")
	}
	for _, c := range []struct {
		came uint64
		want []uint64
	}{{2, nil}, {3, nil}, {4, []uint64{1}}, {5, nil}, {9, []uint64{6}}, {8, nil}, {7, nil}} {
		if f.Came(1, c.came); !slices.Equal(again(&f, 1), c.want) {
			t.Errorf("after part %d something else is sent again than %v", c.came, c.want)
		}
	}
	for range 3 {
		f.Send(2, 1, "")
	}
	f.Overtaken(1, 10)
	f.Overtaken(6, 6)
	if got := again(&f, 2); got != nil {
		t.Errorf("%v are sent again too soon", got)
	}
	if f.Overtaken(1, 12); !slices.Equal(again(&f, 2), []uint64{1}) {
		t.Error("the part is not sent again")
	}
	if f.Came(3, 6); f.Came(3, 6) || f.Came(3, 100) || f.Came(3, 0) {
		t.Error("a part comes twice, or one that was not sent")
	}
}

// TestFlight_Silence: while nothing comes, all that the window takes is sent again, ever more rarely and ever less of it.
func TestFlight_Silence(t *testing.T) {
	f := newTest(16)
	f.Window = NewWindow(16, 16, 1, 1)
	for range 16 {
		f.Send(time.Second, 1, "")
	}
	last := time.Second
	for i, want := range []struct {
		after time.Duration
		sent  int
	}{{20, 8}, {40, 4}, {80, 2}, {160, 2}, {320, 2}, {640, 2}, {1000, 2}, {1000, 2}} {
		due, _ := f.Due()
		if f.Tick(due - 1) {
			t.Fatal("too soon")
		}
		if !f.Tick(due) || due-last != want.after*time.Millisecond || f.Tries() != i+1 {
			t.Errorf("timeout %d after %v, %d tries", i, due-last, f.Tries())
		}
		if got := again(&f, due); len(got) != want.sent || got[0] != 1 {
			t.Errorf("timeout %d: %v are sent again", i, got)
		}
		last = due
	}
	f.Below(last, 17)
	if f.Tries() != 0 {
		t.Errorf("%d tries when all has come", f.Tries())
	}
	f.Send(last, 1, "")
	if due, _ := f.Due(); due-last != time.Second {
		t.Errorf("a wait of %v: no round trip has been measured", due-last)
	}
	f.Came(last+4*time.Millisecond, 17)
	f.Send(last, 1, "")
	if due, _ := f.Due(); due-last != 12*time.Millisecond { // 4 and 4 times 2
		t.Errorf("a wait of %v after a round trip of 4 ms", due-last)
	}
}

// TestFlight_RoundTrip: a part tells the round trip unless it was sent twice or unasked. What is told of several parts tells it
// unless one of them was.
func TestFlight_RoundTrip(t *testing.T) {
	const trip = 15 * time.Millisecond
	for name, c := range map[string]struct {
		do    func(f *Flight[string])
		knows bool
	}{
		"each":                  {func(f *Flight[string]) { f.Send(0, 1, ""); f.Came(trip, 1) }, true},
		"unasked":               {func(f *Flight[string]) { f.Expect(0, 1, ""); f.Came(trip, 1) }, false},
		"sent again":            {func(f *Flight[string]) { f.Send(0, 1, ""); f.Lose(2); again(f, 1); f.Came(trip, 1) }, false},
		"late":                  {func(f *Flight[string]) { f.Send(0, 1, ""); f.Lose(9); f.Came(trip, 1) }, true},
		"several":               {func(f *Flight[string]) { f.Send(-1, 1, ""); f.Send(0, 1, ""); f.Below(trip, 3) }, true},
		"several, one unasked":  {func(f *Flight[string]) { f.Expect(0, 1, ""); f.Send(0, 1, ""); f.Below(trip, 3) }, false},
		"more than were sent":   {func(f *Flight[string]) { f.Send(0, 1, ""); f.Below(trip, 3) }, false},
		"what has come already": {func(f *Flight[string]) { f.Send(0, 1, ""); f.Below(trip, 1) }, false},
	} {
		f := newTest(9)
		if c.do(&f); (f.timeout.Trips.Mean() == trip) != c.knows || f.timeout.Trips.Mean() != 0 != c.knows {
			t.Errorf("%s: a round trip of %v", name, f.timeout.Trips.Mean())
		}
	}
}

// TestFlight_Missing: what has not come is told in its order, with its values, lost parts too.
func TestFlight_Missing(t *testing.T) {
	f := newTest(9)
	for n := range 5 {
		f.Send(0, 1, fmt.Sprint(n+1))
	}
	f.Came(0, 1)
	f.Came(0, 3)
	f.Lose(3)
	got := ""
	for n, v := range f.Missing() {
		if got += *v; *v != fmt.Sprint(n) {
			t.Errorf("part %d has value %q", n, *v)
		}
	}
	if got != "245" || f.Low() != 2 || f.Next() != 6 || f.Out() != 2 {
		t.Errorf("%s are missing, from %d to %d, %d under way", got, f.Low(), f.Next(), f.Out())
	}
	for n := range f.Missing() {
		if n != 2 {
			t.Error("it goes on after its end")
		}
		break
	}
}
