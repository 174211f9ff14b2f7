package host_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/apache/thrift/lib/go/thrift"

	"github.com/bifrost-rack/bifrost/bifrosttest"
	"github.com/bifrost-rack/bifrost/examples/counter/gen-go/counter"
	"github.com/bifrost-rack/bifrost/examples/counter/tally"
	"github.com/bifrost-rack/bifrost/host"
	"github.com/bifrost-rack/bifrost/host/hostwire"
	"github.com/bifrost-rack/bifrost/rpc"
)

// idl is that of the services of these tests.
const idl = `
exception Inconsistent { 1: i32 account, 2: i64 state, 3: i64 memory }
exception NoSuchAccount { 1: i32 account, 2: i32 accounts }
service Counter {
  i64 add(1: i32 account, 2: binary amounts (bifrost.ref)) throws (1: Inconsistent wrong, 2: NoSuchAccount missing) (bifrost.policy = "recover")
  list<i64> totals() throws (1: Inconsistent wrong)
}`

// withState is the hello of a child whose services have state.
func withState(h *hostwire.HelloBody) {
	for i := range h.Services {
		h.Services[i].State, h.Services[i].IDL = true, idl
	}
}

// world is what effects change.
type world struct {
	mu  sync.Mutex
	did map[string]int
}

func (w *world) do(key string) ([]byte, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.did == nil {
		w.did = map[string]int{}
	}
	w.did[key]++
	return fmt.Appendf(nil, "%s, time %d", key, w.did[key]), nil
}

func (w *world) times(key string) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.did[key]
}

// accounts is the handler of a child: its accounts are in the state that the host has. What it adds it adds to the service Back, too.
type accounts struct {
	world *world
	back  bool
}

func sum(amounts []byte) (n int64) {
	for _, b := range amounts {
		n += int64(b)
	}
	return n
}

func (a *accounts) Add(ctx context.Context, account int32, amounts []byte) (int64, error) {
	switch account {
	case 90:
		return 0, &counter.NoSuchAccount{Account: account, Accounts: 90}
	case 91:
		return 0, rpc.Errorf(rpc.NotFound, "account %d", account)
	case 92:
		if err := setNumber(ctx, "0", -1); err != nil {
			return 0, err
		}
		return 0, brokenError("division by zero")
	case 93:
		return 0, errors.New("some failure")
	}
	key := fmt.Sprint(account)
	n, err := number(ctx, key)
	if err != nil {
		return 0, err
	}
	if _, err := doEffect(ctx, "mail "+key, func() ([]byte, error) { return a.world.do("mail " + key) }); err != nil {
		return 0, err
	}
	n += sum(amounts)
	if err := setNumber(ctx, key, n); err != nil {
		return 0, err
	}
	if a.back {
		got, err := counter.NewCounterClient(invoker{service: "Back", policy: hostwire.NoPolicy}).Add(ctx, account, amounts)
		if err != nil || got != n {
			return 0, rpc.Errorf(rpc.Internal, "Back has %d, %v; want %d", got, err, n)
		}
		if err := setNumber(ctx, "back", got); err != nil {
			return 0, err
		}
	}
	return n, nil
}

func (a *accounts) Totals(ctx context.Context) (all []int64, err error) {
	keys, err := servedIn(ctx).ask(hostwire.Keys, nil)
	if err != nil {
		return nil, err
	}
	names, err := hostwire.ParseKeys(keys)
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		n, err := number(ctx, name)
		if err != nil {
			return nil, err
		}
		all = append(all, n)
	}
	return all, nil
}

const app = `
name: counter
programs:
  - {name: counter, command: [counter], services: [{name: Counter, stateful: true}], blades: [s1]}
  - {name: back, command: [back], services: [{name: Back, stateful: true}], blades: [s2]}
`

func back(ctx context.Context, node *rpc.Node, _ []string) error {
	return bifrosttest.Serve(ctx, counter.ExportCounter(ctx, node, "Back", &tally.Counter{}))
}

