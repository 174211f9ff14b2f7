package crash

import (
	"fmt"
	"testing"
	"time"

	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
	"github.com/bifrost-rack/bifrost/internal/wire"
	"github.com/bifrost-rack/bifrost/p4switch/shared/frame"
)

// In these scenes a blade of a pair loses its memory, and is filled from the other one while a program goes on. Something else
// fails around the moment at which the new copy is completed.

// writers is a program in which clients write to regions of their own all the time, and read what they have written; every
// second one has a service do so.
func writers(clients, rounds int) *Program {
	p := &Program{Services: []Service{{}}}
	next := numbered()
	for i := range clients {
		ops := []Op{next(Op{Kind: Alloc, Size: 64})}
		for range rounds {
			ops = append(ops, next(Op{Kind: Write, Size: 64}), next(Op{Kind: Wait, Within: 100 * time.Microsecond}), next(Op{Kind: Read, Size: 64}))
		}
		script := Script{Slots: 1, Result: -1, Ops: append(ops, next(Op{Kind: Free}))}
		if i%2 == 1 {
			script = Script{Result: -1, Ops: []Op{next(Op{Kind: Call, Slot: -1, Body: []Script{script}})}}
		}
		p.Clients = append(p.Clients, Client{Script: script})
	}
	return p
}

// told tells the n-th packet, from 0, after a command of the Gatekeeper has come to a blade.
func told(blade string, kind control.Kind, n int) func(wire.Frame) bool {
	come := false
	return func(f wire.Frame) bool {
		u, err := frame.ParseUDP6(f.Data)
		if !come && err == nil && f.Host == blade && !f.ToSwitch && u.Dst.Port() == rackaddr.PortControl {
			m, err := control.Parse(u.Payload)
			come = err == nil && m.Kind == kind && !m.Reply
		}
		if come {
			n--
		}
		return n == -1
	}
}

// TestFillCutOff: when the second copy is completed, the Gatekeeper restarts, the first blade cannot be heard for a moment, and
// soon after the second one loses power. The program goes on with the first copy alone, long before the second blade is back.
func TestFillCutOff(t *testing.T) {
	const away, soon = 30 * time.Second, 10 * time.Second
	p := writers(3, 60)
	step := 3
	if testing.Short() {
		step = 20
	}
	for at := 0; at < 40; at += step {
		for _, later := range []int{2, 6, 12} {
			t.Run(fmt.Sprint("packets ", at, " and ", at+later), func(t *testing.T) {
				first, second := memoryBlades[0], memoryBlades[1]
				when := func(one Crash, n int) *Moment { return &Moment{Crash: one, Is: told(first, control.KindComplete, n)} }
				r := runProgram(t, p, Options{
					Setting: Setting{Pairs: true}, Crashes: Crashes{{At: 20, Victim: second, How: Kill, Back: time.Millisecond}}, When: []*Moment{
						when(Crash{Victim: Gatekeeper, How: Restart, Back: time.Millisecond}, at),
						when(Crash{Victim: first, How: Pause, Back: 3 * time.Millisecond}, at),
						when(Crash{Victim: second, How: Cut, Back: away}, at+later),
					},
				})
				if r.Ended > soon {
					t.Errorf("the program has come to its end after %s", r.Ended)
				}
			})
		}
	}
}

// counters is a program in which each of several clients has some services count in regions that they keep, one after the other, twice.
func counters(clients, each int) *Program {
	p := &Program{}
	next := numbered()
	for i := range clients {
		script := Script{Result: -1}
		for n := range 2 * each {
			if n < each {
				p.Services = append(p.Services, Service{Stateful: true, Beside: len(p.Services) > 0})
			}
			script.Ops = append(script.Ops, next(Op{Kind: Call, Service: i*each + n%each, Slot: -1, Body: body(next(Op{Kind: Bump}))}))
		}
		p.Clients = append(p.Clients, Client{Script: script})
	}
	return p
}

// TestFillEqual: a copy is filled while the program goes on, and nothing else fails. Nobody reads what the copy has, but the oracle,
// which compares it with the first one's: what was written meanwhile, and not again later, is there, too.
func TestFillEqual(t *testing.T) {
	scene{program: counters(4, 3), network: slow, large: 4 << 10, skip: 900, step: 60, may: func(at int, after bool) []Crashes {
		return []Crashes{{{At: at, After: after, Victim: memoryBlades[1], How: Kill, Back: time.Millisecond}}}
	}}.play(t)
}
