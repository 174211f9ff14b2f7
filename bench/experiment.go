package bench

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/bifrost-rack/bifrost/bench/report"
)

// Experiment answers a question.
type Experiment struct {
	report.Experiment
	// Run measures and fills in what it has found. It may be nil in tests only.
	Run func(ctx context.Context, l *Lab, e *report.Experiment) error
	// NoRack is an experiment that brings its own namespaces.
	NoRack bool
}

// Experiments are all there are, in the order in which they run.
func Experiments() []Experiment {
	return slices.Concat(
		[]Experiment{switchRoundTrip, pingOverhead, udpOrTCP, incrementArray, addArrays, byRegion, byRegionRate, byRegionWork, referenceThreshold}, patterns,
		[]Experiment{posts, longValues, whereTimeGoes, exactlyOnce, exactWork, callChain, callers, memoryOrRedis, mirroredMemory, memoryBladeDies, recoveryTime},
	)
}

// Choose returns the experiments of the given names; all if there are none.
func Choose(names []string) ([]Experiment, error) {
	all := Experiments()
	if len(names) == 0 {
		return all, nil
	}
	var chosen []Experiment
	for _, name := range names {
		i := slices.IndexFunc(all, func(e Experiment) bool { return e.Name == name })
		if i < 0 {
			return nil, fmt.Errorf("no experiment %q: there are %s", name, strings.Join(Names(), ", "))
		}
		if !slices.ContainsFunc(chosen, func(e Experiment) bool { return e.Name == name }) {
			chosen = append(chosen, all[i])
		}
	}
	return chosen, nil
}

// Names lists the experiments.
func Names() (names []string) {
	for _, e := range Experiments() {
		names = append(names, e.Name)
	}
	return names
}
