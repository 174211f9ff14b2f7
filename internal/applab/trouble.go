package applab

import (
	"time"

	"github.com/bifrost-rack/bifrost/gatekeeper/resources"
)

// Trouble breaks one thing after the other until done is closed, and makes it whole
// again: kills programs, pulls the plugs of blades that run any, crashes the
// Gatekeeper. Between two of them there are between 1 and so many milliseconds. It
// returns how often it has done what.
func (l *Lab) Trouble(gap int, done <-chan struct{}) (did map[string]int) {
	did = map[string]int{}
	for {
		select {
		case <-done:
			return did
		case <-time.After(time.Duration(1+l.rng.IntN(gap)) * time.Millisecond):
		}
		breakSomething := []func() string{l.killProgram, l.killProgram, l.crashBlade, l.crashGatekeeper}[l.rng.IntN(4)]
		if what := breakSomething(); what != "" {
			did[what]++
		}
		l.wait(func() bool { return closed(done) || l.allRun() })
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

// running is any instance that runs, or nil.
func (l *Lab) running() *resources.Instance {
	var all []resources.Instance
	for _, i := range l.instances() {
		if i.Status == resources.Running {
			all = append(all, i)
		}
	}
	if len(all) == 0 {
		return nil
	}
	return &all[l.rng.IntN(len(all))]
}

// killProgram is kill -9.
func (l *Lab) killProgram() string {
	i := l.running()
	if i == nil || l.KillSoon(i.Blade, i.Name) != nil {
		return "" // it has just ended by itself
	}
	return "program killed"
}

// crashBlade pulls the plug of a blade, and puts it in again.
func (l *Lab) crashBlade() string {
	i := l.running()
	if i == nil {
		return ""
	}
	l.Must(l.CrashBlade(i.Blade))
	<-time.After(time.Duration(l.rng.IntN(5000)) * time.Millisecond) // a blade is silent for three seconds before it has failed
	l.Must(l.BootBlade(i.Blade))
	return "blade crashed"
}

func (l *Lab) crashGatekeeper() string {
	l.CrashGatekeeper()
	<-time.After(time.Duration(l.rng.IntN(500)) * time.Millisecond)
	l.Must(l.RestartGatekeeper(l.Context))
	return "Gatekeeper crashed"
}
