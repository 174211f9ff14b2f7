package bifrosttest

import (
	"fmt"
	"slices"
	"time"

	"github.com/bifrost-rack/bifrost/gatekeeper/resources"
	"github.com/bifrost-rack/bifrost/internal/duration"
)

// CrashBlade pulls the plug of a blade: what runs there is gone, and what stands in its
// memory. It does not wait.
func (r *Rack) CrashBlade(name string) {
	r.t.Helper()
	r.must("crashing "+name, r.rig.CrashBlade(name))
}

// BootBlade puts the plug in again. It does not wait until the rack knows the blade. For a
// blade that is up it does nothing.
func (r *Rack) BootBlade(name string) {
	r.t.Helper()
	r.must("booting "+name, r.rig.BootBlade(name))
}

// Kill kills, as kill -9 does, a program that a deployed app runs on a blade, and waits
// for its end. If several run there, it is the first by name. The rack starts it again.
func (r *Rack) Kill(blade string) {
	r.t.Helper()
	all, err := r.instances()
	name := ""
	for i := range all {
		if all[i].Blade == blade && all[i].Status == resources.Running && (name == "" || all[i].Name < name) {
			name = all[i].Name
		}
	}
	if err == nil && name == "" {
		err = fmt.Errorf("no program of a deployed app runs there; programs: %+v", all)
	}
	if err == nil {
		err = r.rig.Kill(blade, name)
	}
	r.must("killing a program on "+blade, err)
}

// Where returns the blades on which the programs of an app run, one for each that runs.
func (r *Rack) Where(app string) (blades []string) {
	r.t.Helper()
	all, err := r.instances()
	r.must("asking what runs", err)
	for i := range all {
		if all[i].App == app && all[i].Status == resources.Running {
			blades = append(blades, all[i].Blade)
		}
	}
	return blades
}

// CrashGatekeeper ends the controller as SIGKILL would. Nothing is deployed, recovered or
// granted until [Rack.RestartGatekeeper].
func (r *Rack) CrashGatekeeper() { r.rig.CrashGatekeeper() }

// RestartGatekeeper starts it from its log, and waits until the switch obeys it.
func (r *Rack) RestartGatekeeper() {
	r.t.Helper()
	r.must("restarting the Gatekeeper", r.rig.RestartGatekeeper(r.ctx))
}

// Trouble breaks one thing after the other until done is closed, and makes each whole
// again: it kills programs of apps, pulls the plugs of their blades, crashes the Gatekeeper.
// It pulls no plug of [ClientBlade], or of another blade with a node of the test's own ([Rack.Node]):
// such a node would not come back.
// Between two of them lie between 1 and so many milliseconds of virtual time. It returns how
// often it has done what. Call it in a goroutine of its own; cause no other fault meanwhile.
func (r *Rack) Trouble(gap int, done <-chan struct{}) (did map[string]int) {
	did = map[string]int{}
	for {
		select {
		case <-done:
			return did
		case <-time.After(duration.Times(int64(1+r.rng.IntN(gap)), time.Millisecond)):
		}
		what, err := r.breakSomething()
		if err == nil {
			err = r.wait(func() (bool, error) {
				if closed(done) {
					return true, nil
				}
				return r.allRun()
			})
		}
		if err != nil {
			r.t.Errorf("bifrosttest: trouble: %v", err)
			return did
		}
		if what != "" {
			did[what]++
		}
	}
}

func closed(done <-chan struct{}) bool {
	select {
	case <-done:
		return true
	default:
		return false
	}
}

// breakSomething says what it has broken, "" if there was nothing to break.
func (r *Rack) breakSomething() (string, error) {
	n := r.rng.IntN(4)
	if n == 3 {
		r.rig.CrashGatekeeper()
		r.pause(500)
		return "Gatekeeper crashed", r.rig.RestartGatekeeper(r.ctx)
	}
	all, err := r.instances()
	all = slices.DeleteFunc(all, func(i resources.Instance) bool { return i.Status != resources.Running })
	if err != nil || len(all) == 0 {
		return "", err
	}
	i := all[r.rng.IntN(len(all))]
	if n < 2 {
		if r.rig.KillSoon(i.Blade, i.Name) != nil {
			return "", nil // it has just ended by itself
		}
		return "program killed", nil
	}
	if r.hasOwn(i.Blade) {
		return "", nil
	}
	if err := r.rig.CrashBlade(i.Blade); err != nil {
		return "", err
	}
	r.pause(5000) // a blade is silent for three seconds before it has failed
	return "blade crashed", r.rig.BootBlade(i.Blade)
}

// hasOwn reports whether a blade has, or had, a node of the test's own.
func (r *Rack) hasOwn(blade string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.own[blade]
}

// pause lets up to so many milliseconds pass.
func (r *Rack) pause(most int) {
	<-time.After(duration.Times(int64(r.rng.IntN(most)), time.Millisecond))
}
