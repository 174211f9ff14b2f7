package dsmclient_test

import (
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/bifrost-rack/bifrost/dsm/dsmclient"
	"github.com/bifrost-rack/bifrost/internal/wire"
	"github.com/bifrost-rack/bifrost/p4switch/shared/bubble"
)

// openLedger opens the ledger of node 1.
func openLedger(r *rack) (*dsmclient.Client, *dsmclient.Ledger) {
	r.T.Helper()
	c := r.Client(1, 1)
	l, err := c.OpenLedger(dsmclient.LedgerConfig{Machine: 1, Birth: r.grant(1), Run: 1})
	must(r.T, err)
	must(r.T, l.Wait(r.Ctx, 0))
	return c, l
}

// appendAll has so many goroutines append and settle so many records each.
func appendAll(r *rack, l *dsmclient.Ledger, callers, each int, record []byte) {
	var all sync.WaitGroup
	for range callers {
		all.Go(func() {
			for range each {
				if err := l.Wait(r.Ctx, l.Append(record)); err != nil {
					r.T.Error(err)
					return
				}
			}
		})
	}
	all.Wait()
}

// TestLedger_GroupCommit: what 64 callers append at the same time goes in few packets, each
// of them waiting for its own record.
func TestLedger_GroupCommit(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		r := newImpairedRack(t, wire.Config{Schedule: &wire.Schedule{Seed: 1, Quiesce: synctest.Wait}}, 1, wire.Impairment{Delay: 20 * time.Microsecond})
		c, l := openLedger(r)
		const callers, each = 64, 50
		before := r.Memories[0].Metrics().Done["ledger"]
		appendAll(r, l, callers, each, make([]byte, 200))
		if n := r.Memories[0].Metrics().Done["ledger"] - before; n > callers*each/8 {
			t.Errorf("%d packets for %d records of %d callers", n, callers*each, callers)
		}
		if n := len(r.records(1)); n != callers*each {
			t.Errorf("%d records", n)
		}
		must(t, c.Close())
		r.Close()
	})
}

// TestLedger_Large: a record that takes the whole ledger, as a base may, is settled and read back whole by
// the next run, beside small ones.
func TestLedger_Large(t *testing.T) {
	if testing.Short() {
		t.Skip("512 MiB of memory")
	}
	bubble.Test(t, func(t *testing.T) {
		r := newRack(t, wire.Config{MTU: 65535, Schedule: &wire.Schedule{Seed: 1, Quiesce: synctest.Wait}}, 1)
		c, l := openLedger(r)
		large := make([]byte, 128<<20-2<<20) // the space is 64 MiB, and as much for a base
		for i := 0; i < len(large); i += 4096 {
			large[i] = byte(i >> 12)
		}
		must(t, l.Wait(r.Ctx, l.Append([]byte("before"))))
		must(t, l.Wait(r.Ctx, l.Append(large)))
		if s := l.Standing(); s.Room > 0 || s.Space != 64<<20 || s.Settled != 2 {
			t.Errorf("%+v", s)
		}
		must(t, l.Wait(r.Ctx, l.Append([]byte("after")))) // in the last eighth
		must(t, c.Close())
		if got := r.records(1); len(got) != 3 || got[1] != string(large) || got[2] != "after" {
			t.Errorf("%d records", len(got))
		}
		r.Close()
	})
}

// BenchmarkLedgerAppend measures one record of 200 bytes until it is settled, by one caller
// and by 64; packets/op tells what group commit makes of it.
func BenchmarkLedgerAppend(b *testing.B) {
	for _, callers := range []int{1, 64} {
		b.Run(fmt.Sprintf("callers=%d", callers), func(b *testing.B) {
			r := newRack(b, wire.Config{}, 1)
			c, l := openLedger(r)
			record := make([]byte, 200)
			before, since := r.Memories[0].Metrics().Done["ledger"], uint64(0)
			b.ResetTimer()
			for left := b.N; left > 0; left -= min(left, 10_000) {
				n := min(left, 10_000)
				appendAll(r, l, callers, (n+callers-1)/callers, record)
				since = l.Base([]byte("base")) // so that it does not fill up
			}
			must(b, l.Wait(r.Ctx, since))
			b.StopTimer()
			b.ReportMetric(float64(r.Memories[0].Metrics().Done["ledger"]-before)/float64(b.N), "packets/op")
			must(b, c.Close())
			r.Close()
		})
	}
}
