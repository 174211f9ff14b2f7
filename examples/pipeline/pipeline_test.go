package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/bifrost-rack/bifrost/examples/pipeline/gen-go/pipeline"
	"github.com/bifrost-rack/bifrost/examples/pipeline/stages"
	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/simrack"
	"github.com/bifrost-rack/bifrost/internal/wire"
	"github.com/bifrost-rack/bifrost/rpc"
	"github.com/bifrost-rack/bifrost/rpc/gen"
)

// bad loses, doubles, reorders and delays packets.
var bad = wire.Impairment{
	Delay: 20 * time.Microsecond, Jitter: 20 * time.Microsecond, Loss: 0.03, Duplicate: 0.03, Reorder: 0.03, Late: 0.03,
}

// onRack runs f in virtual time with each stage on a blade of its own.
func onRack(t *testing.T, seed uint64, impair wire.Impairment, f func(ctx context.Context, r *simrack.Rack, client *rpc.Node)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(context.Background(), time.Hour)
		defer cancel()
		blades := []simrack.Blade{{Name: "c1", Kind: control.Compute}, {Name: "m1", Kind: control.Memory}, {Name: "m2", Kind: control.Memory}}
		for _, name := range stages.Names {
			blades = append(blades, simrack.Blade{Name: name, Kind: control.Compute})
		}
		r, err := simrack.Start(ctx, simrack.Config{
			Blades: blades, Schedule: &wire.Schedule{Seed: seed, Settle: synctest.Wait}, Impair: impair,
		})
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range stages.Names {
			n, err := r.Join(ctx, name, name)
			if err != nil {
				t.Fatal(err)
			}
			if err := stages.Serve(ctx, n, name); err != nil {
				t.Fatal(err)
			}
		}
		client, err := r.Join(ctx, "c1", "client")
		if err != nil {
			t.Fatal(err)
		}
		f(ctx, r, client)
		<-time.After(time.Minute) // virtual: whatever was under way has arrived
		s, err := r.Gatekeeper().Snapshot(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if len(s.Regions) != 0 {
			t.Errorf("left behind: %+v", s.Regions)
		}
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
}

// fruit is a text with so many lines of three kinds, shuffled, and what the
// pipeline makes of it.
func fruit(apples, pears, plums int, end string) (text []byte, want string) {
	var list []string
	for word, n := range map[string]int{"apple": apples, "pear": pears, "plum": plums} {
		for range n {
			list = append(list, word+end)
		}
	}
	rand.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
	return []byte(strings.Join(list, "")), fmt.Sprintf("%d pear\n%d plum\n%d apple\n", pears, plums, apples)
}

func TestPipeline(t *testing.T) {
	onRack(t, 1, wire.Impairment{}, func(ctx context.Context, _ *simrack.Rack, client *rpc.Node) {
		stage := pipeline.OpenStage(client, "Clean")
		for _, end := range []string{"\n", "\r\n"} {
			text, want := fruit(100, 30000, 2000, end)
			ref := rpc.RefOf(text)
			result, err := stage.Run(ctx, ref)
			if err != nil {
				t.Fatal(err)
			}
			got, err := result.Take(ctx)
			if err != nil || string(got) != want {
				t.Errorf("got %q, %v; want %q", got, err, want)
			}
			if err := ref.Free(ctx); err != nil {
				t.Error(err)
			}
		}
		got, err := pipeline.StageValues(stage).Run(ctx, nil)
		if err != nil || len(got) != 0 {
			t.Errorf("no text: %q, %v", got, err)
		}
	})
}

// TestBadText: an exception comes back through the stages, and nothing is left.
func TestBadText(t *testing.T) {
	onRack(t, 1, wire.Impairment{}, func(ctx context.Context, _ *simrack.Rack, client *rpc.Node) {
		var bad *pipeline.BadText
		_, err := pipeline.StageValues(pipeline.OpenStage(client, "Clean")).Run(ctx, []byte("a\n\xff\n"))
		if !errors.As(err, &bad) || bad.Stage != "Clean" || bad.Offset != 2 {
			t.Errorf("no UTF-8: %v", err)
		}
		_, err = pipeline.StageValues(pipeline.OpenStage(client, "Rank")).Run(ctx, []byte("no number\n"))
		if !errors.As(err, &bad) || bad.Stage != "Rank" {
			t.Errorf("no number: %v", err)
		}
	})
}

// TestBadNetwork: four texts at a time on a network that loses, doubles and
// reorders.
func TestBadNetwork(t *testing.T) {
	for seed := range uint64(3) {
		t.Run(fmt.Sprint("seed=", seed+1), func(t *testing.T) {
			onRack(t, seed+1, bad, func(ctx context.Context, _ *simrack.Rack, client *rpc.Node) {
				stage := pipeline.OpenStage(client, "Clean")
				var wg sync.WaitGroup
				for i := range 4 {
					wg.Go(func() {
						text, want := fruit(i, 3000+i, 200+i, "\r\n")
						if i == 0 {
							want = "3000 pear\n200 plum\n"
						}
						got, err := pipeline.StageValues(stage).Run(ctx, text)
						if err != nil || string(got) != want {
							t.Errorf("got %q, %v; want %q", got, err, want)
						}
					})
				}
				wg.Wait()
			})
		})
	}
}

// TestStubsAreFresh holds the committed stubs against the generator.
func TestStubsAreFresh(t *testing.T) {
	files, err := gen.Generate("pipeline.thrift", os.ReadFile, gen.Options{})
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		have, err := os.ReadFile(filepath.Join("gen-go", f.Name))
		if err != nil || !bytes.Equal(have, f.Content) {
			t.Errorf("%s is stale: go generate ./examples/pipeline (%v)", f.Name, err)
		}
	}
}
