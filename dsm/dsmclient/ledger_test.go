package dsmclient_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/bifrost-rack/bifrost/dsm/dsmclient"
	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
	"github.com/bifrost-rack/bifrost/internal/wire"
	"github.com/bifrost-rack/bifrost/p4switch/shared/bubble"
)

// grant has a memory server keep the ledger of a node, and returns its birth number.
func (r *rack) grant(node uint64) uint64 {
	r.T.Helper()
	s := r.Memories[0]
	a, err := s.GrantLedger(control.LedgerGrant{Birth: s.Birth(), Name: control.LedgerOf(rackaddr.Node(node)), Node: rackaddr.Node(node), Incarnation: 1})
	must(r.T, err)
	if a.Code != fault.OK {
		r.T.Fatal(a.Message)
	}
	return a.Birth
}

// records are those of a node's ledger, in order.
func (r *rack) records(node uint64) (all []string) {
	r.T.Helper()
	chunks, _, _ := r.Memories[0].ReadLedger(control.LedgerOf(rackaddr.Node(node)))
	var reader dsmpacket.Records
	for _, c := range chunks {
		must(r.T, reader.Chunk(c, func(b []byte) { all = append(all, string(b)) }))
	}
	return all
}

// TestLedger: records of many goroutines are settled, on a network that loses, doubles and
// delays; each is there once, those of a goroutine in their order. A fence ends it, and the
// next incarnation goes on.
func TestLedger(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		r := newImpairedRack(t, wire.Config{Schedule: &wire.Schedule{Seed: 3, Quiesce: synctest.Wait}}, 1,
			wire.Impairment{Delay: 20 * time.Microsecond, Jitter: 50 * time.Microsecond, Loss: 0.05, Duplicate: 0.05, Reorder: 0.05})
		birth := r.grant(1)
		write := func(c *dsmclient.Client, run uint32) *dsmclient.Ledger {
			l, err := c.OpenLedger(dsmclient.LedgerConfig{Machine: 1, Birth: birth, Run: run})
			must(t, err)
			var writers sync.WaitGroup
			for w := range 5 {
				writers.Go(func() {
					for i := range 20 {
						n := l.Append(fmt.Appendf(nil, "%d: %d %d", run, w, i))
						if i%4 == 0 {
							if err := l.Wait(r.Ctx, n); err != nil {
								t.Error(err)
							}
						}
					}
				})
			}
			writers.Wait()
			long := make([]byte, 100_000)
			if err := l.Wait(r.Ctx, l.Append(long)); err != nil {
				t.Error(err)
			}
			return l
		}
		first := r.Client(1, 1)
		l := write(first, 1)
		if _, err := first.OpenLedger(dsmclient.LedgerConfig{}); fault.CodeOf(err) != fault.BadRequest {
			t.Errorf("a second ledger: %v", err)
		}
		_, err := r.Memories[0].Fence(control.Fence{Node: rackaddr.Node(1), Incarnation: 1})
		must(t, err)
		if err := l.Wait(r.Ctx, l.Append([]byte("late"))); fault.CodeOf(err) != fault.Stale {
			t.Errorf("an append after the fence: %v", err)
		}
		must(t, first.Close())
		write(r.Client(1, 2), 2)
		var seen [3][5]int
		for _, text := range r.records(1) {
			var run, w, i int
			if len(text) == 100_000 {
				continue
			}
			if _, err := fmt.Sscanf(text, "%d: %d %d", &run, &w, &i); err != nil || seen[run][w] != i {
				t.Fatalf("record %q comes after %d of the writer", text, seen[run][w])
			}
			seen[run][w]++
		}
		if seen[1] != [5]int{20, 20, 20, 20, 20} || seen[2] != seen[1] {
			t.Errorf("records %v", seen)
		}
		if n := len(r.records(1)); n != 202 {
			t.Errorf("%d records", n)
		}
		r.Close()
	})
}

