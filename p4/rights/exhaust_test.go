package rights

import (
	"flag"
	"fmt"
	"slices"
	"testing"
)

var stride = flag.Int("rights.stride", 3, "TestOneDeviation tries one in so many deviations")

// deviation is what goes otherwise than in order, at one step of a run.
type deviation struct {
	at, kind, node int
}

const (
	lose      = iota // the next packet
	repeat           // a copy of it comes last
	late             // it comes last
	holdBack         // it comes when everything else has happened
	crash            // a node
	kill             // a node, for good
	gkDies           // the Gatekeeper
	loseState        // the switch's registers
)

func (d deviation) String() string {
	return fmt.Sprintf("%s %d at step %d", [...]string{"lose", "repeat", "late", "hold back", "crash", "kill", "Gatekeeper dies", "registers lost"}[d.kind], d.node, d.at)
}

// straight is a world in which packets go in order, but for deviations.
type straight struct {
	*world
	devs []deviation
	held []*message
	dies map[int]bool
}

// run returns how many steps it takes until everything has ended.
func (s *straight) run(limit int) (steps int) {
	for step, idle := 0, 0; step < limit && s.broken == ""; step++ {
		for _, d := range s.devs {
			if d.at == step {
				s.deviate(d)
			}
		}
		if len(s.flight) > 0 && !s.sw.Rebuilding {
			idle = 0
			s.deliver(0, false, false)
			if step > 300 && step%60 == 0 {
				s.tickAll()
			}
			if step%3 == 0 && step < 300 || step%40 == 0 {
				s.turns()
			}
			continue
		}
		if s.sw.Rebuilding {
			s.rebuild()
		}
		s.turns()
		s.tickAll()
		steps = step
		switch {
		case len(s.flight) > 0 && !s.quiet():
		case idle == 3 && len(s.held) > 0:
			idle++
			s.flight, s.held = append(s.flight, s.held...), nil
		case idle > 6 && s.quiet():
			return steps
		default:
			idle++
		}
	}
	s.flight = nil
	return steps
}

func (s *straight) tickAll() {
	for _, a := range sorted(s.nodes) {
		s.tick(s.nodes[a])
	}
}

// turns has the Gatekeeper work for everybody who waits for it.
func (s *straight) turns() {
	for _, id := range sorted(s.gk.leases) {
		s.lease(s.gk.leases[id])
	}
	for _, a := range sorted(s.gk.ends) {
		for range 3 {
			if e := s.gk.ends[a]; e != nil {
				s.end(e, e.n.plain || s.dies[a])
			}
		}
	}
	s.auditNobody()
}

func (s *straight) deviate(d deviation) {
	switch d.kind {
	case crash, kill:
		if n := s.nodes[d.node]; n.up {
			s.crash(n)
			s.dies[d.node] = d.kind == kill
		}
	case gkDies:
		s.restart()
	case loseState:
		s.loseSwitch()
	}
	if len(s.flight) == 0 {
		return
	}
	m := s.flight[0]
	switch d.kind {
	case lose:
		s.deliver(0, true, false)
	case repeat:
		s.flight = append(s.flight, m.clone())
	case late:
		s.flight = append(s.flight[1:], m)
	case holdBack:
		s.held = append(s.held, m)
		s.flight = s.flight[1:]
	}
}

// begin makes a world in which one client runs one program.
func begin(program string, plain bool, without ...string) *straight {
	w := newWorld(setting{seed: 1, programs: []string{program}, without: without})
	w.nextClient = 99
	w.memory[1].tight = false
	w.join(1, true, plain)
	return &straight{world: w, dies: map[int]bool{}}
}

// deviations are all of one run.
func deviations(program string, plain bool) (all []deviation, wrong string) {
	s := begin(program, plain)
	steps := s.run(4000)
	used := servicesOf(program, map[int]bool{})
	for at := range steps {
		for kind := range crash {
			all = append(all, deviation{at: at, kind: kind})
		}
		all = append(all, deviation{at: at, kind: crash, node: 1})
		for _, a := range sorted(used) {
			all = append(all, deviation{at, crash, a}, deviation{at, kill, a})
		}
		if program != "m9" { // who has no ledger gives no account
			all = append(all, deviation{at: at, kind: loseState})
		}
		all = append(all, deviation{at: at, kind: gkDies})
	}
	return all, s.oracle()
}

// servicesOf adds the nodes that take part in a program.
func servicesOf(program string, into map[int]bool) map[int]bool {
	for _, s := range programs[program].steps {
		if s.to != 0 {
			into[s.to] = true
		}
		if s.calls != "" {
			servicesOf(s.calls, into)
		}
	}
	return into
}

// deviated returns what is wrong in a run with deviations.
func deviated(program string, plain bool, devs []deviation, without ...string) string {
	s := begin(program, plain, without...)
	s.devs = devs
	s.run(6000)
	return s.oracle()
}

// TestOneDeviation runs each program with one deviation from the order at each step. All of them, by hand:
//
//	go test ./p4/rights -run TestOneDeviation -rights.stride 1
func TestOneDeviation(t *testing.T) {
	runs := 0
	for _, program := range append(slices.Clone(mains), othersRegion) {
		for _, plain := range []bool{false, true} {
			all, wrong := deviations(program, plain)
			if wrong != "" {
				t.Fatalf("%s, plain %v, without deviation: %s", program, plain, wrong)
			}
			for i := runs % *stride; i < len(all); i += *stride {
				runs++
				if wrong := deviated(program, plain, all[i:i+1]); wrong != "" {
					t.Errorf("%s, plain %v, %v: %s", program, plain, all[i], wrong)
				}
			}
		}
	}
	t.Logf("%d runs", runs)
}

var pairs = flag.Int("rights.pairs", 0, "how many pairs of deviations TestTwoDeviations tries for each program; by hand")

// TestTwoDeviations runs programs with two deviations, the one a crash or a loss of state.
func TestTwoDeviations(t *testing.T) {
	for _, program := range mains {
		all, _ := deviations(program, false)
		big := slices.DeleteFunc(slices.Clone(all), func(d deviation) bool { return d.kind < crash })
		rnd := begin(program, false).rnd
		for range max(20, *pairs) {
			two := []deviation{all[rnd.Intn(len(all))], big[rnd.Intn(len(big))]}
			if wrong := deviated(program, false, two); wrong != "" {
				t.Errorf("%s, %v: %s", program, two, wrong)
			}
		}
	}
}
