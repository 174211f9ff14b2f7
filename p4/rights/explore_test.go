package rights

import (
	"flag"
	"strings"
	"testing"
)

var (
	seeds = flag.Int64("rights.seeds", 0, "how many more random worlds of each kind TestHolds runs")
	first = flag.Int64("rights.from", 1_000_000, "the first seed of these")
	show  = flag.Int64("rights.show", -1, "the seed whose trace TestHolds prints, of the kind that -run names")
)

// kindsOfWorlds are the settings that TestHolds runs, and how many seeds of each.
var kindsOfWorlds = map[string]struct {
	setting
	seeds int64
}{
	"no faults":               {setting{}, 100},
	"crashes":                 {setting{faults: 0.006}, 300},
	"gone":                    {setting{faults: 0.008, gone: true, restarts: true}, 300},
	"three clients":           {setting{faults: 0.01, gone: true, clients: 3, steps: 2500}, 100},
	"answers not held back":   {setting{faults: 0.006, gone: true, without: []string{"hold"}}, 200},
	"empty switch":            {setting{faults: 0.008, gone: true, empty: true, restarts: true}, 300},
	"empty switch and silent": {setting{faults: 0.008, gone: true, empty: true, silent: true}, 300},
	"few slots":               {setting{faults: 0.004, few: true, clients: 3}, 200},
	"standing leases":         {setting{faults: 0.008, gone: true, restarts: true, programs: []string{"m10", "m11"}}, 200},
	"others' regions":         {setting{faults: 0.008, gone: true, empty: true, restarts: true, programs: []string{othersRegion}}, 200},
	"operators":               {setting{faults: 0.006, gone: true, restarts: true, operator: true}, 200},
	"looks":                   {setting{faults: 0.006, gone: true, restarts: true, looks: true}, 200},
	"each packet":             {setting{faults: 0.008, gone: true, restarts: true, watched: true}, 30},
}

// run runs a world from its beginning to its end, and returns what is wrong.
func (s setting) run() (*world, string) {
	s.clients, s.steps = max(2, s.clients), max(1500, s.steps)
	w := newWorld(s)
	w.explore()
	w.log("=== settle")
	w.settle()
	return w, w.oracle()
}

// TestHolds runs random worlds of each kind. More of them, by hand:
//
//	go test ./p4/rights -run 'TestHolds/gone' -rights.seeds 100000
func TestHolds(t *testing.T) {
	for name, k := range kindsOfWorlds {
		t.Run(name, func(t *testing.T) {
			from, to := int64(0), k.seeds
			if *seeds > 0 {
				from, to = *first, *first+*seeds
			}
			if *show >= 0 {
				from, to = *show, *show+1
			}
			for seed := from; seed < to; seed++ {
				s := k.setting
				s.seed, s.traced = seed, *show >= 0
				w, wrong := s.run()
				if s.traced {
					t.Log(strings.Join(w.trace, "\n"))
				}
				if wrong != "" {
					t.Errorf("seed %d: %s", seed, wrong)
					break
				}
			}
		})
	}
}
