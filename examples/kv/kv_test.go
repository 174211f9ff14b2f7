package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/bifrost-rack/bifrost/bifrosttest"
	"github.com/bifrost-rack/bifrost/examples/kv/gen-go/kv"
	"github.com/bifrost-rack/bifrost/examples/kv/store"
	"github.com/bifrost-rack/bifrost/rpc"
	"github.com/bifrost-rack/bifrost/rpc/gen"
)

// programs are those of app.yaml: kv serve.
var programs = map[string]bifrosttest.Program{
	"kv": func(ctx context.Context, node *rpc.Node, _ []string) error {
		return bifrosttest.Serve(ctx, kv.ExportStore(ctx, node, store.Name, store.New()))
	},
}

// onRack deploys app.yaml in virtual time, and calls f with a client.
func onRack(t *testing.T, seed uint64, net bifrosttest.Network, f func(t *testing.T, r *bifrosttest.Rack, c kv.Store)) {
	t.Helper()
	bifrosttest.Run(t, bifrosttest.Config{Seed: seed, Network: net, Programs: programs}, func(t *testing.T, r *bifrosttest.Rack) {
		r.Deploy("app.yaml")
		f(t, r, client(r))
	})
}

// must ends the test on an error.
func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// client is a client of a node of its own.
func client(r *bifrosttest.Rack) kv.Store {
	return kv.StoreValues(kv.OpenStore(r.Client(), store.Name))
}

func TestStore(t *testing.T) {
	onRack(t, 1, bifrosttest.Network{}, func(t *testing.T, r *bifrosttest.Rack, c kv.Store) {
		large := bytes.Repeat([]byte("0123456789abcdef"), 1<<14) // 256 KiB
		for i, value := range [][]byte{[]byte("small"), large, {}, []byte("small again")} {
			version, err := c.Put(r.Context(), "key", value)
			must(t, err)
			e, err := c.Get(r.Context(), "key")
			if err != nil || !bytes.Equal(e.Value, value) || e.Version != version || version != int64(i)+1 {
				t.Errorf("after put %d: version %d, %d bytes, %v", i, e.GetVersion(), len(e.GetValue()), err)
			}
		}
		for i, want := range []int64{5, 262149, 262154} {
			n, err := c.Append(r.Context(), "log", [][]byte{[]byte("start"), large, []byte("+ end")}[i])
			if n != want || err != nil {
				t.Errorf("append %d: %d bytes, %v", i, n, err)
			}
		}
		e, err := c.Get(r.Context(), "log")
		must(t, err)
		if want := slices.Concat([]byte("start"), large, []byte("+ end")); !bytes.Equal(e.Value, want) {
			t.Errorf("appended: %d bytes", len(e.Value))
		}
		for i, by := range []int64{1, -11, 12} {
			n, err := c.Increment(r.Context(), "n", by)
			if n != []int64{1, -10, 2}[i] || err != nil {
				t.Errorf("increment by %d: %d, %v", by, n, err)
			}
		}
		keys, err := c.Keys(r.Context(), "")
		if want := []string{"key", "log", "n"}; err != nil || !slices.Equal(keys, want) {
			t.Errorf("keys %q, %v", keys, err)
		}
		for _, key := range keys {
			must(t, c.Remove(r.Context(), key))
		}
		if n := r.Regions(); n != 0 {
			t.Errorf("%d regions of no value", n)
		}
	})
}

// TestRefusals: what is refused changes nothing.
func TestRefusals(t *testing.T) {
	onRack(t, 1, bifrosttest.Network{}, func(t *testing.T, r *bifrosttest.Rack, c kv.Store) {
		var missing *kv.NoSuchKey
		var conflict *kv.Conflict
		var bad *kv.NotANumber
		if _, err := c.Get(r.Context(), "no"); !errors.As(err, &missing) || missing.Key != "no" {
			t.Errorf("get: %v", err)
		}
		if err := c.Remove(r.Context(), "no"); !errors.As(err, &missing) {
			t.Errorf("remove: %v", err)
		}
		v, err := c.CompareAndSet(r.Context(), "lock", 0, []byte("mine"))
		must(t, err)
		if _, err := c.CompareAndSet(r.Context(), "lock", 0, []byte("yours")); !errors.As(err, &conflict) || conflict.Version != v {
			t.Errorf("compare and set: %v", err)
		}
		if _, err := c.Increment(r.Context(), "lock", 1); !errors.As(err, &bad) {
			t.Errorf("increment: %v", err)
		}
		for _, key := range []string{"", string(make([]byte, 257))} {
			if _, err := c.Put(r.Context(), key, nil); rpc.CodeOf(err) != rpc.BadRequest {
				t.Errorf("a key of %d bytes: %v", len(key), err)
			}
		}
		if e, err := c.Get(r.Context(), "lock"); err != nil || string(e.Value) != "mine" || e.Version != v {
			t.Errorf("get: %+v, %v", e, err)
		}
	})
}

