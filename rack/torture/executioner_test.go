package torture

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/bifrost-rack/bifrost/gatekeeper/admin/api"
	"github.com/bifrost-rack/bifrost/rack/config"
)

// A memory blade is hit only if the other one has everything, and what the Gatekeeper says of
// it is not older than the last hit.
func TestMayHit(t *testing.T) {
	const heartbeat = 200 * time.Millisecond
	now := time.Unix(1000, 0)
	two := func(epoch uint32) api.Machine {
		return api.Machine{Copies: []string{"m1", "m2"}, InService: 2, Epoch: epoch}
	}
	one := api.Machine{Copies: []string{"m2"}, InService: 1, Epoch: 5, Why: "m1 is filled"}
	alone := api.Machine{Copies: []string{"m1"}, InService: 1, Epoch: 5, Why: "m2 was silent"}
	hit := memoryHit{blade: "m1", epoch: 4, back: now.Add(-time.Millisecond)}
	long, away := hit, hit
	long.back, away.back = now.Add(-3*time.Second), time.Time{}
	for _, c := range []struct {
		what  string
		last  memoryHit
		blade string
		is    api.Machine
		may   bool
	}{
		{"the first one, of two copies", memoryHit{}, "m1", two(1), true},
		{"the first one, before there are two", memoryHit{}, "m1", one, false},
		{"the same again, while it is filled", hit, "m1", one, true},
		{"the same again, though the other one has no copy any more", long, "m1", alone, false},
		{"the other one, while the first is filled", long, "m2", one, false},
		{"the other one, and nobody has noticed the first hit", hit, "m2", two(4), false},
		{"the other one, as the first was filled when it was hit, and nobody has noticed", hit, "m2", two(5), false},
		{"the other one, after the first was filled", hit, "m2", two(6), true},
		{"the other one, after a pause that was too short to be noticed", long, "m2", two(4), true},
		{"the other one, while the first is away", away, "m2", two(6), false},
	} {
		if may := c.last.mayHit(c.blade, &c.is, now, heartbeat); may != c.may {
			t.Errorf("%s: mayHit = %v", c.what, may)
		}
	}
}

// An act is done as often as its weight says. What cannot be done now is not counted, and is
// still missing in the end.
func TestNext(t *testing.T) {
	var tried [3]int
	failed := errors.New("failed")
	try := func(n int, done bool, err error) func(*executioner, context.Context) (bool, error) {
		return func(*executioner, context.Context) (bool, error) { tried[n]++; return done, err }
	}
	of := []act{{"seldom", 1, try(0, true, nil)}, {"often", 9, try(1, true, nil)}, {"never", 5, try(2, false, nil)}}
	x := &executioner{t: &torture{done: map[string]int{}}, random: rand.New(rand.NewPCG(1, 1))}
	for range 1500 {
		if err := x.next(t.Context(), of); err != nil {
			t.Fatal(err)
		}
	}
	if tried[0] < 60 || tried[0] > 140 || tried[1] < 800 || tried[2] < 400 {
		t.Errorf("tried %v times of 1500", tried)
	}
	if done := x.t.done; done["seldom"] != tried[0] || done["often"] != tried[1] || done["never"] != 0 {
		t.Errorf("counted %v, tried %v", done, tried)
	}
	if err := x.next(t.Context(), []act{{"fails", 1, try(0, true, failed)}}); !errors.Is(err, failed) {
		t.Errorf("error %v", err)
	}
	x.acts = acts
	for i := range acts[1:] {
		x.t.done[acts[1+i].name]++
	}
	if missing := x.missing(); len(missing) != 1 || missing[0].name != acts[0].name {
		t.Errorf("missing %v, want %s alone", missing, acts[0].name)
	}
}

// The switch's process is a victim where its registers outlive it.
func TestActs(t *testing.T) {
	for kind, want := range map[config.Switch]bool{"": true, config.Bifrost: true, config.BMv2: false} {
		x := newExecutioner(&torture{cfg: Config{Switch: kind}})
		if got := slices.ContainsFunc(x.acts, func(a act) bool { return a.name == killSwitch.name }); got != want {
			t.Errorf("switch %q: is killed: %v, want %v", kind, got, want)
		}
	}
}