// TestLedger_Base: what lies before a base that is settled goes.
func TestLedger_Base(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		r := newRack(t, wire.Config{Schedule: &wire.Schedule{Seed: 1, Quiesce: synctest.Wait}}, 1)
		c := r.Client(1, 1)
		l, err := c.OpenLedger(dsmclient.LedgerConfig{Machine: 1, Birth: r.grant(1), Run: 1})
		must(t, err)
		for i := range 10 {
			must(t, l.Wait(r.Ctx, l.Append([]byte{byte(i)})))
		}
		before, _, _ := r.Memories[0].ReadLedger(control.LedgerOf(rackaddr.Node(1)))
		must(t, l.Wait(r.Ctx, l.Base([]byte("base"))))
		must(t, l.Wait(r.Ctx, l.Append([]byte("after"))))
		for i, c := range before { // what has been read stays
			if c.Number != uint64(i+1) || len(c.Data) == 0 {
				t.Errorf("chunk %d is %+v", i, c)
			}
		}
		if got := r.records(1); len(got) != 2 || got[0] != "base" || got[1] != "after" {
			t.Errorf("records %q", got)
		}
		must(t, c.Close())
		if err := l.Wait(r.Ctx, l.Append([]byte("x"))); fault.CodeOf(err) != fault.Canceled {
			t.Errorf("an append after Close: %v", err)
		}
		r.Close()
	})
}

// TestLedger_Refused: a ledger that nobody has granted, or that is lost, fails whoever
// waits for a record; one that is not answered fails with the context.
func TestLedger_Refused(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		r := newRack(t, wire.Config{Schedule: &wire.Schedule{Seed: 1, Quiesce: synctest.Wait}}, 1)
		unknown, err := r.Client(1, 1).OpenLedger(dsmclient.LedgerConfig{Machine: 1, Birth: 1, Run: 1})
		must(t, err)
		if err := unknown.Wait(r.Ctx, unknown.Append(nil)); fault.CodeOf(err) != fault.NotFound {
			t.Errorf("a ledger that was not granted: %v", err)
		}
		lost, err := r.Client(2, 1).OpenLedger(dsmclient.LedgerConfig{Machine: 1, Birth: r.grant(2) + 1, Run: 1})
		must(t, err)
		if err := lost.Wait(r.Ctx, lost.Append(nil)); fault.CodeOf(err) != fault.NotFound {
			t.Errorf("a ledger of another birth number: %v", err)
		}
		silent, err := r.Client(3, 1).OpenLedger(dsmclient.LedgerConfig{Machine: 9, Birth: 1, Run: 1})
		must(t, err)
		ctx, cancel := context.WithTimeout(r.Ctx, time.Second)
		defer cancel()
		if err := silent.Wait(ctx, silent.Append(nil)); fault.CodeOf(err) != fault.Deadline {
			t.Errorf("a machine that is not there: %v", err)
		}
		r.Close()
	})
}

// TestLedger_Read: the next incarnation opens the ledger as soon as the former one is
// sealed, and reads what that has left, in order, on a network that loses, doubles and
// delays; not what it appends itself.
func TestLedger_Read(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		r := newImpairedRack(t, wire.Config{Schedule: &wire.Schedule{Seed: 5, Quiesce: synctest.Wait}}, 1,
			wire.Impairment{Delay: 20 * time.Microsecond, Jitter: 50 * time.Microsecond, Loss: 0.05, Duplicate: 0.05, Reorder: 0.05})
		birth := r.grant(1)
		open := func(incarnation uint32) (*dsmclient.Client, *dsmclient.Ledger) {
			c := r.Client(1, incarnation)
			l, err := c.OpenLedger(dsmclient.LedgerConfig{Machine: 1, Birth: birth, Run: incarnation})
			must(t, err)
			return c, l
		}
		first, l := open(1)
		if got := read(r, l); len(got) > 0 {
			t.Errorf("a new ledger has records: %q", got)
		}
		for i := range 1500 {
			must(t, l.Wait(r.Ctx, l.Append(bytes.Repeat(fmt.Appendf(nil, "%d ", i), 1+i%97))))
		}
		must(t, l.Wait(r.Ctx, l.Append(make([]byte, 300_000))))
		must(t, first.Close())
		second, l := open(2)
		ctx, cancel := context.WithTimeout(r.Ctx, time.Second)
		defer cancel()
		if err := l.Wait(ctx, 0); fault.CodeOf(err) != fault.Deadline {
			t.Errorf("it is open before the first run is sealed: %v", err)
		}
		n := l.Append([]byte("of the second run"))
		done := make(chan []string)
		go func() { done <- read(r, l) }()
		_, err := r.Memories[0].Fence(control.Fence{Node: rackaddr.Node(1), Incarnation: 1}) // it has waited for that
		must(t, err)
		left := <-done
		must(t, l.Wait(r.Ctx, n))
		if all := r.records(1); len(left) != 1501 || !slices.Equal(left, all[:1501]) || len(all) != 1502 {
			t.Errorf("%d records read of %d", len(left), len(all))
		}
		if err := l.Read(r.Ctx, func([]byte) error { return context.Canceled }); !errors.Is(err, context.Canceled) {
			t.Errorf("an error of yield: %v", err)
		}
		must(t, l.Wait(r.Ctx, l.Base([]byte("base"))))
		must(t, l.Wait(r.Ctx, l.Append([]byte("after"))))
		if err := l.Read(r.Ctx, func([]byte) error { return nil }); fault.CodeOf(err) != fault.NotFound {
			t.Errorf("what a base has cut: %v", err)
		}
		must(t, second.Close())
		if err := l.Read(r.Ctx, func([]byte) error { return nil }); fault.CodeOf(err) != fault.Canceled {
			t.Errorf("of a client that is closed: %v", err)
		}
		r.Close()
	})
}