// TestCalls: callers see no difference to a service in Go, by value and by reference, in both protocols; and the state is there when the
// program has been killed.
func TestCalls(t *testing.T) {
	w, l := &world{}, &logged{}
	programs := map[string]bifrosttest.Program{"back": back, "counter": hosted(host.Config{Logger: l.logger()}, func(conn net.Conn) (*peer, func(*hostwire.HelloBody)) {
		return &peer{conn: conn, processors: map[string]thrift.TProcessor{"Counter": counter.NewCounterProcessor(&accounts{world: w})}}, withState
	})}
	bifrosttest.Run(t, bifrosttest.Config{Programs: programs, Seed: 1, Network: bifrosttest.Bad}, func(t *testing.T, r *bifrosttest.Rack) {
		r.DeployText(app)
		node, ctx := r.Client(), r.Context()
		want := int64(0)
		for _, protocol := range []rpc.Protocol{rpc.Binary, rpc.Compact} {
			plain := counter.NewCounterClient(node.Client("Counter", rpc.WithProtocol(protocol)))
			byRef := counter.OpenCounter(node, "Counter", rpc.WithProtocol(protocol))
			for range 3 {
				want += 3
				got, err := plain.Add(ctx, 7, []byte{1, 2})
				if err != nil || got != want {
					t.Fatalf("by value: %d, %v; want %d", got, err, want)
				}
				want += 70_000
				large := rpc.RefOf([]byte(strings.Repeat("\x01", 70_000)))
				if got, err = byRef.Add(ctx, 7, large); err != nil || got != want {
					t.Fatalf("by reference: %d, %v; want %d", got, err, want)
				}
				must(t, large.Free(ctx))
				r.Kill("s1")
			}
			// A one-way has no answer, whatever the child says.
			_, err := node.Client("Counter").Call(ctx, "add", &counter.CounterAddArgs{Account: 7, Amounts: []byte{9}}, nil)
			must(t, err)
			want += 9
			if got, err := plain.Totals(ctx); err != nil || len(got) != 1 || got[0] != want {
				t.Errorf("totals: %v, %v", got, err)
			}
			var missing *counter.NoSuchAccount
			if _, err := plain.Add(ctx, 90, nil); !errors.As(err, &missing) || missing.Accounts != 90 {
				t.Errorf("a declared exception: %v", err)
			}
			if _, err := byRef.Add(ctx, 90, rpc.RefOf([]byte{1})); !errors.As(err, &missing) || missing.Accounts != 90 {
				t.Errorf("a declared exception, by reference: %v", err)
			}
			if _, err := plain.Add(ctx, 91, nil); rpc.CodeOf(err) != rpc.NotFound || !strings.Contains(err.Error(), "account 91") {
				t.Errorf("a coded error: %v", err)
			}
			if _, err := plain.Add(ctx, 92, nil); rpc.CodeOf(err) != rpc.Internal || !strings.Contains(err.Error(), "division by zero") {
				t.Errorf("a broken handler: %v", err)
			}
			var app thrift.TApplicationException
			if _, err := plain.Add(ctx, 93, nil); !errors.As(err, &app) || !strings.Contains(err.Error(), "some failure") {
				t.Errorf("an application exception: %v", err)
			}
			if got, err := plain.Totals(ctx); err != nil || len(got) != 1 || got[0] != want {
				t.Errorf("what a broken handler has set is there: %v, %v", got, err)
			}
			if _, err := counter.NewFrontClient(node.Client("Counter", rpc.WithProtocol(protocol))).Client_().Call(ctx, "none", &counter.CounterTotalsArgs{}, &counter.CounterTotalsResult{}); rpc.CodeOf(err) != rpc.NoSuchMethod {
				t.Errorf("a method that there is not: %v", err)
			}
		}
		info, err := node.Service(ctx, "Counter")
		if err != nil || info.IDL != idl || fmt.Sprint(info.Methods) != "[add add.ref totals]" {
			t.Errorf("%q, %v, %v", info.IDL, info.Methods, err)
		}
		if n := r.Regions(); n != 0 {
			t.Errorf("%d regions are left", n)
		}
	})
}

