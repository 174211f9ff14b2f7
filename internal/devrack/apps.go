package devrack

import (
	"context"
	"errors"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/bifrost-rack/bifrost/gatekeeper"
	"github.com/bifrost-rack/bifrost/gatekeeper/resources"
)

// App is a deployment that the rack runs from its start on.
type App struct {
	// File is its app file, "" if it has none. The rack watches the file, and those of the programs.
	File string
	// Read reads it. Each program's first argument is the path of a file on this machine, and Binary is what that file has.
	Read func() (resources.Spec, error)
}

// lookEvery is how often the rack looks whether a file has changed.
const lookEvery = 200 * time.Millisecond

// watched is an app as it was deployed last, or tried to be.
type watched struct {
	App
	programs []string        // paths
	deployed map[string]mark // of the files
	seen     map[string]mark // at the last look, if they had changed then
}

// mark is by what a change of a file is noticed.
type mark struct {
	size     int64
	modified time.Time
	mode     os.FileMode
	missing  bool
}

// marks looks at the app's files.
func (w *watched) marks() map[string]mark {
	all := map[string]mark{}
	for _, name := range append([]string{w.File}, w.programs...) {
		if name == "" {
			continue
		}
		if info, err := os.Stat(name); err != nil {
			all[name] = mark{missing: true}
		} else {
			all[name] = mark{size: info.Size(), modified: info.ModTime(), mode: info.Mode()}
		}
	}
	return all
}

// look reports whether files of the app have changed, and are whole: they have not changed since the last look.
func (w *watched) look() bool {
	now := w.marks()
	same := func(as map[string]mark) bool {
		for name, m := range now {
			if as[name] != m {
				return false
			}
		}
		return as != nil
	}
	if same(w.deployed) {
		w.seen = nil
		return false
	}
	for _, m := range now {
		if m.missing { // it is being written anew
			w.seen = nil
			return false
		}
	}
	settled := same(w.seen)
	w.seen = now
	return settled
}

// took notes what was deployed.
func (w *watched) took(spec *resources.Spec, marks map[string]mark) {
	w.programs = w.programs[:0]
	for i := range spec.Programs {
		w.programs = append(w.programs, spec.Programs[i].Args[0])
	}
	w.deployed, w.seen = w.marks(), nil
	for name, m := range marks { // as they were when they were read
		w.deployed[name] = m
	}
}

// readAll reads the apps, which are watched from then on.
func (r *rack) readAll() (specs []resources.Spec, err error) {
	for _, a := range r.cfg.Apps {
		spec, err := a.Read()
		if err != nil {
			return nil, err
		}
		w := &watched{App: a}
		w.took(&spec, nil)
		r.apps, specs = append(r.apps, w), append(specs, spec)
	}
	return specs, nil
}

// watch deploys what changes until ctx ends.
func (r *rack) watch(ctx context.Context) {
	ticks := time.NewTicker(lookEvery)
	defer ticks.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticks.C:
		}
		for _, w := range r.apps {
			if w.look() {
				r.deployAgain(ctx, w)
			}
		}
	}
}

// deployAgain deploys an app whose files have changed. An app that cannot be read, or is refused, stays as it is until they change again.
func (r *rack) deployAgain(ctx context.Context, w *watched) {
	marks := w.seen
	spec, err := w.Read()
	if err != nil {
		w.deployed, w.seen = marks, nil
		r.say("%v", err)
		return
	}
	w.took(&spec, marks)
	if err := r.rig.Gatekeeper().Deploy(ctx, spec); err != nil && !errors.Is(err, context.Canceled) {
		r.say("deploy %s: %v", spec.Name, err)
		return
	}
	r.say("%s has changed: it is rolled out", spec.Name)
}

// bladesFor are the compute blades of a rack that runs these apps: those that every rack has, those that the apps name, and as many
// more as the program needs that runs on most blades at a time.
func bladesFor(specs []resources.Spec) []string {
	blades, more := slices.Clone(computeBlades), []string(nil)
	need := 0
	for i := range specs {
		for k := range specs[i].Programs {
			p := &specs[i].Programs[k]
			more = append(more, p.Blades...)
			if len(p.Blades) == 0 {
				need = max(need, p.Nodes+p.Spares)
			}
		}
	}
	slices.Sort(more)
	for _, name := range slices.Compact(more) {
		if !slices.Contains(blades, name) && !slices.Contains(memoryBlades, name) {
			blades = append(blades, name)
		}
	}
	return append(blades, extra(blades, need-len(blades))...)
}

// tell prints what happens in the rack that a program's author wants to know, until the events end.
func (r *rack) tell(events <-chan gatekeeper.Event) {
	for e := range events {
		if r.ending.Load() {
			continue // they are told that they have ended
		}
		switch e.Kind {
		case gatekeeper.ServiceExported:
			if !strings.HasPrefix(e.Service, "Bifrost.") { // the rack's own ingress serves such
				r.say("%s serves %s", e.Name, e.Service)
			}
		case gatekeeper.NodeFailed:
			if e.Message != "closed" && !strings.Contains(e.Name, "/") { // of those of a deployment the registry tells
				r.say("%s has ended: %s", e.Name, e.Message)
			}
		case gatekeeper.ProgramFailed:
			r.say("%s has failed: %s", e.Name, e.Message)
		case gatekeeper.AppRolledOut:
			r.say("%s runs as it is now", e.Name)
		case gatekeeper.AppRolledBack:
			r.say("%s is rolled back to what it was: %s", e.Name, e.Message)
		case gatekeeper.AppShort:
			r.say("%s: %s", e.Name, e.Message)
		}
	}
}
