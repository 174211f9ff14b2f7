package crash

import (
	"fmt"
	"hash/fnv"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/bifrost-rack/bifrost/internal/wire"
)

// How is what happens to a victim.
type How string

// What happens to programs, and to the blades that they run on.
const (
	Kill  How = "kill"  // the program, as kill -9 does; its daemon notices. A memory blade loses all it holds and is back at once
	Cut   How = "cut"   // the power of the blade that it runs on; nobody notices. A memory blade loses all it holds
	End   How = "end"   // the daemon of a memory blade, as kill -9 does: all it holds is lost, and the Gatekeeper is told at once
	Pause How = "pause" // the blade's link goes down: all runs on, unheard
	Stop  How = "stop"  // the blade's processes are stopped and go on later, as by SIGSTOP and SIGCONT: what they send and get arrives then. The Gatekeeper, too
)

// What happens to the Gatekeeper, its log, and the switch.
const (
	Restart How = "restart" // the Gatekeeper is killed, or the switch is, which then has no rules
	Oust    How = "oust"    // another Gatekeeper is started on the log while the first one runs on
	HangUp  How = "hangup"  // the connections between switch and Gatekeeper break
	Stall   How = "stall"   // nothing gets through on them for a time, and nothing is lost
	Refuse  How = "refuse"  // the switch refuses to write; half of what it refuses it has written
	Fill    How = "fill"    // the log's disk is full: the Gatekeeper ends, and is started again when there is room
	Power   How = "power"   // the Gatekeeper's machine loses power: what its log has not synced is lost
	Shorten How = "shorten" // as Damage, but a part of the log's end is missing
	Damage  How = "damage"  // the Gatekeeper is killed, and a bit of its log is wrong: it must not start until that is mended
)

// What people do.
const (
	Drain    How = "drain"    // the blade that a program runs on is drained, and returns to service
	Redeploy How = "redeploy" // the deployment is made anew, with more spares and then as before
	Policy   How = "policy"   // the policy of a service is set to another one, and then left to the callers again
	Undeploy How = "undeploy" // the program's deployment is taken back, which is another one than that of the other services then
	Twin     How = "twin"     // a durable main is started a second time, on another blade
)

// Names of the victims that are neither programs nor blades.
const (
	Gatekeeper = "gk"
	Switch     = "sw"
	Log        = "log"
)

// waysOf are the ways in which each kind of victim can be hit.
var waysOf = map[string][]How{
	"program":  {Kill, Cut, Pause, Stop, Drain, Redeploy, Undeploy, Policy, Twin},
	"blade":    {Cut, Pause, Stop, Drain},
	"memory":   {Kill, Cut, End, Pause, Stop, Drain},
	Gatekeeper: {Restart, Stop, Oust},
	Switch:     {Restart, HangUp, Stall, Refuse},
	Log:        {Fill, Power, Damage, Shorten},
}

// kindOf is a victim's key of waysOf.
func kindOf(victim string) string {
	switch {
	case waysOf[victim] != nil:
		return victim
	case len(victim) > 1 && (victim[0] == 's' || victim[0] == 'm') && victim[1] >= '0' && victim[1] <= '9':
		return map[byte]string{'s': "blade", 'm': "memory"}[victim[0]]
	}
	return "program"
}

// Crash is one thing that happens in a run.
type Crash struct {
	// At is the packet of the run before which it comes (or after, with After),
	// counted on each link from 0, from the moment when all services are up.
	At    int
	After bool
	// Victim is a program's name, a blade's, or Gatekeeper, Switch or Log.
	Victim string
	How    How
	// Back is how long it takes until all is as before.
	Back time.Duration
}

// loses reports whether a memory blade that is hit loses all it holds.
func (c Crash) loses() bool { return c.How == Kill || c.How == Cut || c.How == End }

