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
	"testing/synctest"
	"time"

	"github.com/bifrost-rack/bifrost/examples/kv/gen-go/kv"
	"github.com/bifrost-rack/bifrost/examples/kv/store"
	"github.com/bifrost-rack/bifrost/gatekeeper/log"
	"github.com/bifrost-rack/bifrost/internal/simrack"
	"github.com/bifrost-rack/bifrost/internal/wire"
	"github.com/bifrost-rack/bifrost/rpc"
	"github.com/bifrost-rack/bifrost/rpc/gen"
)

// bad loses, doubles, reorders and delays packets.
var bad = wire.Impairment{
	Delay: 20 * time.Microsecond, Jitter: 20 * time.Microsecond, Loss: 0.03, Duplicate: 0.03, Reorder: 0.03, Late: 0.03,
}

// world is a rack whose s1 serves the store, and clients on c1.
type world struct {
	*testing.T
	*simrack.Rack
	ctx context.Context
}

// onRack runs f in virtual time. The store's regions are all that may be left.
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

func (w *world) serve() {
	w.Helper()
	n, err := w.Join(w.ctx, "s1", "kv")
	w.must(err)
	w.must(kv.ExportStore(w.ctx, n, store.Name, store.New()))
}

// client is a client of a node of its own.
func (w *world) client() kv.Store {
	w.Helper()
	n, err := w.Join(w.ctx, "c1", "client")
	w.must(err)
	return kv.StoreValues(kv.OpenStore(n, store.Name))
}

// regions is how many regions there are once all that was under way has settled.
func (w *world) regions() int {
	w.Helper()
	<-time.After(time.Minute) // virtual
	s, err := w.Gatekeeper().Snapshot(w.ctx)
	w.must(err)
	return len(s.Regions)
}

func TestStore(t *testing.T) {
	onRack(t, 1, wire.Impairment{}, func(w *world) {
		w.serve()
		c := w.client()
		large := bytes.Repeat([]byte("0123456789abcdef"), 1<<14) // 256 KiB
		for i, value := range [][]byte{[]byte("small"), large, {}, []byte("small again")} {
			version, err := c.Put(w.ctx, "key", value)
			w.must(err)
			e, err := c.Get(w.ctx, "key")
			if err != nil || !bytes.Equal(e.Value, value) || e.Version != version || version != int64(i)+1 {
				t.Errorf("after put %d: version %d, %d bytes, %v", i, e.GetVersion(), len(e.GetValue()), err)
			}
		}
		for i, want := range []int64{5, 262149, 262154} {
			n, err := c.Append(w.ctx, "log", [][]byte{[]byte("start"), large, []byte("+ end")}[i])
			if n != want || err != nil {
				t.Errorf("append %d: %d bytes, %v", i, n, err)
			}
		}
		e, err := c.Get(w.ctx, "log")
		w.must(err)
		if want := slices.Concat([]byte("start"), large, []byte("+ end")); !bytes.Equal(e.Value, want) {
			t.Errorf("appended: %d bytes", len(e.Value))
		}
		for i, by := range []int64{1, -11, 12} {
			n, err := c.Increment(w.ctx, "n", by)
			if n != []int64{1, -10, 2}[i] || err != nil {
				t.Errorf("increment by %d: %d, %v", by, n, err)
			}
		}
		keys, err := c.Keys(w.ctx, "")
		if want := []string{"key", "log", "n"}; err != nil || !slices.Equal(keys, want) {
			t.Errorf("keys %q, %v", keys, err)
		}
		for _, key := range keys {
			w.must(c.Remove(w.ctx, key))
		}
		if n := w.regions(); n != 0 {
			t.Errorf("%d regions of no value", n)
		}
	})
}

// TestRefusals: what is refused changes nothing.
func TestRefusals(t *testing.T) {
	onRack(t, 1, wire.Impairment{}, func(w *world) {
		w.serve()
		c := w.client()
		var missing *kv.NoSuchKey
		var conflict *kv.Conflict
		var bad *kv.NotANumber
		if _, err := c.Get(w.ctx, "no"); !errors.As(err, &missing) || missing.Key != "no" {
			t.Errorf("get: %v", err)
		}
		if err := c.Remove(w.ctx, "no"); !errors.As(err, &missing) {
			t.Errorf("remove: %v", err)
		}
		v, err := c.CompareAndSet(w.ctx, "lock", 0, []byte("mine"))
		w.must(err)
		if _, err := c.CompareAndSet(w.ctx, "lock", 0, []byte("yours")); !errors.As(err, &conflict) || conflict.Version != v {
			t.Errorf("compare and set: %v", err)
		}
		if _, err := c.Increment(w.ctx, "lock", 1); !errors.As(err, &bad) {
			t.Errorf("increment: %v", err)
		}
		for _, key := range []string{"", string(make([]byte, 257))} {
			if _, err := c.Put(w.ctx, key, nil); rpc.CodeOf(err) != rpc.BadRequest {
				t.Errorf("a key of %d bytes: %v", len(key), err)
			}
		}
		if e, err := c.Get(w.ctx, "lock"); err != nil || string(e.Value) != "mine" || e.Version != v {
			t.Errorf("get: %+v, %v", e, err)
		}
	})
}

// TestManyKeys lists more keys than one answer holds.
func TestManyKeys(t *testing.T) {
	onRack(t, 1, wire.Impairment{}, func(w *world) {
		w.serve()
		c := w.client()
		want := ""
		for i := range 300 {
			key := fmt.Sprintf("key-with-a-rather-long-name-%03d", i)
			want += key + "\n"
			_, err := c.Put(w.ctx, key, nil)
			w.must(err)
		}
		if got, err := list(w.ctx, c, nil); got != want || err != nil {
			t.Errorf("%d bytes of keys, want %d, %v", len(got), len(want), err)
		}
	})
}

// TestBadNetwork: clients change one key at a time over a network that loses,
// doubles and reorders, and each change counts once.
func TestBadNetwork(t *testing.T) {
	for seed := range uint64(3) {
		t.Run(fmt.Sprint("seed=", seed+1), func(t *testing.T) {
			onRack(t, seed+1, bad, func(w *world) {
				w.serve()
				const clients, rounds = 4, 10
				var wg sync.WaitGroup
				for i := range clients {
					c := w.client()
					wg.Go(func() {
						for range rounds {
							if _, err := c.Increment(w.ctx, "sum", 1); err != nil {
								t.Error(err)
							}
							if _, err := c.Append(w.ctx, "marks", []byte{'a' + byte(i)}); err != nil {
								t.Error(err)
							}
						}
					})
				}
				wg.Wait()
				w.counted(clients, rounds)
			})
		})
	}
}

// counted checks that every client's changes have happened once each.
func (w *world) counted(clients, rounds int) {
	w.Helper()
	c := w.client()
	n, err := c.Increment(w.ctx, "sum", 0)
	if n != int64(clients*rounds) || err != nil {
		w.Errorf("the sum is %d, %v; want %d", n, err, clients*rounds)
	}
	e, err := c.Get(w.ctx, "marks")
	w.must(err)
	for i := range clients {
		if n := bytes.Count(e.Value, []byte{'a' + byte(i)}); n != rounds {
			w.Errorf("client %d has appended %d times, %d stand there", i, rounds, n)
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
