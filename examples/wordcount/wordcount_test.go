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
	"time"

	"github.com/bifrost-rack/bifrost/bifrosttest"
	"github.com/bifrost-rack/bifrost/examples/wordcount/words"
	"github.com/bifrost-rack/bifrost/rpc"
	"github.com/bifrost-rack/bifrost/rpc/gen"
)

// programs are those of app.yaml and a job, which tells when it is over, by a channel
// that has to be made in the test's virtual time.
func programs(job words.Job, over *chan map[string]int64) map[string]bifrosttest.Program {
	return map[string]bifrosttest.Program{
		"wordcount": func(ctx context.Context, node *rpc.Node, args []string) error {
			for _, name := range args[1:] { // serve SERVICE...
				if err := words.Serve(ctx, node, name); err != nil {
					return err
				}
			}
			return bifrosttest.Serve(ctx, nil)
		},
		"job": func(ctx context.Context, node *rpc.Node, _ []string) error {
			job := job // as it is when the program starts
			job.Deliver = func(total map[string]int64) error {
				select {
				case *over <- total:
				default: // once more
				}
				return nil
			}
			return job.Run(ctx, node)
		},
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
	job := words.Job{Name: jobName(files), Files: files, Part: 4096, Parallel: 3}
	for seed, net := range []bifrosttest.Network{{}, bifrosttest.Bad, bifrosttest.Bad} {
		t.Run(fmt.Sprint("seed=", seed), func(t *testing.T) {
			cfg := bifrosttest.Config{Seed: uint64(seed), Network: net, Programs: programs(job, nil)}
			bifrosttest.Run(t, cfg, func(t *testing.T, r *bifrosttest.Rack) {
				r.Deploy("app.yaml")
				n := r.Client()
				job := job
				delivered := 0
				job.Deliver = func(got map[string]int64) error {
					if delivered++; !maps.Equal(got, want) {
						t.Errorf("%v, want %v", got, want)
					}
					return nil
				}
				if err := job.Run(r.Context(), n); err != nil {
					t.Fatal(err)
				}
				if delivered != 1 {
					t.Errorf("delivered %d times", delivered)
				}
				if err := n.Close(r.Context()); err != nil {
					t.Fatal(err)
				}
				if n := r.Regions(); n != 0 {
					t.Errorf("%d regions are left", n)
				}
			})
		})
	}
}

// TestCorpus: several nodes read the shared texts, which stand in memory once, again and again; after the end nobody does, and nothing is left.
func TestCorpus(t *testing.T) {
	files, want := texts(t, 3, 500)
	bifrosttest.Run(t, bifrosttest.Config{}, func(t *testing.T, r *bifrosttest.Rack) {
		var all [][]byte
		for _, file := range files {
			b, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, b)
		}
		owner := r.Client()
		corpus, err := words.ServeCorpus(r.Context(), owner, append(all, nil))
		if err != nil {
			t.Fatal(err)
		}
		regions := r.Regions()
		for range 2 {
			reader := r.Client()
			for range 2 {
				opened, err := words.OpenTexts(r.Context(), reader)
				if err != nil {
					t.Fatal(err)
				}
				got, err := opened.Count(r.Context())
				if err != nil || !maps.Equal(got, want) {
					t.Errorf("%v, want %v: %v", got, want, err)
				}
			}
		}
		if n := r.Regions(); n != regions+len(files) {
			t.Errorf("%d regions for %d texts and four readings", n-regions, len(files))
		}
		late, err := words.OpenTexts(r.Context(), r.Client())
		if err != nil {
			t.Fatal(err)
		}
		if err := corpus.Close(r.Context()); err != nil {
			t.Fatal(err)
		}
		if _, err := late.Count(r.Context()); rpc.CodeOf(err) != rpc.PermissionDenied {
			t.Errorf("after the end: %v", err)
		}
		if n := r.Regions(); n != 0 {
			t.Errorf("%d regions are left", n)
		}
	})
}

// TestCrashes: the job's main, the workers, their blades and the Gatekeeper crash again
// and again, and no word is lost or counted twice.
func TestCrashes(t *testing.T) {
	files, want := texts(t, 3, 50000)
	all := map[string]int{}
	seeds := uint64(3)
	if testing.Short() {
		seeds = 1
	}
	for seed := range seeds {
		t.Run(fmt.Sprint("seed=", seed), func(t *testing.T) {
			var over chan map[string]int64
			job := words.Job{Name: "job", Files: files, Part: 17 << 10, Parallel: 3} // so that texts stand in memory
			cfg := bifrosttest.Config{Seed: seed, Network: bifrosttest.Network{Delay: 20 * time.Microsecond}, Programs: programs(job, &over)}
			bifrosttest.Run(t, cfg, func(t *testing.T, r *bifrosttest.Rack) {
				over = make(chan map[string]int64, 1)
				r.Deploy("app.yaml")
				r.DeployText("name: job\nprograms: [{name: job, command: [job], job: true}]")
				done, did := make(chan struct{}), make(chan map[string]int, 1)
				go func() { did <- r.Trouble(3, done) }()
				select {
				case got := <-over:
					if !maps.Equal(got, want) {
						t.Errorf("%v, want %v", got, want)
					}
				case <-r.Context().Done():
					t.Error("the job does not end")
				}
				close(done)
				for what, n := range <-did {
					all[what] += n
				}
				if n := r.Regions(); n != 0 {
					t.Errorf("%d regions are left", n)
				}
			})
		})
	}
	if t.Log(all); len(all) < 3 && !testing.Short() {
		t.Errorf("too little has gone wrong to show anything")
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
	files, err := gen.Generate("wordcount.thrift", os.ReadFile, gen.Options{PackagePrefix: "github.com/bifrost-rack/bifrost/rpc/idl/"})
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
