package main

import (
	"context"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/bifrost-rack/bifrost/examples/arrays/gen-go/arrays"
	"github.com/bifrost-rack/bifrost/examples/arrays/service"
	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/join"
	"github.com/bifrost-rack/bifrost/internal/simrack"
	"github.com/bifrost-rack/bifrost/rpc"
)

// nothing is the state of a service that has none to speak of.
type nothing struct{}

func (nothing) Snapshot() ([]byte, error) { return nil, nil }
func (nothing) Restore([]byte) error      { return nil }

// TestForget: a node whose program was started by hand, keeps a state and has ended is shown as one that waits, and no longer
// as one that runs on its blade. It is there until it is forgotten.
func TestForget(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	t.Cleanup(cancel)
	rack, err := simrack.Start(ctx, simrack.Config{Heartbeat: time.Minute, Machines: [][]string{{"m1", "m2"}}})
	must(t, err)
	t.Cleanup(func() { must(t, rack.Close()) })
	address := serveRackAdmin(ctx, t, rack)
	up := make(chan error, 1)
	_, err = rack.Run("s1", "counter", func(ctx context.Context, j join.Joiner, _ control.Start) error {
		n, err := rpc.Join(join.NewContext(ctx, j), rpc.WithName("counter"))
		if err == nil {
			err = n.Export(ctx, "Counter", arrays.NewPingProcessor(service.Ping{}), rpc.WithState(nothing{}))
		}
		up <- err
		<-ctx.Done()
		return err
	})
	must(t, err)
	must(t, <-up)
	out, err := bifrost(t, "nodes", "--admin-addr", address)
	must(t, err)
	node := strings.Fields(strings.Split(out, "\n")[1])[0]
	if out, err := bifrost(t, "forget", node, "--admin-addr", address); err == nil || !strings.Contains(err.Error(), "end it first") {
		t.Errorf("a node that is there: %q, %v", out, err)
	}
	must(t, rack.Kill("s1", "counter"))
	awaited := regexp.MustCompile(`\n` + node + ` +counter +s1 +1 +- +- +waits for its program since \d{4}-\d\d-\d\d \d\d:\d\d:\d\d\n$`)
	for out = ""; !awaited.MatchString(out); {
		if ctx.Err() != nil {
			t.Fatalf("nodes: %s", out)
		}
		out, err = bifrost(t, "nodes", "--admin-addr", address)
		must(t, err)
	}
	if out, err = bifrost(t, "status", "--admin-addr", address); err != nil || !strings.Contains(out, "\n0 nodes, ") || strings.Contains(out, "s1/counter") {
		t.Errorf("status: %s, %v", out, err)
	}
	if out, err = bifrost(t, "__complete", "forget", "--admin-addr", address, ""); err != nil || !strings.Contains(out, node+"\ts1/counter") {
		t.Errorf("completion: %s, %v", out, err)
	}
	if out, err = bifrost(t, "forget", "counter", "--admin-addr", address); err == nil || !strings.Contains(err.Error(), "bifrost nodes") {
		t.Errorf("a name: %s, %v", out, err)
	}
	if out, err = bifrost(t, "forget", node, "--admin-addr", address); err != nil || out != "s1/counter is forgotten\n" {
		t.Errorf("forget: %s, %v", out, err)
	}
	for strings.Contains(out, node) || out == "s1/counter is forgotten\n" {
		if ctx.Err() != nil {
			t.Fatalf("nodes: %s", out)
		}
		out, err = bifrost(t, "nodes", "--admin-addr", address)
		must(t, err)
	}
}