// TestDeath: the child dies at each step of a call, once. The next one ends the call: the state is changed once, the nested call has run once, and
// an effect is not run again once a later step is in the ledger.
func TestDeath(t *testing.T) {
	killed := true
	for step := 1; killed; step++ {
		killed = false
		w, l := &world{}, &logged{}
		var mu sync.Mutex
		frames, after := 0, false // of all lives; whether the nested call had been made when the child died
		programs := map[string]bifrosttest.Program{"back": back, "counter": hosted(host.Config{Logger: l.logger()}, func(conn net.Conn) (*peer, func(*hostwire.HelloBody)) {
			p := &peer{conn: conn, processors: map[string]thrift.TProcessor{"Counter": counter.NewCounterProcessor(&accounts{world: w, back: true})}}
			invoked := false
			p.step = func(sent bool, k hostwire.Kind) bool {
				mu.Lock()
				defer mu.Unlock()
				switch k {
				case hostwire.Hello, hostwire.Welcome, hostwire.Ready:
					return false
				}
				if k == hostwire.Call {
					invoked = false
				}
				if frames++; frames != step {
					invoked = invoked || k == hostwire.Invoke
					return false
				}
				killed, after = true, invoked
				return true
			}
			return p, withState
		})}
		bifrosttest.Run(t, bifrosttest.Config{Programs: programs}, func(t *testing.T, r *bifrosttest.Rack) {
			r.DeployText(app)
			client := counter.NewCounterClient(r.Client().Client("Counter"))
			for want := int64(5); want <= 10; want += 5 {
				if got, err := client.Add(r.Context(), 3, []byte{2, 3}); err != nil || got != want {
					t.Fatalf("step %d: %d, %v; want %d; %s", step, got, err, want, l)
				}
			}
			if got, err := client.Totals(r.Context()); err != nil || len(got) != 2 || got[0] != 10 || got[1] != 10 {
				t.Errorf("step %d: state %v, %v", step, got, err)
			}
			got, err := counter.OpenCounter(r.Client(), "Back").Totals(r.Context())
			if err != nil || got[3] != 10 {
				t.Errorf("step %d: Back has %v, %v", step, got, err)
			}
		})
		// It runs for each of two calls, and once more if the child dies before the effect is in the ledger.
		if n := w.times("mail 3"); n < 2 || n > 3 || after && n != 2 {
			t.Errorf("step %d: the effect has run %d times; the nested call had been made: %v", step, n, after)
		}
		if step > 60 {
			t.Fatal("it dies for ever")
		}
	}
}

// TestEnds: a call whose time is over is cancelled at the child, which is told how long it had. A host that is to end lets calls finish, and leaves.
func TestEnds(t *testing.T) {
	bifrosttest.Run(t, bifrosttest.Config{}, func(t *testing.T, r *bifrosttest.Rack) {
		begun, told, release := make(chan hostwire.CallBody, 1), make(chan hostwire.Frame, 1), make(chan struct{})
		h := &scripted{run: func(ctx context.Context) error {
			s := servedIn(ctx)
			begun <- s.body
			select {
			case f := <-s.cancel:
				told <- f
				return rpc.Errorf(rpc.Canceled, "given up")
			case <-release:
				return nil
			}
		}}
		ours, theirs := net.Pipe()
		p := &peer{conn: theirs, processors: map[string]thrift.TProcessor{"Counter": counter.NewCounterProcessor(h)}}
		go p.run(nil)
		c, err := host.Accept(r.Context(), ours, host.Config{})
		must(t, err)
		ctx, cancel := context.WithCancel(r.Context())
		defer cancel()
		ended := make(chan error, 1)
		node := r.Node("s1", "host")
		go func() { ended <- c.Serve(ctx, node) }()
		caller := r.Client()
		client := counter.NewCounterClient(caller.Client("Counter", rpc.WithPolicy(rpc.PolicyNone)))
		brief, stop := context.WithTimeout(r.Context(), 3*time.Second)
		defer stop()
		brief = rpc.WithHeader(brief, "tenant", "blue")
		if _, err := client.Totals(brief); rpc.CodeOf(err) != rpc.Deadline {
			t.Error(err)
		}
		body := <-begun
		if body.Timeout < 1000 || body.Timeout > 3000 || body.Caller != caller.Address().String() || body.ID == "" || fmt.Sprint(body.Headers) != "[{tenant blue}]" || body.Service != "Counter" {
			t.Errorf("%+v", body)
		}
		f, err := hostwire.ParseFail((<-told).Body)
		if err != nil || f.Code != rpc.Deadline && f.Code != rpc.Canceled {
			t.Errorf("%+v, %v", f, err)
		}
		done := make(chan error, 1)
		go func() {
			_, err := client.Totals(r.Context())
			done <- err
		}()
		<-begun
		cancel()
		close(release)
		if err := <-done; err != nil {
			t.Error("a call under way has not finished:", err)
		}
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}
