package bench

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"runtime"
	"time"

	"github.com/bifrost-rack/bifrost/bench/agent"
	"github.com/bifrost-rack/bifrost/bench/peer"
	"github.com/bifrost-rack/bifrost/bench/stats"
	"github.com/bifrost-rack/bifrost/bench/topology"
	"github.com/bifrost-rack/bifrost/gatekeeper/admin/client"
	"github.com/bifrost-rack/bifrost/rack/config"
)

// MostSlower is how many times as long as without a flood the slowest hundredth of held
// calls may take while another blade floods.
const MostSlower = 3

// Dropped is the class of a flood that reaches nobody but the switch. What it does to others
// is the work of sending and dropping packets on their CPUs, not a queue that they wait in.
const Dropped = "dropped"

// Fairness asks what the flood of one blade does to the held calls of others.
type Fairness struct {
	Bifrost, Rack string
	// For is how long each class is flooded.
	For      time.Duration
	Progress func(format string, args ...any)
}

// Fair is what one class of flood did.
type Fair struct {
	Class string `json:"class"` // "" without a flood
	stats.Summary
	// Failed are the blades that are not in service after it.
	Failed []string `json:"failed,omitempty"`
}

// fairPeer is whose calls are measured: exactly-once, so each is held, and its answer.
const fairPeer = "bifrost-exact"

// Run makes a rack, measures held calls from c1 to s1 in peace, and then while s2 floods
// in each class.
func (f *Fairness) Run(ctx context.Context) (results []Fair, err error) {
	c := config.Thesis()
	c.Name = f.Rack
	c.Unmirrored()
	c.Direct = false // direct calls do not pass the Gatekeeper
	host := host(f.Bifrost)
	n, err := topology.Up(ctx, host, c, f.Progress)
	if err != nil {
		return nil, err
	}
	l := &Lab{Topology: n, Bifrost: f.Bifrost, CPUs: AssignCPUs(runtime.NumCPU()), Progress: f.Progress}
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
	for _, class := range append([]string{""}, FloodClasses...) {
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

// one measures while a class is flooded.
func (f *Fairness) one(ctx context.Context, l *Lab, p *pair, class string) (r Fair, err error) {
	r.Class = class
	if class != "" {
		flood := exec.CommandContext(ctx, l.Bifrost, "bench", "flood", class)
		if err := l.Start(otherBlade, flood); err != nil {
			return r, err
		}
		defer func() {
			_ = flood.Process.Kill() // it never ends by itself
			_ = flood.Wait()
		}()
	}
	done, err := p.client.Ask(ctx, agent.Request{Measure: &agent.Measure{Work: peer.Work{Op: peer.Ping}, Callers: 1, Warmup: time.Second, For: f.For}})
	if err != nil {
		return r, fmt.Errorf("while %s is flooded: %w", class, err)
	}
	r.Summary = *done.Result
	return r, nil
}

// Judge returns what is not as it should be, nil if all is.
func Judge(results []Fair) (err error) {
	quiet := results[0].P99
	var dropped float64
	for _, r := range results {
		if r.Class == Dropped {
			dropped = r.P99
		}
		if len(r.Failed) > 0 {
			err = errors.Join(err, fmt.Errorf("a flood of %s: blades %v have failed", r.Class, r.Failed))
		}
		if r.Class != Dropped && r.P99 > MostSlower*quiet {
			err = errors.Join(err, fmt.Errorf("a flood of %s: p99 %.0f µs, more than %d times %.0f µs; with one that the switch drops it is %.0f µs", r.Class, r.P99, MostSlower, quiet, dropped))
		}
	}
	return err
}
