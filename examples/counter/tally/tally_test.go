package tally_test

import (
	"context"
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/bifrost-rack/bifrost/bifrosttest"
	"github.com/bifrost-rack/bifrost/examples/counter/gen-go/counter"
	"github.com/bifrost-rack/bifrost/examples/counter/tally"
	"github.com/bifrost-rack/bifrost/rpc"
)

// onRack runs f in virtual time on a rack that serves Counter on s2 and Front on s1.
func onRack(t *testing.T, f func(ctx context.Context, c *tally.Counter, caller *rpc.Node)) {
	t.Helper()
	cfg := bifrosttest.Config{Network: bifrosttest.Network{Delay: 20 * time.Microsecond}} // so that time goes by
	bifrosttest.Run(t, cfg, func(t *testing.T, r *bifrosttest.Rack) {
		c := &tally.Counter{}
		if err := counter.ExportCounter(r.Context(), r.Node("s2", "counter"), tally.CounterName, c); err != nil {
			t.Fatal(err)
		}
		if err := tally.Serve(r.Context(), r.Node("s1", "front"), tally.FrontName); err != nil {
			t.Fatal(err)
		}
		f(r.Context(), c, r.Client())
	})
}

// TestTellers: each call is answered with what the account must have; the accounts
// are apart; a teller with a time makes calls for just that long.
func TestTellers(t *testing.T) {
	onRack(t, func(ctx context.Context, _ *tally.Counter, node *rpc.Node) {
		var last [2]int64
		for n, to := range []string{tally.CounterName, tally.FrontName} {
			adder, err := tally.Open(node, to)
			if err != nil {
				t.Fatal(err)
			}
			m := &tally.Teller{Name: to, Account: int32(n), To: adder, Every: 3, Answered: func(_ context.Context, _, total int64) { last[n] = total }}
			if n == 0 {
				m.Calls = 10
			} else {
				m.For = 20 * time.Millisecond
			}
			began := time.Now()
			if err := m.Run(ctx, node); err != nil {
				t.Error(err)
			}
			if took := time.Since(began); n == 1 && (took < 20*time.Millisecond || took > 40*time.Millisecond) {
				t.Errorf("a teller with 20 ms took %v", took)
			}
		}
		totals, err := counter.OpenCounter(node, tally.CounterName).Totals(ctx)
		if err != nil || len(totals) != tally.Accounts || totals[0] != last[0] || totals[1] != last[1] || last[0] == 0 || last[1] == 0 {
			t.Errorf("totals %v, answered %v, %v", totals, last, err)
		}
	})
}

// TestTeller_Wrong: a teller whose account somebody else uses says so.
func TestTeller_Wrong(t *testing.T) {
	onRack(t, func(ctx context.Context, _ *tally.Counter, node *rpc.Node) {
		adder, err := tally.Open(node, tally.CounterName)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := adder.Add(ctx, 3, rpc.RefOf([]byte{1})); err != nil {
			t.Fatal(err)
		}
		err = (&tally.Teller{Name: "t", Account: 3, Calls: 2, To: adder}).Run(ctx, node)
		if err == nil || !strings.Contains(err.Error(), "account 3 has") {
			t.Errorf("error %v", err)
		}
		var missing *counter.NoSuchAccount
		if _, err := adder.Add(ctx, tally.Accounts, rpc.RefOf([]byte{1})); !errors.As(err, &missing) {
			t.Errorf("an account too many: %v", err)
		}
	})
}

// TestInconsistent: when state and memory differ, every call says so.
func TestInconsistent(t *testing.T) {
	onRack(t, func(ctx context.Context, c *tally.Counter, node *rpc.Node) {
		client := counter.OpenCounter(node, tally.CounterName)
		if _, err := client.Add(ctx, 0, rpc.RefOf([]byte{5})); err != nil {
			t.Fatal(err)
		}
		state, err := c.Snapshot()
		if err != nil {
			t.Fatal(err)
		}
		state[len(state)-1] ^= 1 // the last account
		if err := c.Restore(state); err != nil {
			t.Fatal(err)
		}
		var wrong *counter.Inconsistent
		if _, err := client.Totals(ctx); !errors.As(err, &wrong) || wrong.Account != tally.Accounts-1 || wrong.State != 1 || wrong.Memory != 0 {
			t.Errorf("totals: %v", err)
		}
		if _, err := client.Add(ctx, tally.Accounts-1, rpc.RefOf([]byte{5})); !errors.As(err, &wrong) {
			t.Errorf("add: %v", err)
		}
	})
}

func TestRestore(t *testing.T) {
	if err := (&tally.Counter{}).Restore(make([]byte, 7)); rpc.CodeOf(err) != rpc.Internal {
		t.Errorf("a state of 7 bytes: %v", err)
	}
}

func TestUnknownService(t *testing.T) {
	if err := tally.Serve(t.Context(), nil, "Nobody"); rpc.CodeOf(err) != rpc.NoSuchMethod {
		t.Error(err)
	}
	if _, err := tally.Open(nil, "Nobody"); rpc.CodeOf(err) != rpc.NoSuchMethod {
		t.Error(err)
	}
}

// TestTeller_Patient: a teller with all the time there is makes calls until its context ends.
func TestTeller_Patient(t *testing.T) {
	onRack(t, func(ctx context.Context, _ *tally.Counter, node *rpc.Node) {
		to, err := tally.Open(node, tally.CounterName)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		calls := 0
		m := &tally.Teller{Name: "patient", To: to, Every: 3, For: math.MaxInt64, Answered: func(context.Context, int64, int64) {
			if calls++; calls == 20 {
				cancel()
			}
		}}
		if err := m.Run(ctx, node); !errors.Is(err, context.Canceled) || calls < 20 {
			t.Errorf("%v after %d calls", err, calls)
		}
	})
}
