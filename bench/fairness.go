package bench

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/bifrost-rack/bifrost/bench/agent"
	"github.com/bifrost-rack/bifrost/bench/peer"
	"github.com/bifrost-rack/bifrost/bench/stats"
	"github.com/bifrost-rack/bifrost/bench/topology"
	"github.com/bifrost-rack/bifrost/gatekeeper/admin/client"
	"github.com/bifrost-rack/bifrost/rack/config"
)

// MostSlower is how many times as long as without a flood the slowest hundredth of calls with
// pointers may take while another blade floods.
const MostSlower = 3

// LeastFlood is how many packets a second are a flood. What has less CPU time than that shows
// nothing: the machine is busy with something else.
const LeastFlood = 10_000

// Dropped is the class of a flood that reaches nobody but the switch. What it does to others
// is the work of sending and dropping packets on their CPUs, not a queue that they wait in.
const Dropped = "dropped"

// Hog is the class that sends nothing, and keeps the flood's CPU busy.
const Hog = "hog"

// Fairness asks what the flood of one blade does to the calls of others.
type Fairness struct {
	Bifrost, Rack string
	// For is how long each class is flooded.
	For time.Duration
	// Classes are those to flood with; all if it is empty.
	Classes []string
	// OwnCPU gives the flood the last CPU, at this process's priority, and everything else the others,
	// as a real blade has CPUs of its own. What a flood does to others is then the work that it
	// makes for switch and Gatekeeper, and no lack of CPU time beside. The figure that others are
	// compared with is one beside a hog on the flood's CPU.
	OwnCPU   bool
	Progress func(format string, args ...any)
}

// Fair is what one class of flood did.
type Fair struct {
	Class string `json:"class"` // "" without a flood
	stats.Summary
	// Flood is how many packets a second the flood has sent.
	Flood float64 `json:"flood,omitempty"`
	// Failed are the blades that are not in service after it.
	Failed []string `json:"failed,omitempty"`
}

// fairPeer is whose calls are measured.
const fairPeer = "bifrost-exact"

// fairWork is what they do. Their arrays are in regions.
var fairWork = peer.Work{Op: peer.Increment, Size: 128 << 10}

// Run makes a rack, measures calls with pointers from c1 to s1 in peace, and then while s2 floods
// in each class.
func (f *Fairness) Run(ctx context.Context) (results []Fair, err error) {
	c := config.Thesis()
	c.Name = f.Rack
	c.Unmirrored()
	host := host(f.Bifrost)
	cpus := AssignCPUs(runtime.NumCPU())
	if f.OwnCPU {
		if cpus, err = f.leaveCPU(); err != nil {
			return nil, err
		}
	}
	n, err := topology.Up(ctx, host, c, f.Progress)
	if err != nil {
		return nil, err
	}
	l := &Lab{Topology: n, Bifrost: f.Bifrost, CPUs: cpus, Progress: f.Progress}
	defer func() { err = errors.Join(err, n.Close()) }()
	var exact peer.Peer
	for _, p := range peer.All {
		if p.Name == fairPeer {
			exact = p
		}
	}
	pair, err := l.pair(ctx, exact, false, serverBlade)
	if err != nil {
		return nil, err
	}
	defer pair.close()
	admin, err := client.New(client.Config{Address: "unix:" + host.AdminSocket(c.Name)})
	if err != nil {
		return nil, err
	}
	classes := f.Classes
	if len(classes) == 0 {
		classes = FloodClasses
	}
	quiet := []string{""}
	if f.OwnCPU {
		quiet = append(quiet, Hog)
	}
	for _, class := range slices.Concat(quiet, classes) {
		f.Progress("%s flood for %v", class, f.For)
		r, err := f.one(ctx, l, pair, class)
		if err != nil {
			return results, err
		}
		blades, err := admin.Blades(ctx)
		if err != nil {
			return results, err
		}
		for _, b := range blades {
			if b.Status == "failed" {
				r.Failed = append(r.Failed, b.Name)
			}
		}
		results = append(results, r)
	}
	return results, nil
}

// leaveCPU keeps this process, and what it starts, off the last CPU.
func (f *Fairness) leaveCPU() (CPUs, error) {
	n := runtime.NumCPU()
	if n < 2 {
		return CPUs{}, errors.New("a CPU for the flood alone: this machine has one CPU")
	}
	var others []int
	for i := range n - 1 {
		others = append(others, i)
	}
	cpus := AssignCPUs(n - 1)
	return cpus, agent.Pin(others)
}

// one measures while a class is flooded.
func (f *Fairness) one(ctx context.Context, l *Lab, p *pair, class string) (r Fair, err error) {
	r.Class = class
	if class != "" {
		args := []string{"bench", "flood", class}
		if f.OwnCPU {
			args = append(args, "--cpu", strconv.Itoa(runtime.NumCPU()-1))
		}
		flood := exec.CommandContext(ctx, l.Bifrost, args...)
		// Linux shares a CPU among sessions first (sched_autogroup), and a session's part of one CPU is
		// small while it keeps another one busy. In the session of those that are measured, the flood
		// would take their time though it runs elsewhere.
		flood.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
		var sent bytes.Buffer
		flood.Stdout, flood.Stderr = &sent, os.Stderr
		if err := l.Start(otherBlade, flood); err != nil {
			return r, err
		}
		began := time.Now()
		defer func() {
			took := time.Since(began)
			werr := errors.Join(flood.Process.Signal(os.Interrupt), flood.Wait())
			n, perr := strconv.ParseUint(strings.TrimSpace(sent.String()), 10, 64)
			r.Flood = float64(n) / took.Seconds()
			if werr = errors.Join(werr, perr); werr != nil {
				err = errors.Join(err, fmt.Errorf("flood of %s: %w", class, werr))
			}
		}()
	}
	done, err := p.client.Ask(ctx, agent.Request{Measure: &agent.Measure{Work: fairWork, Callers: 1, Warmup: time.Second, For: f.For}})
	if err != nil {
		return r, fmt.Errorf("while %s is flooded: %w", class, err)
	}
	r.Summary = *done.Result
	return r, nil
}

// Base is the result that the others are compared with: beside a hog if there is one, else
// without a flood.
func Base(results []Fair) Fair {
	if i := slices.IndexFunc(results, func(r Fair) bool { return r.Class == Hog }); i >= 0 {
		return results[i]
	}
	return results[0]
}

// Judge returns what is not as it should be, nil if all is.
func Judge(results []Fair) (err error) {
	quiet := Base(results).P99
	var dropped float64
	for _, r := range results {
		if r.Class == Dropped {
			dropped = r.P99
		}
		if len(r.Failed) > 0 {
			err = errors.Join(err, fmt.Errorf("a flood of %s: blades %v have failed", r.Class, r.Failed))
		}
		if r.Class != "" && r.Class != Hog && r.Flood < LeastFlood {
			err = errors.Join(err, fmt.Errorf("a flood of %s: %.0f packets a second are none: this machine is busy with something else", r.Class, r.Flood))
		}
		if r.Class != Dropped && r.P99 > MostSlower*quiet {
			err = errors.Join(err, fmt.Errorf("a flood of %s: p99 %.0f µs, more than %d times %.0f µs; with one that the switch drops it is %.0f µs", r.Class, r.P99, MostSlower, quiet, dropped))
		}
	}
	return err
}
