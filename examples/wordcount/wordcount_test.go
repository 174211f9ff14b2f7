package main

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/bifrost-rack/bifrost/examples/wordcount/words"
	"github.com/bifrost-rack/bifrost/gatekeeper/log"
	"github.com/bifrost-rack/bifrost/internal/simrack"
	"github.com/bifrost-rack/bifrost/internal/wire"
	"github.com/bifrost-rack/bifrost/rpc/gen"
)

// bad loses, doubles, reorders and delays packets.
var bad = wire.Impairment{
	Delay: 20 * time.Microsecond, Jitter: 20 * time.Microsecond, Loss: 0.03, Duplicate: 0.03, Reorder: 0.03, Late: 0.03,
}

// world is a rack with the services on s1 and s2.
type world struct {
	*testing.T
	*simrack.Rack
	ctx context.Context
}

func onRack(t *testing.T, seed uint64, impair wire.Impairment, f func(w *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(context.Background(), time.Hour)
		defer cancel()
		r, err := simrack.Start(ctx, simrack.Config{
			Disk: new(log.Disk), Schedule: &wire.Schedule{Seed: seed, Settle: synctest.Wait}, Impair: impair,
		})
		w := &world{T: t, Rack: r, ctx: ctx}
		w.must(err)
		for _, blade := range []string{"s1", "s2"} {
			n, err := r.Join(ctx, blade, "workers")
			w.must(err)
			w.must(words.Serve(ctx, n, words.MapperName))
			w.must(words.Serve(ctx, n, words.ReducerName))
		}
		f(w)
		w.must(r.Close())
	})
}

func (w *world) must(err error) {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
}

// vocabulary is what texts are made of: one word more frequent than the other.
var vocabulary = strings.Fields("the rainbow bridge reaches from Midgard, world of men; to Asgard: world of gods and Heimdall keeps it.")

// texts makes files of so many words each, and says how often which occurs.
func texts(t *testing.T, files, length int) (names []string, want map[string]int64) {
	t.Helper()
	rng := rand.New(rand.NewPCG(1, 2))
	want = map[string]int64{}
	for i := range files {
		var b bytes.Buffer
		for range length {
			w := vocabulary[rng.IntN(rng.IntN(len(vocabulary))+1)]
			want[strings.ToLower(strings.Trim(w, ",;:."))]++
			fmt.Fprintf(&b, "%s%s", w, []string{" ", "\n", "\t", " - "}[rng.IntN(4)])
		}
		name := filepath.Join(t.TempDir(), fmt.Sprint(i))
		if err := os.WriteFile(name, b.Bytes(), 0o600); err != nil {
			t.Fatal(err)
		}
		names = append(names, name)
	}
	return names, want
}

func TestWordcount(t *testing.T) {
	files, want := texts(t, 3, 2000)
	for seed, impair := range []wire.Impairment{{}, bad, bad} {
		t.Run(fmt.Sprint("seed=", seed), func(t *testing.T) {
			onRack(t, uint64(seed), impair, func(w *world) {
				n, err := w.Join(w.ctx, "c1", "job")
				w.must(err)
				job := words.Job{Name: "job", Files: files, Part: 4096, Parallel: 3}
				got, err := job.Run(w.ctx, n)
				if err != nil || !maps.Equal(got, want) {
					t.Errorf("%v, %v; want %v", got, err, want)
				}
				w.must(n.Close(w.ctx))
				<-time.After(time.Minute) // virtual
				s, err := w.Gatekeeper().Snapshot(w.ctx)
				if err != nil || len(s.Regions) != 0 {
					t.Errorf("left behind: %+v, %v", s.Regions, err)
				}
			})
		})
	}
}

func TestPrintTop(t *testing.T) {
	var b strings.Builder
	if err := printTop(&b, map[string]int64{"b": 2, "a": 2, "c": 30, "d": 1}, 3); err != nil || b.String() != "     30 c\n      2 a\n      2 b\n" {
		t.Errorf("%q, %v", b.String(), err)
	}
}

// TestStubsAreFresh holds the committed stubs against the generator.
func TestStubsAreFresh(t *testing.T) {
	files, err := gen.Generate("wordcount.thrift", os.ReadFile, gen.Options{})
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		have, err := os.ReadFile(filepath.Join("gen-go", f.Name))
		if err != nil || !bytes.Equal(have, f.Content) {
			t.Errorf("%s is stale: go generate ./examples/wordcount (%v)", f.Name, err)
		}
	}
}
