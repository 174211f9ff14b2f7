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

	"github.com/bifrost-rack/bifrost/examples/wordcount/words"
	"github.com/bifrost-rack/bifrost/gatekeeper/resources"
	"github.com/bifrost-rack/bifrost/internal/applab"
	"github.com/bifrost-rack/bifrost/internal/wire"
	"github.com/bifrost-rack/bifrost/rpc"
	"github.com/bifrost-rack/bifrost/rpc/gen"
)

// programs are those of app.yaml and a job, which tells when it is over, by a channel
// that has to be made in the test's virtual time.
func programs(job words.Job, over *chan map[string]int64) map[string]applab.Main {
	return map[string]applab.Main{
		"wordcount": func(ctx context.Context, node *rpc.Node, args []string) error {
			for _, name := range args[1:] { // serve SERVICE...
				if err := words.Serve(ctx, node, name); err != nil {
					return err
				}
			}
			return applab.Until(ctx, nil)
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
	for seed, impair := range []wire.Impairment{{}, applab.Bad, applab.Bad} {
		t.Run(fmt.Sprint("seed=", seed), func(t *testing.T) {
			applab.Run(t, uint64(seed), impair, programs(job, nil), func(l *applab.Lab) {
				l.Deploy("app.yaml")
				n := l.Client()
				job := job
				delivered := 0
				job.Deliver = func(got map[string]int64) error {
					if delivered++; !maps.Equal(got, want) {
						t.Errorf("%v, want %v", got, want)
					}
					return nil
				}
				l.Must(job.Run(l.Context, n))
				if delivered != 1 {
					t.Errorf("delivered %d times", delivered)
				}
				l.Must(n.Close(l.Context))
				if n := l.Regions(); n != 0 {
					t.Errorf("%d regions are left", n)
				}
			})
		})
	}
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
			applab.Run(t, seed, wire.Impairment{Delay: 20 * time.Microsecond}, programs(job, &over), func(l *applab.Lab) {
				over = make(chan map[string]int64, 1)
				l.Deploy("app.yaml")
				l.Must(l.Gatekeeper().Deploy(l.Context, resources.Spec{Name: "job", Programs: []resources.Program{
					{Name: "job", Args: []string{"job"}, Nodes: 1, Job: true, Blades: []string{"s1", "s2"}},
				}}))
				done, did := make(chan struct{}), make(chan map[string]int, 1)
				go func() { did <- l.Trouble(10, done) }()
				select {
				case got := <-over:
					if !maps.Equal(got, want) {
						t.Errorf("%v, want %v", got, want)
					}
				case <-l.Context.Done():
					t.Error("the job does not end")
				}
				close(done)
				for what, n := range <-did {
					all[what] += n
				}
				if n := l.Regions(); n != 0 {
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
