package crash

import (
	"cmp"
	"slices"
	"testing"
	"time"
)

// scene is a program in which something may happen before, and after, each packet.
type scene struct {
	program *Program
	network string  // "" for the good one
	first   Crashes // what happens in every case
	// may are the cases in which something happens before a packet, or after it.
	may func(at int, after bool) []Crashes
	// Of all cases, one in step is run, the first one after skip; under -short few, and with -crash.every all.
	skip, step int
	seed       int                       // of the network
	single     bool                      // memory has one copy
	large      int                       // of the rack's Setting
	look       func(*testing.T, *Report) // nil looks no closer
}

// play runs the cases of a scene.
func (s scene) play(t *testing.T) {
	t.Helper()
	want, err := Model(s.program)
	if err != nil {
		t.Fatal(err)
	}
	opt := Options{Seed: uint64(1 + s.seed), Network: cmp.Or(s.network, "good"), Setting: Setting{Pairs: !s.single, Large: s.large}, Crashes: s.first}
	one := func() *Report {
		r := perform(t, s.program, want, opt)
		for _, w := range r.Wrong {
			t.Error(w)
		}
		if s.look != nil {
			s.look(t, r)
		}
		if t.Failed() {
			t.Fatalf("with %q", opt.Crashes)
		}
		return r
	}
	packets := one().Packets
	var all []Crashes
	for at := range packets {
		all = append(append(all, s.may(at, false)...), s.may(at, true)...)
	}
	step, ran := s.step, 0
	switch {
	case *flagEvery:
		step = 1
	case testing.Short():
		step *= 20
	}
	for i := s.skip; i < len(all); i += step {
		opt.Crashes = slices.Concat(s.first, all[i])
		ran++
		one()
	}
	t.Logf("%d packets, %d of %d cases", packets, ran, len(all))
}

// kills are the cases in which one of the victims is killed. The Gatekeeper is back after a moment.
func kills(victims ...string) func(at int, after bool) []Crashes {
	return func(at int, after bool) (all []Crashes) {
		for _, victim := range victims {
			all = append(all, Crashes{killed(at, after, victim)})
		}
		return all
	}
}

// killed is the end of a program, or of the Gatekeeper, which is back after a moment.
func killed(at int, after bool, victim string) Crash {
	one := Crash{At: at, After: after, Victim: victim, How: Kill}
	if victim == Gatekeeper {
		one.How, one.Back = Restart, time.Millisecond
	}
	return one
}

// numbered gives the operations of a program their numbers.
func numbered() func(Op) Op {
	n := 0
	return func(op Op) Op {
		n++
		op.N = n
		return op
	}
}

// body is what a call does. It may have one region.
func body(ops ...Op) []Script { return []Script{{Result: -1, Slots: 1, Ops: ops}} }
