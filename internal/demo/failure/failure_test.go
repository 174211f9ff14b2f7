package failure

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/bifrost-rack/bifrost/internal/simrack"
	"github.com/bifrost-rack/bifrost/internal/wire"
	"github.com/bifrost-rack/bifrost/p4switch/shared/bubble"
)

var (
	seeds = flag.Int("seeds", 40, "how many random failures to try")
	first = flag.Uint64("seed", 1, "the first of them")
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// inVirtualTime performs a scenario on a wire that its seed decides about.
func inVirtualTime(t *testing.T, name string, seed uint64, impair wire.Impairment) (Report, string) {
	t.Helper()
	var report Report
	var out bytes.Buffer
	bubble.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
		defer cancel()
		var err error
		report, err = Run(ctx, Config{Out: &out, Name: name, Seed: seed, rack: func(c *simrack.Config) {
			c.Schedule, c.Impair = &wire.Schedule{Seed: seed, Quiesce: synctest.Wait}, impair
		}})
		if err != nil {
			t.Errorf("%v\n%s", err, out.String())
		}
	})
	return report, out.String()
}

// good and bad are the networks of the tests.
var (
	good = wire.Impairment{Delay: 20 * time.Microsecond, Jitter: 20 * time.Microsecond}
	bad  = wire.Impairment{Delay: 20 * time.Microsecond, Jitter: 20 * time.Microsecond, Loss: 0.02, Duplicate: 0.02, Reorder: 0.02, Late: 0.01}
)

// TestScenarios: whoever dies, the call happens once, and the report and the picture
// say what has happened. A callee that dies in the middle is the only one to begin
// twice.
func TestScenarios(t *testing.T) {
	attempts := map[string]int64{"f1": 1, "f2": 1, "f3": 1, "f4": 2, "nested": 1, "both": 2}
	changed := map[string]bool{"f1": true, "f2": true, "f4": true, "both": true} // who dies has changed memory
	for _, s := range Scenarios {
		if s.memory {
			continue
		}
		t.Run(s.Name, func(t *testing.T) {
			r, story := inVirtualTime(t, s.Name, 1, good)
			if !r.OK || r.Executions != 1 || r.Attempts != attempts[s.Name] || !slices.Equal(r.Killed, s.victims) {
				t.Errorf("report %+v", r)
			}
			if r.DetectMS < 200 || r.DetectMS > 420 || r.RecoverMS < r.DetectMS || r.RecoverMS > r.DetectMS+50 || r.AnswerMS < r.DetectMS {
				t.Errorf("blades report every 100 ms, and the times are %+v", r)
			}
			for _, want := range []string{
				s.Title, s.victims[0] + " loses its power", "fence: ", "effect once", "starts on x",
				"a1  teller calls", "b1  the call goes on to counter", "b2  counter has answered", "a2  teller gets the answer", "teller has done its work",
			} {
				if !strings.Contains(story, want) {
					t.Errorf("the picture does not say %q", want)
				}
			}
			if strings.Contains(story, "rollback: ") != changed[s.Name] {
				t.Errorf("memory is to be taken back: %v", changed[s.Name])
			}
			if t.Failed() {
				t.Log(story)
			}
		})
	}
}

// TestMemory: the memory blade that answers reads dies in the middle of an execution, which
// goes on with the other copy and begins no second time. When it is filled, the other one
// dies, and then the service's blade: the account has what it had.
func TestMemory(t *testing.T) {
	r, story := inVirtualTime(t, "memory", 1, good)
	if !r.OK || r.Executions != 1 || r.Attempts != 1 || len(r.Killed) != 3 || r.Killed[0] == r.Killed[1] || r.Killed[2] != callee {
		t.Errorf("report %+v", r)
	}
	if r.DetectMS < 200 || r.DetectMS > 420 || r.RecoverMS < r.DetectMS || r.RecoverMS > r.DetectMS+50 || r.AnswerMS < r.DetectMS {
		t.Errorf("blades report every 100 ms, and the times are %+v", r)
	}
	for _, want := range []string{
		r.Killed[0] + " is filled from " + r.Killed[1], "machine 1 has two copies", r.Killed[1] + " loses its power", "counter is back under its address",
		r.Killed[0] + " loses its power", "the Gatekeeper gives " + r.Killed[0] + " up", "machine 1 has one copy", "effect once", "a2  teller gets the answer",
	} {
		if !strings.Contains(story, want) {
			t.Errorf("the picture does not say %q", want)
		}
	}
	if t.Failed() {
		t.Log(story)
	}
}

// TestScenarios_BadNetwork: the same where packets are lost, doubled, overtaken and
// late. Blades may seem dead that live; then more runs twice, but nothing counts twice.
func TestScenarios_BadNetwork(t *testing.T) {
	for _, s := range Scenarios {
		for seed := range uint64(3) {
			t.Run(fmt.Sprint(s.Name, " seed=", seed), func(t *testing.T) {
				if r, story := inVirtualTime(t, s.Name, seed, bad); !r.OK || r.Executions != 1 {
					t.Errorf("%+v\n%s", r, story)
				}
			})
		}
	}
}

// TestRandom: one, two or three blades die at any packet.
func TestRandom(t *testing.T) {
	if testing.Short() {
		*seeds = min(*seeds, 10)
	}
	fewest, most := int64(1), int64(0)
	stride := uint64(1)
	if testing.Short() {
		stride = 5
	}
	for seed := *first; seed < *first+uint64(*seeds); seed += stride {
		t.Run(fmt.Sprint("seed=", seed), func(t *testing.T) {
			r, story := inVirtualTime(t, Random, seed, good)
			if !r.OK || r.Executions != 1 || len(r.Killed) == 0 {
				t.Errorf("%+v\n%s", r, story)
			}
			fewest, most = min(fewest, r.Attempts), max(most, r.Attempts)
		})
	}
	t.Logf("the handler began %d to %d times", fewest, most)
}

// TestRealTime performs as the command does, on a direct wire.
func TestRealTime(t *testing.T) {
	for _, name := range []string{"f4", "memory", Random} {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		var out bytes.Buffer
		if r, err := Run(ctx, Config{Out: &out, Name: name, Seed: 3}); err != nil || r.Executions != 1 {
			t.Errorf("%s: %+v\n%s", name, r, &out)
		}
	}
}

// TestTidy: no event tells when the last of what the apps had is gone.
func TestTidy(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		rack, err := simrack.Start(t.Context(), simrack.Config{Schedule: &wire.Schedule{Seed: 1, Quiesce: synctest.Wait}})
		if err != nil {
			t.Fatal(err)
		}
		n, err := rack.Join(t.Context(), "c1", "last")
		if err != nil {
			t.Fatal(err)
		}
		tidied := make(chan error, 1)
		go func() {
			s := &stage{rack: rack, story: newChronicle(io.Discard, nil, nil, nil)} // which hears no event
			tidied <- s.tidy(t.Context())
		}()
		<-time.After(time.Second) // virtual
		select {
		case err := <-tidied:
			t.Errorf("with a node there: %v", err)
		default:
		}
		if err := n.Close(t.Context()); err != nil {
			t.Error(err)
		}
		if err := <-tidied; err != nil {
			t.Error(err)
		}
		if err := rack.Close(); err != nil {
			t.Error(err)
		}
	})
}

func TestUnknown(t *testing.T) {
	r, err := Run(t.Context(), Config{Out: io.Discard, Name: "f5"})
	if err == nil || r.OK || !strings.Contains(r.Error, "f1, f2, f3, f4, nested, both, memory, random") {
		t.Errorf("%+v, %v", r, err)
	}
}
