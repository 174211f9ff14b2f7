package simrack_test

import (
	"context"
	"errors"
	"log/slog"
	"testing"

	"github.com/bifrost-rack/bifrost/examples/counter/tally"
	"github.com/bifrost-rack/bifrost/gatekeeper"
	"github.com/bifrost-rack/bifrost/gatekeeper/resources"
	"github.com/bifrost-rack/bifrost/gatekeeper/wal"
	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/join"
	"github.com/bifrost-rack/bifrost/internal/simrack"
	"github.com/bifrost-rack/bifrost/rpc"
)

// BenchmarkRecovery is the time from the death of a service's program to the next
// right answer of that service: fence, rollback, start, join, state, delivery.
// Programs are functions here, so that of starting a process comes on top.
func BenchmarkRecovery(b *testing.B) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	serve := func(ctx context.Context, j join.Joiner, s control.Start) error {
		node, err := rpc.Join(join.NewContext(ctx, j), rpc.WithName(s.Name), rpc.WithLogger(slog.New(slog.DiscardHandler)))
		if err == nil {
			err = tally.Serve(ctx, node, tally.CounterName)
		}
		if err != nil {
			return err
		}
		<-ctx.Done()
		if errors.Is(context.Cause(ctx), simrack.ErrKilled) {
			return nil
		}
		return node.Close(context.WithoutCancel(ctx))
	}
	r, err := simrack.Start(ctx, simrack.Config{Disk: new(wal.Disk), Programs: map[string]simrack.Program{"counter": serve}})
	if err != nil {
		b.Fatal(err)
	}
	defer r.Close()
	node, err := r.Join(ctx, "c1", "client")
	if err != nil {
		b.Fatal(err)
	}
	to, err := tally.Open(node, tally.CounterName)
	if err != nil {
		b.Fatal(err)
	}
	add := func(want int64) {
		amounts := rpc.RefOf(one())
		got, err := to.Add(ctx, 0, amounts)
		for rpc.CodeOf(err) == rpc.NoSuchMethod || rpc.CodeOf(err) == rpc.Unavailable { // it has not exported it yet
			got, err = to.Add(ctx, 0, amounts)
		}
		if err != nil || got != want {
			b.Fatalf("added: %d, %v; want %d", got, err, want)
		}
	}
	app := resources.Spec{Name: "app", Programs: []resources.Program{{
		Name: "p", Args: []string{"counter"}, Nodes: 1, Blades: []string{"s1"}, Services: []resources.ServiceSpec{{Name: tally.CounterName, Stateful: true}},
	}}}
	events := r.Gatekeeper().Subscribe(ctx)
	for b.Loop() {
		b.StopTimer() // a program that dies again and again is started later and later, so it is deployed anew
		if err := r.Gatekeeper().Deploy(ctx, app); err != nil {
			b.Fatal(err)
		}
		add(1)
		add(2)
		b.StartTimer()
		if err := r.Kill("s1", "app/p/1"); err != nil {
			b.Fatal(err)
		}
		add(3)
		b.StopTimer()
		if err := r.Gatekeeper().Undeploy(ctx, app.Name); err != nil {
			b.Fatal(err)
		}
		for e := range events {
			if e.Kind == gatekeeper.NodeLeft {
				break
			}
		}
		b.StartTimer()
	}
}
