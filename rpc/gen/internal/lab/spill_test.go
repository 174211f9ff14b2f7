package lab_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"log/slog"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/bifrost-rack/bifrost/gatekeeper"
	"github.com/bifrost-rack/bifrost/gatekeeper/resources"
	"github.com/bifrost-rack/bifrost/gatekeeper/wal"
	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/join"
	"github.com/bifrost-rack/bifrost/internal/simrack"
	"github.com/bifrost-rack/bifrost/internal/wire"
	"github.com/bifrost-rack/bifrost/p4switch/shared/bubble"
	"github.com/bifrost-rack/bifrost/rpc"
	"github.com/bifrost-rack/bifrost/rpc/gen/internal/lab/gen-go/labtest/lab"
)

// ballast is more than fits a datagram, three times.
const ballast = 200_000

// hoarder is a keeper whose state and journal do not fit a datagram.
type hoarder struct {
	keeper
	effects *atomic.Int64
	down    *lab.KeeperRefClient // asked after the effect, if set
	called  func()               // when that has answered
}

func (h *hoarder) Snapshot() ([]byte, error) {
	return append(binary.BigEndian.AppendUint64(nil, h.sum), make([]byte, ballast)...), nil
}

func (h *hoarder) Keep(ctx context.Context, film *rpc.Ref[[]byte]) (int64, error) {
	result, err := rpc.Effect(ctx, "hoard", func(context.Context) ([]byte, error) {
		return bytes.Repeat([]byte{byte(h.effects.Add(1))}, ballast), nil
	})
	if err != nil {
		return 0, err
	}
	if h.down != nil {
		if _, err := h.down.Keep(ctx, film); err != nil {
			return 0, err
		}
		h.called()
	}
	h.sum += uint64(result[0])
	return int64(h.sum)*1000 + int64(bytes.Count(result, result[:1])/1000), nil
}

// hoard is a rack with two hoarders, one behind the other.
type hoard struct {
	rack    *simrack.Rack
	effects [2]atomic.Int64
	began   atomic.Int64 // programs
	crashes atomic.Int64 // still to come, of the front, after the one behind has answered
}

func (w *hoard) program(ctx context.Context, j join.Joiner, s control.Start) error {
	node, err := rpc.Join(join.NewContext(ctx, j), rpc.WithName(s.Name), rpc.WithLogger(slog.New(slog.DiscardHandler)))
	if err != nil {
		return err
	}
	w.began.Add(1)
	h := &hoarder{effects: &w.effects[1]}
	if s.Args[0] == "Front" {
		h.effects, h.down = &w.effects[0], lab.OpenKeeper(node, "Behind")
		h.called = func() {
			if w.crashes.Add(-1) >= 0 {
				_ = w.rack.KillSoon("s1", s.Name)
				<-ctx.Done()
			}
		}
	}
	if err := lab.ExportKeeper(ctx, node, s.Args[0], h); err != nil {
		return err
	}
	<-ctx.Done()
	return node.Close(context.WithoutCancel(ctx))
}

// TestSpill: what does not fit a datagram is journalled none the less, in the node's
// ledger, and a re-run has it again.
func TestSpill(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		must := func(err error) {
			t.Helper()
			if err != nil {
				t.Fatal(err)
			}
		}
		w := new(hoard)
		var err error
		w.rack, err = simrack.Start(ctx, simrack.Config{
			Schedule: &wire.Schedule{Seed: 1, Quiesce: synctest.Wait}, Disk: new(wal.Disk),
			Programs: map[string]simrack.Program{"Front": w.program, "Behind": w.program},
		})
		must(err)
		events := w.rack.Gatekeeper().Subscribe(ctx)
		for _, name := range []string{"Behind", "Front"} {
			must(w.rack.Gatekeeper().Deploy(ctx, resources.Spec{Name: "app-" + name, Programs: []resources.Program{{
				Name: "p", Args: []string{name}, Nodes: 1, Services: []resources.ServiceSpec{{Name: name, Stateful: true}},
			}}}))
			for e := range events {
				if e.Kind == gatekeeper.ServiceExported && e.Service == name {
					break
				}
			}
		}
		node, err := w.rack.Join(ctx, "c1", "client")
		must(err)
		client, film := lab.OpenKeeper(node, "Front"), rpc.RefOf([]byte("film"))
		for n := int64(1); n <= 4; n++ {
			w.crashes.Store(n % 3)
			// The n-th effect is n, so the sum is 1, 3, 6, 10.
			if got, err := client.Keep(ctx, film); err != nil || got != n*(n+1)/2*1000+ballast/1000 {
				t.Errorf("call %d: %d, %v", n, got, err)
			}
		}
		if a, b := w.effects[0].Load(), w.effects[1].Load(); a != 4 || b != 4 {
			t.Errorf("%d and %d effects, want 4", a, b)
		}
		if n := w.began.Load(); n != 2+4 {
			t.Errorf("%d programs ran, want 2, and 4 after crashes", n)
		}
		must(film.Free(ctx))
		must(node.Close(ctx))
		must(w.rack.Close())
	})
}
