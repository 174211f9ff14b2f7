package crash

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/bifrost-rack/bifrost/internal/wire"
)

// How is the way in which something crashes.
type How string

// The ways.
const (
	Kill    How = "kill"    // the program, as kill -9 does; its daemon notices
	Cut     How = "cut"     // the power of the blade that it runs on; nobody notices
	Pause   How = "pause"   // the blade's link goes down: all runs on, unheard
	Stop    How = "stop"    // the blade's processes are stopped and go on later, as by SIGSTOP and SIGCONT: what they send and get arrives then
	Restart How = "restart" // the Gatekeeper is killed; the one way for it
)

// Gatekeeper is the name of the victim that is no program.
const Gatekeeper = "gk"

// Crash is one crash of a run.
type Crash struct {
	// At is the packet of the run before which it comes (or after, with After),
	// counted on each link from 0, from the moment when all services are up.
	At    int
	After bool
	// Victim is a program's name, a blade's, or Gatekeeper.
	Victim string
	How    How
	// Back is how long the blade or the Gatekeeper stays away.
	Back time.Duration
}

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
	switch c.How {
	case Kill, Cut, Pause, Stop, Restart:
	default:
		return c, fmt.Errorf("crash %q: no way %q", s, parts[1])
	}
	if (c.Victim == Gatekeeper) != (c.How == Restart) {
		return c, fmt.Errorf("crash %q: %s is for the Gatekeeper, and the one way for it", s, Restart)
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
// and the log that take longer.
var Networks = map[string]wire.Impairment{
	"good":  {Delay: 20 * time.Microsecond},
	slow:    {Delay: 20 * time.Microsecond},
	"lossy": {Delay: 20 * time.Microsecond, Jitter: 20 * time.Microsecond, Loss: 0.03, Duplicate: 0.03, Reorder: 0.03},
	"late":  {Delay: 20 * time.Microsecond, Jitter: 20 * time.Microsecond, Loss: 0.01, Duplicate: 0.05, Late: 0.03, LateBy: 4 * time.Second},
}
