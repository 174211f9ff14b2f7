package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/bifrost-rack/bifrost/bifrosttest"
	"github.com/bifrost-rack/bifrost/examples/pipeline/gen-go/pipeline"
	"github.com/bifrost-rack/bifrost/examples/pipeline/stages"
	"github.com/bifrost-rack/bifrost/rpc"
	"github.com/bifrost-rack/bifrost/rpc/gen"
)

// onRack runs f in virtual time with each stage on a blade of its own.
func onRack(t *testing.T, seed uint64, net bifrosttest.Network, f func(ctx context.Context, client *rpc.Node)) {
	t.Helper()
	cfg := bifrosttest.Config{Seed: seed, Network: net, Compute: stages.Names}
	bifrosttest.Run(t, cfg, func(t *testing.T, r *bifrosttest.Rack) {
		for _, name := range stages.Names {
			if err := stages.Serve(r.Context(), r.Node(name, name), name); err != nil {
				t.Fatal(err)
			}
		}
		f(r.Context(), r.Client())
		if n := r.Regions(); n != 0 {
			t.Errorf("%d regions are left", n)
		}
	})
}

// fruit is a text with so many lines of three kinds, shuffled, and what the
// pipeline makes of it.
func fruit(apples, pears, plums int, end string) (text []byte, want string) {
	var list []string
	for i, n := range []int{apples, pears, plums} {
		list = append(list, slices.Repeat([]string{[]string{"apple", "pear", "plum"}[i] + end}, n)...)
	}
	rand.New(rand.NewPCG(1, uint64(len(list)))).Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
	return []byte(strings.Join(list, "")), fmt.Sprintf("%d pear\n%d plum\n%d apple\n", pears, plums, apples)
}

func TestPipeline(t *testing.T) {
	onRack(t, 1, bifrosttest.Network{}, func(ctx context.Context, client *rpc.Node) {
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
	onRack(t, 1, bifrosttest.Network{}, func(ctx context.Context, client *rpc.Node) {
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
			onRack(t, seed+1, bifrosttest.Bad, func(ctx context.Context, client *rpc.Node) {
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