// String is the form that ParseCrash reads: 57-B:kill is a kill of B's program
// before packet 57, 58+gk:restart:300ms one of the Gatekeeper after packet 58.
func (c Crash) String() string {
	sign := "-"
	if c.After {
		sign = "+"
	}
	s := fmt.Sprintf("%d%s%s:%s", c.At, sign, c.Victim, c.How)
	if c.Back > 0 {
		s += ":" + c.Back.String()
	}
	return s
}

// ParseCrash reads what String writes.
func ParseCrash(s string) (c Crash, err error) {
	i := strings.IndexAny(s, "+-")
	if i < 0 {
		return c, fmt.Errorf("crash %q: want packet, + or -, and victim", s)
	}
	if c.At, err = strconv.Atoi(s[:i]); err != nil {
		return c, fmt.Errorf("crash %q: %w", s, err)
	}
	c.After = s[i] == '+'
	parts := strings.Split(s[i+1:], ":")
	if len(parts) < 2 || len(parts) > 3 || parts[0] == "" {
		return c, fmt.Errorf("crash %q: want victim:way or victim:way:time", s)
	}
	c.Victim, c.How = parts[0], How(parts[1])
	if kind := kindOf(c.Victim); !slices.Contains(waysOf[kind], c.How) {
		return c, fmt.Errorf("crash %q: of %s, want one of %v", s, kind, waysOf[kind])
	}
	if len(parts) == 3 {
		c.Back, err = time.ParseDuration(parts[2])
		if err == nil && c.Back <= 0 {
			err = fmt.Errorf("crash %q: a time of %s", s, c.Back)
		}
	}
	return c, err
}

// Crashes are those of one run, in any order.
type Crashes []Crash

// String is the form that ParseCrashes reads.
func (cs Crashes) String() string {
	var parts []string
	for _, c := range cs {
		parts = append(parts, c.String())
	}
	return strings.Join(parts, ",")
}

// ParseCrashes reads a list with commas; "" is none.
func ParseCrashes(s string) (cs Crashes, err error) {
	if s == "" {
		return nil, nil
	}
	for part := range strings.SplitSeq(s, ",") {
		c, err := ParseCrash(part)
		if err != nil {
			return nil, err
		}
		cs = append(cs, c)
	}
	return cs, nil
}

// Networks are what the wire does to packets, by name. On the slow one, it is the switch
// and the log that take longer; on the uneven one, some blades' links (linkOf).
var Networks = map[string]wire.Impairment{
	"good":  {Delay: 20 * time.Microsecond},
	slow:    {Delay: 20 * time.Microsecond},
	uneven:  {Delay: 20 * time.Microsecond},
	"lossy": {Delay: 20 * time.Microsecond, Jitter: 20 * time.Microsecond, Loss: 0.03, Duplicate: 0.03, Reorder: 0.03},
	faint:   {Delay: 20 * time.Microsecond},
	"late":  {Delay: 20 * time.Microsecond, Jitter: 20 * time.Microsecond, Loss: 0.01, Duplicate: 0.05, Late: 0.03, LateBy: 4 * time.Second},
}

// faint is the network on which the memory blades are badly heard, so that it takes a ledger some time to have what it has in the end.
const faint = "faint"

// uneven is the network on which each blade's link takes its own time: from what a packet
// takes on a good one to a thousand times as much. So a ledger may be settled long after all
// other packets have come. And a question may come long after its consequences elsewhere.
const uneven = "uneven"

// mostUneven is how many times as long as the shortest delay the longest one is.
const mostUneven = 1000

// linkOf is what the link of a blade does to packets on a network. The seed draws it where
// links differ.
func linkOf(network, blade string, seed uint64) wire.Impairment {
	i := Networks[network]
	if network == uneven {
		name := fnv.New64a()
		_, _ = name.Write([]byte(blade)) // never fails
		r := rand.New(rand.NewPCG(seed, name.Sum64()))
		i.Delay = time.Duration(float64(i.Delay) * math.Pow(mostUneven, r.Float64()))
	}
	if network == faint && kindOf(blade) == "memory" {
		i.Loss = 0.5
	}
	return i
}
