// Package applab runs an example's app on the simulated rack, as bifrost deploy would,
// and breaks what it runs on: for the tests of the examples.
//
//	app.yaml ─▶ Gatekeeper ─▶ daemons ─▶ Main, a function in place of the program
//	Trouble ──▶ kills programs, pulls blades' plugs, crashes the Gatekeeper
package applab

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/bifrost-rack/bifrost/gatekeeper/appfile"
	"github.com/bifrost-rack/bifrost/gatekeeper/log"
	"github.com/bifrost-rack/bifrost/gatekeeper/resources"
	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/join"
	"github.com/bifrost-rack/bifrost/internal/simrack"
	"github.com/bifrost-rack/bifrost/internal/wire"
	"github.com/bifrost-rack/bifrost/rpc"
)

// Main is a program of the app: it has joined, and gets its arguments from app.yaml.
// One that returns nil leaves in an orderly way when the rack lets it, unless it has
// been killed; an error ends it as an exit code does.
type Main func(ctx context.Context, node *rpc.Node, args []string) error

// Lab is a rack in virtual time.
type Lab struct {
	*testing.T
	*simrack.Rack
	// Context ends when the test has taken ten minutes.
	Context context.Context

	rng *rand.Rand // of Trouble
}

// Bad loses, doubles, reorders and delays packets.
var Bad = wire.Impairment{
	Delay: 20 * time.Microsecond, Jitter: 20 * time.Microsecond, Loss: 0.03, Duplicate: 0.03, Reorder: 0.03, Late: 0.03,
}

// Run makes the thesis's rack with a Gatekeeper that logs, and calls f. Programs are
// those that apps may run, by name; the seed decides what a bad network and Trouble do.
func Run(t *testing.T, seed uint64, impair wire.Impairment, programs map[string]Main, f func(l *Lab)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
		defer cancel()
		cfg := simrack.Config{
			Disk: new(log.Disk), Schedule: &wire.Schedule{Seed: seed, Settle: synctest.Wait}, Impair: impair,
			Programs: map[string]simrack.Program{},
		}
		for name, main := range programs {
			cfg.Programs[name] = program(name, main)
		}
		r, err := simrack.Start(ctx, cfg)
		if err != nil {
			t.Fatal(err)
		}
		f(&Lab{T: t, Rack: r, Context: ctx, rng: rand.New(rand.NewPCG(seed, 11))})
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
}

// program is what the rack runs for a Main.
func program(name string, main Main) simrack.Program {
	return func(ctx context.Context, j join.Joiner, s control.Start) error {
		node, err := rpc.Join(ctx, rpc.WithName(name), rpc.WithJoiner(j), rpc.WithLogger(slog.New(slog.DiscardHandler)))
		if err != nil {
			return err
		}
		err = main(ctx, node, s.Args[1:])
		if err != nil || errors.Is(context.Cause(ctx), simrack.ErrKilled) {
			return err // not another word
		}
		closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
		defer cancel()
		return node.Close(closing)
	}
}

// Until is a Main's way to serve until it is told to end.
func Until(ctx context.Context, err error) error {
	if err == nil {
		<-ctx.Done()
	}
	return err
}

// Must ends the test on an error.
func (l *Lab) Must(err error) {
	l.Helper()
	if err != nil {
		l.Fatal(err)
	}
}

// Deploy deploys the app of a file on s1 and s2, for c1 is the clients', and waits until
// it runs.
func (l *Lab) Deploy(file string) {
	l.Helper()
	spec, err := appfile.Read(file)
	l.Must(err)
	for i := range spec.Programs {
		spec.Programs[i].Blades = []string{"s1", "s2"}
	}
	l.Must(l.Gatekeeper().Deploy(l.Context, spec))
	l.wait(l.allRun)
}

// allRun reports whether every instance runs.
func (l *Lab) allRun() bool {
	for _, i := range l.instances() {
		if i.Status != resources.Running && !i.Done {
			return false
		}
	}
	return true
}

// instances are what runs, or is about to.
func (l *Lab) instances() (all []resources.Instance) {
	l.Helper()
	ds, err := l.Gatekeeper().Deployments(context.WithoutCancel(l.Context))
	l.Must(err)
	for i := range ds {
		all = append(all, ds[i].Instances...)
	}
	return all
}

// wait looks again and again, in virtual time, until something is so.
func (l *Lab) wait(is func() bool) {
	for !is() {
		select {
		case <-time.After(10 * time.Millisecond):
		case <-l.Context.Done():
			l.Errorf("waited in vain; what runs: %+v", l.instances())
			return
		}
	}
}

// Client is a node of a plain client on c1.
func (l *Lab) Client() *rpc.Node {
	l.Helper()
	n, err := l.Join(l.Context, "c1", "client")
	l.Must(err)
	return n
}

// Regions is how many regions there are once all that was under way has settled.
func (l *Lab) Regions() int {
	l.Helper()
	<-time.After(time.Minute)
	s, err := l.Gatekeeper().Snapshot(l.Context)
	l.Must(err)
	return len(s.Regions)
}