// TestManyKeys lists more keys than one answer holds.
func TestManyKeys(t *testing.T) {
	onRack(t, 1, bifrosttest.Network{}, func(t *testing.T, r *bifrosttest.Rack, c kv.Store) {
		want := ""
		for i := range 300 {
			key := fmt.Sprintf("key-with-a-rather-long-name-%03d", i)
			want += key + "\n"
			_, err := c.Put(r.Context(), key, nil)
			must(t, err)
		}
		if got, err := list(r.Context(), c, nil); got != want || err != nil {
			t.Errorf("%d bytes of keys, want %d, %v", len(got), len(want), err)
		}
	})
}

// TestBadNetwork: clients change one key at a time over a network that loses,
// doubles and reorders, and each change counts once.
func TestBadNetwork(t *testing.T) {
	for seed := range few(3) {
		t.Run(fmt.Sprint("seed=", seed+1), func(t *testing.T) {
			onRack(t, seed+1, bifrosttest.Bad, func(t *testing.T, r *bifrosttest.Rack, _ kv.Store) {
				const clients, rounds = 4, 10
				change(t, r, clients, rounds)
				counted(t, r, clients, rounds)
			})
		})
	}
}

// few is so many seeds, or one in a short test.
func few(seeds uint64) uint64 {
	if testing.Short() {
		return 1
	}
	return seeds
}

// TestCrashes: the same, while the service's program and its blade are killed, and the
// Gatekeeper crashes.
func TestCrashes(t *testing.T) {
	all := map[string]int{}
	seeds := uint64(4)
	if testing.Short() {
		seeds = 2
	}
	for seed := range seeds {
		t.Run(fmt.Sprint("seed=", seed+1), func(t *testing.T) {
			onRack(t, seed+1, bifrosttest.Network{Delay: 20 * time.Microsecond}, func(t *testing.T, r *bifrosttest.Rack, _ kv.Store) {
				const clients, rounds = 3, 60
				done, did := make(chan struct{}), make(chan map[string]int, 1)
				go func() { did <- r.Trouble(20, done) }()
				change(t, r, clients, rounds)
				close(done)
				for what, n := range <-did {
					all[what] += n
				}
				counted(t, r, clients, rounds)
			})
		})
	}
	if t.Log(all); len(all) < 3 && !testing.Short() {
		t.Errorf("too little has gone wrong to show anything")
	}
}

// change has so many clients make so many changes each, all to the same two keys.
func change(t *testing.T, r *bifrosttest.Rack, clients, rounds int) {
	t.Helper()
	var wg sync.WaitGroup
	for i := range clients {
		c := client(r)
		wg.Go(func() {
			for range rounds {
				if _, err := c.Increment(r.Context(), "sum", 1); err != nil {
					t.Error(err)
				}
				if _, err := c.Append(r.Context(), "marks", []byte{'a' + byte(i)}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
}

// counted checks that every client's changes have happened once each.
func counted(t *testing.T, r *bifrosttest.Rack, clients, rounds int) {
	t.Helper()
	c := client(r)
	n, err := c.Increment(r.Context(), "sum", 0)
	if n != int64(clients*rounds) || err != nil {
		t.Errorf("the sum is %d, %v; want %d", n, err, clients*rounds)
	}
	e, err := c.Get(r.Context(), "marks")
	must(t, err)
	for i := range clients {
		if n := bytes.Count(e.Value, []byte{'a' + byte(i)}); n != rounds {
			t.Errorf("client %d has appended %d times, %d stand there", i, rounds, n)
		}
	}
}

// TestStubsAreFresh holds the committed stubs against the generator.
func TestStubsAreFresh(t *testing.T) {
	files, err := gen.Generate("kv.thrift", os.ReadFile, gen.Options{})
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		have, err := os.ReadFile(filepath.Join("gen-go", f.Name))
		if err != nil || !bytes.Equal(have, f.Content) {
			t.Errorf("%s is stale: go generate ./examples/kv (%v)", f.Name, err)
		}
	}
}
