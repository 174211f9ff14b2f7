package simrack_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/bifrost-rack/bifrost/dsm"
	"github.com/bifrost-rack/bifrost/examples/arrays/gen-go/arrays"
	"github.com/bifrost-rack/bifrost/examples/arrays/service"
	"github.com/bifrost-rack/bifrost/gatekeeper"
	"github.com/bifrost-rack/bifrost/gatekeeper/log"
	"github.com/bifrost-rack/bifrost/gatekeeper/resources"
	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/join"
	"github.com/bifrost-rack/bifrost/internal/simrack"
	"github.com/bifrost-rack/bifrost/internal/wire"
	"github.com/bifrost-rack/bifrost/rpc"
)

// TestLedgersSurviveRackOff switches the whole rack off and on, power and all, with ledgers on
// disk: each life of a program reads what the former ones have written, and goes on. So it is
// on a machine with one copy, and on one with two.
func TestLedgersSurviveRackOff(t *testing.T) {
	for _, copies := range []int{1, 2} {
		t.Run(fmt.Sprintf("copies=%d", copies), func(t *testing.T) {
			dir := t.TempDir()
			synctest.Test(t, func(t *testing.T) { rackOff(t, dir, copies) })
		})
	}
}

func rackOff(t *testing.T, dir string, copies int) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Hour)
	defer cancel()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	blades := []string{"c1", "m1"}
	cfg := simrack.Config{
		Blades:   []simrack.Blade{{Name: "c1", Kind: control.Compute}, {Name: "m1", Kind: control.Memory}},
		Schedule: &wire.Schedule{Seed: 1, Settle: synctest.Wait}, Disk: new(log.Disk), LedgerDir: dir, Ledgers: gatekeeper.LedgersShadow,
	}
	if copies == 2 {
		blades = append(blades, "m2")
		cfg.Blades = append(cfg.Blades, simrack.Blade{Name: "m2", Kind: control.Memory})
		cfg.Machines = [][]string{{"m1", "m2"}}
	}
	lives := make(chan []string)
	cfg.Programs = map[string]simrack.Program{"writer": func(ctx context.Context, j join.Joiner, s control.Start) error {
		seen := &seeing{Joiner: j}
		node, err := rpc.Join(join.NewContext(ctx, seen), rpc.WithName(s.Name))
		if err != nil {
			return err
		}
		if err := node.Export(ctx, "Arrays", arrays.NewArraysProcessor(service.Arrays{})); err != nil {
			return err
		}
		read, err := writeLife(ctx, node, seen.identity)
		if err != nil {
			return err
		}
		lives <- read
		<-ctx.Done()
		return nil
	}}
	rack, err := simrack.Start(ctx, cfg)
	must(err)
	must(rack.Gatekeeper().Deploy(ctx, resources.Spec{Name: "writer", Programs: []resources.Program{{
		Name: "p", Args: []string{"writer"}, Nodes: 1, Services: []resources.ServiceSpec{{Name: "Arrays"}},
	}}}))
	for life := range 4 {
		if life > 0 {
			rack.CrashGatekeeper()
			for _, b := range blades {
				must(rack.CrashBlade(b))
			}
			<-time.After(time.Minute) // virtual: it is dark
			for _, b := range blades {
				must(rack.BootBlade(b))
			}
			must(rack.RestartGatekeeper(ctx))
		}
		select {
		case read := <-lives:
			if len(read) != 10*life {
				t.Errorf("life %d reads %d records: %q", life, len(read), read)
			}
		case <-ctx.Done():
			t.Fatalf("life %d does not begin", life)
		}
	}
	must(rack.Close())
}

// seeing is a Joiner that tells which node came of it.
type seeing struct {
	join.Joiner
	identity join.Identity
}

func (s *seeing) Join(ctx context.Context, name string) (join.Session, error) {
	session, err := s.Joiner.Join(ctx, name)
	if err == nil {
		s.identity = session.Node()
	}
	return session, err
}

// writeLife reads what former lives of a node have left, and writes ten records.
func writeLife(ctx context.Context, node *rpc.Node, id join.Identity) (read []string, err error) {
	l, err := node.Memory().OpenLedger(dsm.LedgerConfig{Machine: id.Ledger.Machine, Birth: id.Ledger.Birth, Run: id.Incarnation})
	if err != nil {
		return nil, err
	}
	if err := l.Read(ctx, func(b []byte) error { read = append(read, string(b)); return nil }); err != nil {
		return nil, err
	}
	last := uint64(0)
	for i := range 10 {
		last = l.Append(fmt.Appendf(nil, "incarnation %d: %d", id.Incarnation, i))
	}
	return read, l.Wait(ctx, last)
}
