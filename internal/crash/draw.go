package crash

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"time"
)

// Case is one run of a program: how the network is, and what crashes.
type Case struct {
	Network string
	Crashes Crashes
}

// Victims are the names of what can crash in a program's run: its services, its
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
				cs = append(cs, Case{"good", Crashes{one}})
			}
		}
	}
	return cs
}

// Draw returns the n-th of the total random cases of a program whose run has so
// many packets: the first crash goes through all of them, the others are anywhere
// later.
func Draw(p *Program, seed uint64, packets, n, total int) Case {
	r := rand.New(rand.NewPCG(seed, uint64(n)))
	c := Case{Network: "good"}
	switch d := r.IntN(100); {
	case d < 10:
		c.Network = "lossy"
	case d < 15:
		c.Network = "late"
	case d < 30:
		c.Network = slow
	}
	at := n * packets / max(1, total)
	at += r.IntN(max(1, (n+1)*packets/max(1, total)-at))
	vs := p.Victims()
	c.Crashes = Crashes{draw(r, at, vs)}
	for r.IntN(5) < 2 && len(c.Crashes) < 4 {
		if r.IntN(2) == 0 {
			at += r.IntN(max(2, packets))
			c.Crashes = append(c.Crashes, draw(r, at, vs))
			continue
		}
		// In the middle of the recovery, perhaps: whoever was hit, who takes over, or
		// the Gatekeeper.
		at += 1 + r.IntN(recoveryPackets)
		last := c.Crashes[len(c.Crashes)-1].Victim
		c.Crashes = append(c.Crashes, draw(r, at, []string{last, p.spare(), Gatekeeper}))
	}
	return c
}

// recoveryPackets is about how many packets a recovery takes.
const recoveryPackets = 40

// spare is the blade that runs nothing before something fails.
func (p *Program) spare() string { return fmt.Sprint("s", len(p.Services)+1) }

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
