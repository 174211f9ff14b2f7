package crash

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"
)

// Case is one run of a program: how the network and the rack are, and what happens.
type Case struct {
	Network string
	Setting Setting
	Crashes Crashes
}

// Victims are the names of what crashes in the plain mix: a program's services, its
// clients, and the Gatekeeper.
func (p *Program) Victims() []string {
	vs := []string{Gatekeeper}
	for i := range p.Services {
		vs = append(vs, ServiceName(i))
	}
	for i := range p.Clients {
		vs = append(vs, p.clientName(i))
	}
	return vs
}

// Every returns the cases in which each victim crashes before and after each packet
// of a run of so many, on a good network.
func Every(p *Program, packets int) (cs []Case) {
	for at := range packets {
		for _, after := range []bool{false, true} {
			for _, v := range p.Victims() {
				one := Crash{At: at, After: after, Victim: v, How: Kill}
				if v == Gatekeeper {
					one.How, one.Back = Restart, time.Millisecond
				}
				cs = append(cs, Case{Network: "good", Crashes: Crashes{one}})
			}
		}
	}
	return cs
}

// EveryCopy returns the cases in which each blade of a pair loses its memory before and after
// each packet of a run of so many; in every second one something else fails a few packets
// later, while the blade is being filled again: a program, the Gatekeeper, or the blade once
// more. In every fourth one the other blade cannot be heard when the blade loses its memory,
// and nobody has noticed.
func EveryCopy(p *Program, seed uint64, packets int) (cs []Case) {
	r := rand.New(rand.NewPCG(seed, 0xc0b1e5))
	for at := range packets {
		for _, after := range []bool{false, true} {
			for _, m := range memoryBlades {
				one := Crash{At: at, After: after, Victim: m, How: Kill, Back: time.Duration(1 + r.IntN(3e6))}
				if r.IntN(4) == 0 {
					one.How, one.Back = Cut, time.Duration(1+r.IntN(5e9))
				}
				c := Case{Network: "good", Setting: Setting{Pairs: true}, Crashes: Crashes{one}}
				if len(cs)%4 == 2 {
					silent := Crash{At: max(0, at-r.IntN(recoveryPackets)), Victim: other(m), How: Pause, Back: time.Duration(1 + r.IntN(6e9))}
					c.Crashes = Crashes{silent, one}
				}
				if len(cs)%2 == 1 {
					c.Crashes = append(c.Crashes, draw(r, at+1+r.IntN(recoveryPackets), append(p.Victims(), Gatekeeper)))
					if r.IntN(3) == 0 {
						one.At += 1 + r.IntN(recoveryPackets)
						c.Crashes[1] = one
					}
				}
				cs = append(cs, c)
			}
		}
	}
	return cs
}

// other is the other blade of a pair.
func other(memory string) string { return memoryBlades[1-slices.Index(memoryBlades, memory)] }

// Draw returns the n-th of the total random cases of a program whose run has so
// many packets: the first crash goes through all of them, the others are anywhere
// later. In a wide case everything fails, else only the Victims.
func Draw(p *Program, s Setting, seed uint64, packets, n, total int, wide bool) Case {
	r := rand.New(rand.NewPCG(seed, uint64(n)))
	c := Case{Network: "good", Setting: s}
	switch d := r.IntN(100); {
	case d < 10:
		c.Network = "lossy"
	case d < 15:
		c.Network = "late"
	case d < 30:
		c.Network = slow
	case d < 40:
		c.Network = uneven
	}
	at := n * packets / max(1, total)
	at += r.IntN(max(1, (n+1)*packets/max(1, total)-at))
	one := func(at int, among ...string) Crash {
		switch {
		case len(among) > 0:
			return draw(r, at, among)
		case wide:
			return p.drawAny(r, s, at)
		}
		return draw(r, at, p.Victims())
	}
	c.Crashes = Crashes{one(at)}
	for s.Calls >= longRun && len(c.Crashes) < longCrashes {
		c.Crashes = append(c.Crashes, one(r.IntN(max(1, packets))))
	}
	for r.IntN(5) < 2 && len(c.Crashes) < 4 {
		switch d := r.IntN(100); {
		case wide && d < 15: // two at once
			c.Crashes = append(c.Crashes, one(at))
		case d < 50:
			at += r.IntN(max(2, packets))
			c.Crashes = append(c.Crashes, one(at))
		default:
			// In the middle of the recovery, perhaps: whoever was hit, who takes over, or
			// the Gatekeeper.
			at += 1 + r.IntN(recoveryPackets)
			last := c.Crashes[len(c.Crashes)-1].Victim
			if k := kindOf(last); k != "program" && k != "blade" || r.IntN(3) == 0 {
				c.Crashes = append(c.Crashes, one(at))
				continue
			}
			c.Crashes = append(c.Crashes, one(at, last, p.spare(), Gatekeeper))
		}
	}
	return c
}

// longRun is how many calls of a chorus make a case one in which longCrashes things happen.
const (
	longRun     = 5_000
	longCrashes = 20
)

// recoveryPackets is about how many packets a recovery takes.
const recoveryPackets = 40