// read returns the records that former runs have left.
func read(r *rack, l *dsmclient.Ledger) (all []string) {
	r.T.Helper()
	if err := l.Read(r.Ctx, func(b []byte) error { all = append(all, string(b)); return nil }); err != nil {
		r.T.Error(err)
	}
	return all
}

// TestLedger_Names: a client writes the ledger of a durable main beside its own, each with
// its own numbers.
func TestLedger_Names(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		r := newRack(t, wire.Config{Schedule: &wire.Schedule{Seed: 1, Quiesce: synctest.Wait}}, 1)
		birth, name := r.grant(1), control.LedgerName{1, 2, 3}
		s := r.Memories[0]
		_, err := s.GrantLedger(control.LedgerGrant{Birth: birth, Name: name, Node: rackaddr.Node(1), Incarnation: 1})
		must(t, err)
		c := r.Client(1, 1)
		own, err := c.OpenLedger(dsmclient.LedgerConfig{Machine: 1, Birth: birth, Run: 1})
		must(t, err)
		main, err := c.OpenLedger(dsmclient.LedgerConfig{Machine: 1, Birth: birth, Run: 7, Name: name})
		must(t, err)
		if _, err := c.OpenLedger(dsmclient.LedgerConfig{Machine: 1, Birth: birth, Run: 8, Name: name}); fault.CodeOf(err) != fault.BadRequest {
			t.Errorf("a ledger that is open: %v", err)
		}
		must(t, own.Wait(r.Ctx, own.Append([]byte("of the node"))))
		must(t, main.Wait(r.Ctx, 0))
		must(t, main.Wait(r.Ctx, main.Append([]byte("of the main"))))
		main.Close()
		if err := main.Wait(r.Ctx, main.Append(nil)); fault.CodeOf(err) != fault.Canceled {
			t.Errorf("a ledger that is closed: %v", err)
		}
		if _, state, ok := s.ReadLedger(name); !ok || state.Run != 7 || state.Next != 2 {
			t.Errorf("the main's ledger: %+v, %v", state, ok)
		}
		fenced, err := s.Fence(control.Fence{Node: rackaddr.Node(1), Incarnation: 1})
		if err != nil || len(fenced.Unsettled.Ledgers) != 2 {
			t.Errorf("the fence seals %+v, %v", fenced.Unsettled.Ledgers, err)
		}
		must(t, c.Close())
		grant := control.LedgerGrant{Birth: birth, Name: name, Node: rackaddr.Node(2), Incarnation: 1}
		if _, err := s.GrantLedger(grant); err != nil {
			t.Fatal(err)
		}
		main, err = r.Client(2, 1).OpenLedger(dsmclient.LedgerConfig{Machine: 1, Birth: birth, Run: 8, Name: name})
		must(t, err)
		if got := read(r, main); !slices.Equal(got, []string{"of the main"}) {
			t.Errorf("the main goes on elsewhere with %q", got)
		}
		r.Close()
	})
}
