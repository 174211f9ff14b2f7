package switches

import (
	"fmt"
	"io"
	"time"
)

// SoakOptions say how to soak.
type SoakOptions struct {
	Rules    int           // rules beside those that change
	Duration time.Duration // how long rules change
	Datapath string        // the executor: ebpf or go
	// Restart, if positive, is after how long the switch is killed and started again,
	// over and over. It then is a process of its own, run by this program's binary.
	Restart  time.Duration
	Progress io.Writer // if not nil, is told what is being done
}

func (o *SoakOptions) tell(format string, a ...any) {
	if o.Progress != nil {
		_, _ = fmt.Fprintf(o.Progress, format+"\n", a...)
	}
}

// SoakResult is what a soak has found.
type SoakResult struct {
	Datapath string  `json:"datapath"`
	Rules    int     `json:"rules"`
	Seconds  float64 `json:"seconds"`
	Packets  int64   `json:"packets"` // judged by the switch
	Writes   int     `json:"writes"`
	Updates  int     `json:"updates"` // of rules, in these Writes
	Restarts int     `json:"restarts"`
	// Checked verdicts were of packets sent and seen while their rule stayed as it
	// was; WrongVerdicts of them contradicted it, Example tells the first.
	Checked       int64  `json:"checked"`
	WrongVerdicts int64  `json:"wrong"`
	Example       string `json:"example,omitempty"`
	// RulesLost is how many rules the switch has too few at the end, LeftOver how
	// many descriptors were open after it was closed. Early and Late are of the
	// switch's process, which may be this one, when it was warm and at the end.
	RulesLost int       `json:"rules_lost"`
	LeftOver  int       `json:"left_over"`
	Early     footprint `json:"early"`
	Late      footprint `json:"late"`
}

// footprint is what a process holds.
type footprint struct {
	Descriptors int    `json:"descriptors"`
	Goroutines  int    `json:"goroutines"`
	Programs    int    `json:"programs"`  // of BPF
	MapCount    int    `json:"map_count"` // of BPF
	Heap        uint64 `json:"heap"`      // bytes in use
	Resident    uint64 `json:"resident"`  // bytes of the process in memory
	Maps        uint64 `json:"maps"`      // bytes of the kernel's maps
}

// grown is the first thing that there is more of in late than a leak's absence
// explains, empty if there is none.
func (f footprint) grown(late footprint) string {
	switch {
	case late.Descriptors > f.Descriptors:
		return "descriptors"
	case late.Goroutines > f.Goroutines:
		return "goroutines"
	case late.Programs > f.Programs || late.MapCount > f.MapCount:
		return "BPF programs or maps"
	case late.Heap > f.Heap+heapSlack || late.Resident > f.Resident+residentSlack || late.Maps > f.Maps+mapsSlack:
		return "memory"
	}
	return ""
}

// What may grow without being a leak, in bytes: garbage, and the rules that
// happen to be there.
const (
	heapSlack     = 16 << 20
	residentSlack = 32 << 20
	mapsSlack     = 1 << 20
)

// Wrong is an error if the soak has found anything wrong.
func (r *SoakResult) Wrong() error {
	switch {
	case r.WrongVerdicts > 0:
		return fmt.Errorf("%d wrong verdicts: %s", r.WrongVerdicts, r.Example)
	case r.Checked == 0:
		return fmt.Errorf("no verdict was checked")
	case r.RulesLost != 0:
		return fmt.Errorf("%d rules are lost", r.RulesLost)
	case r.LeftOver > 0:
		return fmt.Errorf("%d descriptors are left open", r.LeftOver)
	}
	if what := r.Early.grown(r.Late); what != "" {
		return fmt.Errorf("%s have grown: %+v, then %+v", what, r.Early, r.Late)
	}
	return nil
}

// Print writes the result for people.
func (r SoakResult) Print(w io.Writer) error {
	p := &printer{w: w}
	p.line("%s, %d rules, %.0f s: %d packets judged (%.0f a second), %d updates in %d Writes (%.0f a second)",
		r.Datapath, r.Rules, r.Seconds, r.Packets, float64(r.Packets)/r.Seconds, r.Updates, r.Writes, float64(r.Writes)/r.Seconds)
	p.line("verdicts checked %d, wrong %d; rules lost %d; descriptors left open %d; process killed and started again %d times",
		r.Checked, r.WrongVerdicts, r.RulesLost, r.LeftOver, r.Restarts)
	p.line("%-12s %12s %12s %12s %12s %12s %12s %12s", "", "descriptors", "goroutines", "programs", "maps", "heap KiB", "resident KiB", "maps KiB")
	for _, f := range []struct {
		name string
		footprint
	}{{"warm", r.Early}, {"at the end", r.Late}} {
		p.line("%-12s %12d %12d %12d %12d %12d %12d %12d", f.name, f.Descriptors, f.Goroutines, f.Programs, f.MapCount, f.Heap>>10, f.Resident>>10, f.Maps>>10)
	}
	return p.err
}