// spare is the blade that runs nothing before something fails.
func (p *Program) spare() string { return fmt.Sprint("s", p.homes()+1) }

// draw draws what crashes at a packet.
func draw(r *rand.Rand, at int, victims []string) Crash {
	c := Crash{At: at, After: r.IntN(2) == 0, Victim: victims[r.IntN(len(victims))], How: Kill}
	upTo := func(d time.Duration) time.Duration { return 1 + time.Duration(r.Int64N(int64(d))) }
	switch d := r.IntN(100); {
	case c.Victim == Gatekeeper:
		c.How, c.Back = Restart, upTo([]time.Duration{time.Microsecond, time.Millisecond, 100 * time.Millisecond, 2 * time.Second}[d%4])
	case d < 20:
		c.How, c.Back = Cut, upTo(10*time.Second)
	case d < 32:
		c.How, c.Back = Pause, upTo(6*time.Second)
	case d < 44:
		c.How, c.Back = Stop, upTo(6*time.Second)
	}
	if strings.HasPrefix(c.Victim, "s") && c.How == Kill { // a blade
		c.How, c.Back = Cut, upTo(10*time.Second)
	}
	return c
}

// weighted is what may be drawn, and how often.
type weighted struct {
	victim string // or kind of victim
	how    How
	weight int
	most   time.Duration // of Back
}

// possible is what happens in wide cases.
var possible = []weighted{
	{"service", Kill, 14, 0}, {"service", Cut, 5, 10 * time.Second}, {"service", Pause, 3, 6 * time.Second}, {"service", Stop, 3, 6 * time.Second},
	{"service", Drain, 3, 4 * time.Second}, {"service", Redeploy, 3, 4 * time.Second}, {"service", Policy, 3, 4 * time.Second},
	{"client", Kill, 5, 0}, {"client", Cut, 2, 10 * time.Second}, {"client", Pause, 2, 6 * time.Second}, {"client", Stop, 2, 6 * time.Second},
	{"main", Twin, 3, 0},
	{"spare", Cut, 2, 10 * time.Second}, {"spare", Pause, 1, 6 * time.Second}, {"spare", Stop, 1, 6 * time.Second}, {"spare", Drain, 1, 4 * time.Second},
	{"memory", Kill, 2, time.Second}, {"memory", Cut, 2, 10 * time.Second}, {"memory", Pause, 5, 8 * time.Second}, {"memory", Stop, 5, 8 * time.Second},
	{Gatekeeper, Restart, 12, 2 * time.Second}, {Gatekeeper, Stop, 5, 8 * time.Second}, {Gatekeeper, Oust, 3, 2 * time.Second},
	{Switch, Restart, 4, 4 * time.Second}, {Switch, HangUp, 3, 0}, {Switch, Stall, 4, 8 * time.Second}, {Switch, Refuse, 3, 4 * time.Second},
	{Log, Fill, 3, 3 * time.Second}, {Log, Power, 3, 3 * time.Second}, {Log, Damage, 2, time.Second},
}

// drawAny draws from everything that is possible at a packet.
func (p *Program) drawAny(r *rand.Rand, s Setting, at int) Crash {
	total := 0
	for _, w := range possible {
		total += w.weight
	}
	for {
		d := r.IntN(total)
		i := 0
		for ; d >= possible[i].weight; i++ {
			d -= possible[i].weight
		}
		w := possible[i]
		if s.Pairs && w.victim != "memory" && r.IntN(4) == 0 {
			continue // memory blades more often
		}
		victims := p.those(w.victim)
		if w.victim == "service" && s.Calls > 0 {
			victims = append(victims, chorusName)
		}
		if w.victim == "client" && s.Leases > 0 {
			victims = append(victims, lenderName)
		}
		if len(victims) == 0 || w.how == Power && !s.Sync && r.IntN(6) > 0 {
			continue
		}
		c := Crash{At: at, After: r.IntN(2) == 0, Victim: victims[r.IntN(len(victims))], How: w.how}
		if c.How == Damage && at%2 == 1 {
			c.How = Shorten // without dice: other cases stay what they were
		}
		if c.How == Kill && w.victim == "memory" && at%2 == 1 {
			c.How = End // likewise
		}
		if (c.How == Pause || c.How == Stop) && w.victim == "memory" && s.Room > 0 && at%8 == 3 {
			c.How = Drain // likewise
		}
		if w.most > 0 {
			// Half of them are short: shorter than what tells a failure.
			most := []time.Duration{w.most, w.most, 300 * time.Millisecond, 3 * time.Millisecond}[r.IntN(4)]
			c.Back = 1 + time.Duration(r.Int64N(int64(min(w.most, most))))
		}
		return c
	}
}

// those are the names of a kind of victim.
func (p *Program) those(kind string) (names []string) {
	for i := range p.Services {
		if kind == "service" {
			names = append(names, ServiceName(i))
		}
	}
	for i := range p.Clients {
		if kind == "client" || kind == "main" && p.Clients[i].Main {
			names = append(names, p.clientName(i))
		}
	}
	switch kind {
	case "spare":
		return []string{p.spare()}
	case "memory":
		return memoryBlades
	case Gatekeeper, Switch, Log:
		return []string{kind}
	}
	return names
}
