package simrack_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/bifrost-rack/bifrost/examples/arrays/gen-go/arrays"
	"github.com/bifrost-rack/bifrost/gatekeeper/wal"
	"github.com/bifrost-rack/bifrost/internal/simrack"
	"github.com/bifrost-rack/bifrost/internal/wire"
	"github.com/bifrost-rack/bifrost/rpc"
)

// echoes is a service that answers with what it was given, or has another service answer.
type echoes struct {
	arrays.Arrays
	behind *rpc.Node // nil: it answers itself
}

func (e echoes) Echo(ctx context.Context, data []byte) ([]byte, error) {
	if e.behind != nil {
		return arrays.NewArraysClient(e.behind.Client("Arrays")).Echo(ctx, data)
	}
	return data, nil
}

// Increment answers with times as many bytes as it was given.
func (echoes) Increment(_ context.Context, data []byte, times int8) ([]byte, error) {
	return bytes.Repeat(data, int(times)), nil
}

// fullLog is a rack whose Gatekeeper's log has so many bytes, with a service Arrays, a
// service Front before it, and a client.
func fullLog(t *testing.T, limit uint64, told *bytes.Buffer, f func(ctx context.Context, client *rpc.Node)) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
		defer cancel()
		cfg := simrack.Config{
			Schedule: &wire.Schedule{Seed: 1, Quiesce: synctest.Wait}, Disk: new(wal.Disk), MTU: 65535,
			LogOptions: wal.Options{Limit: limit},
		}
		if told != nil {
			cfg.Log = slog.New(slog.NewTextHandler(told, nil))
		}
		r, err := simrack.Start(ctx, cfg)
		if err != nil {
			t.Fatal(err)
		}
		var nodes []*rpc.Node
		for _, name := range []string{"server", "front", "client"} {
			blade := map[string]string{"server": "s1", "front": "s2", "client": "c1"}[name]
			n, err := r.Join(ctx, blade, name)
			if err != nil {
				t.Fatal(err)
			}
			nodes = append(nodes, n)
		}
		if err := nodes[0].Export(ctx, "Arrays", arrays.NewArraysProcessor(echoes{})); err != nil {
			t.Fatal(err)
		}
		if err := nodes[1].Export(ctx, "Front", arrays.NewArraysProcessor(echoes{behind: nodes[1]})); err != nil {
			t.Fatal(err)
		}
		f(ctx, nodes[2])
		if err := errors.Join(nodes[2].Close(ctx), nodes[1].Close(ctx), nodes[0].Close(ctx), r.Close()); err != nil {
			t.Error(err)
		}
	})
}

// Answers that the log has no room for wait until callers have settled others: all
// calls are answered in the end, whether their callers make further calls or not, and
// whether they make calls for each other or not.
func TestFullLog(t *testing.T) {
	for name, c := range map[string]struct {
		service string
		rounds  int
	}{
		"callers go on": {"Arrays", 3}, "callers are done": {"Arrays", 1}, "calls make calls": {"Front", 2},
	} {
		t.Run(name, func(t *testing.T) {
			fullLog(t, 1<<20, nil, func(ctx context.Context, client *rpc.Node) { callAll(ctx, t, client, c.service, 50, c.rounds) })
		})
	}
}

// callAll has callers make calls of 40 kB at the same time.
func callAll(ctx context.Context, t *testing.T, client *rpc.Node, service string, callers, rounds int) {
	var all sync.WaitGroup
	data := make([]byte, 40_000)
	for range callers {
		all.Go(func() {
			for range rounds {
				if _, err := arrays.NewArraysClient(client.Client(service)).Echo(ctx, data); err != nil {
					t.Errorf("not answered: %v", err)
					return
				}
			}
		})
	}
	all.Wait()
}

// A call, or an answer, that the log will never have room for fails at once, with the
// remedy. What is smaller goes on.
func TestSmallLog(t *testing.T) {
	var told bytes.Buffer
	fullLog(t, 100_000, &told, func(ctx context.Context, client *rpc.Node) {
		c := arrays.NewArraysClient(client.Client("Arrays"))
		began := time.Now()
		for what, err := range map[string]error{
			"a call":                     func() error { _, err := c.Echo(ctx, make([]byte, 20_000)); return err }(),
			"an answer":                  func() error { _, err := c.Increment(ctx, make([]byte, 10_000), 2); return err }(),
			"a call larger than the log": func() error { _, err := c.Echo(ctx, make([]byte, 200_000)); return err }(),
		} {
			if rpc.CodeOf(err) != rpc.NoSpace || !strings.Contains(err.Error(), "12500 at most") || !strings.Contains(err.Error(), "log more room") {
				t.Errorf("%s: %v", what, err)
			}
		}
		if b, err := c.Echo(ctx, make([]byte, 12_000)); err != nil || len(b) != 12_000 {
			t.Errorf("%d bytes, %v", len(b), err)
		}
		if took := time.Since(began); took > time.Second {
			t.Errorf("that took %v", took)
		}
	})
	if !strings.Contains(told.String(), "the log is small") || !strings.Contains(told.String(), "remedy") {
		t.Errorf("the Gatekeeper says: %s", told.String())
	}
}
