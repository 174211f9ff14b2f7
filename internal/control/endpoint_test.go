package control

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/internal/netio"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
	"github.com/bifrost-rack/bifrost/internal/wire"
	"github.com/bifrost-rack/bifrost/p4switch/datapath"
	"github.com/bifrost-rack/bifrost/p4switch/shared/bubble"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// pair is a Gatekeeper and a daemon that talk over a scheduled wire.
type pair struct {
	net    *wire.Net
	g, d   *Endpoint
	cancel context.CancelFunc
	done   sync.WaitGroup
}

// connect runs f with a pair in virtual time.
func connect(t *testing.T, impair wire.Impairment, g, d Handler, f func(t *testing.T, p *pair)) {
	bubble.Test(t, func(t *testing.T) {
		p := &pair{net: wire.New(wire.Config{Schedule: &wire.Schedule{Seed: 1, Quiesce: synctest.Wait}})}
		p.net.Connect(p.net.Router())
		ctx, cancel := context.WithCancel(context.Background())
		p.cancel = cancel
		p.done.Go(func() { p.net.Run(ctx) })
		hosts := [2]netip.AddrPort{
			netip.AddrPortFrom(rackaddr.Gatekeeper, rackaddr.PortControl),
			netip.AddrPortFrom(rackaddr.Blade(1), rackaddr.PortControl),
		}
		p.g = p.end(t, ctx, "g", 1, hosts[0], hosts[1], impair, Config{
			PeerConfig: PeerConfig{Boot: 11, Election: Election{Low: 5}}, Handle: g,
		})
		p.d = p.end(t, ctx, "d", 2, hosts[1], hosts[0], impair, Config{PeerConfig: PeerConfig{Boot: 12, Follow: true}, Handle: d})
		f(t, p)
		cancel()
		p.done.Wait()
	})
}

// end puts one endpoint on a host of its own.
func (p *pair) end(t *testing.T, ctx context.Context, name string, port datapath.Port, local, remote netip.AddrPort, impair wire.Impairment, cfg Config) *Endpoint {
	h, err := p.net.AddHost(wire.HostConfig{Name: name, Port: port, Address: local.Addr()})
	if err != nil {
		t.Fatal(err)
	}
	h.Impair(impair, impair)
	conn, err := h.ListenUDP(local)
	if err != nil {
		t.Fatal(err)
	}
	cfg.Send = func(b []byte) error {
		_, err := conn.WriteBatch([]netio.Message{{Buf: b, Remote: remote}})
		return err
	}
	e := NewEndpoint(cfg)
	p.done.Go(func() { e.Run(ctx) })
	p.done.Go(func() {
		for {
			ms := []netio.Message{{Buf: make([]byte, 2048)}}
			if _, err := conn.ReadBatch(ms); err != nil {
				return
			}
			e.Deliver(ms[0].Buf)
		}
	})
	p.done.Go(func() { <-ctx.Done(); conn.Close() })
	return e
}

// TestEachRequestIsServedOnce: a lossy wire changes nothing but the time it takes.
func TestEachRequestIsServedOnce(t *testing.T) {
	const workers, requests = 8, 50
	var mu sync.Mutex
	served := map[string]int{}
	handler := func(side string) Handler {
		return func(_ context.Context, m Message) (any, error) {
			var n int
			if err := m.Decode(&n); err != nil {
				return nil, err
			}
			mu.Lock()
			defer mu.Unlock()
			served[fmt.Sprint(side, n)]++
			if n%10 == 0 {
				return nil, fault.New(fault.NoSpace, "x", "number %d", n)
			}
			return 2 * n, nil
		}
	}
	bad := wire.Impairment{Delay: time.Millisecond, Loss: 0.2, Duplicate: 0.2, Reorder: 0.2, Late: 0.1}
	connect(t, bad, handler("g"), handler("d"), func(t *testing.T, p *pair) {
		var all sync.WaitGroup
		for _, e := range []*Endpoint{p.g, p.d} {
			for w := range workers {
				all.Go(func() {
					for i := range requests {
						n, got := w*requests+i, 0
						err := e.Ask(t.Context(), KindJoin, n, &got)
						if n%10 == 0 {
							var f *fault.Error
							if !errors.As(err, &f) || f.Code != fault.NoSpace || !f.Remote || f.Msg != fmt.Sprintf("number %d", n) {
								t.Errorf("request %d: error %v", n, err)
							}
						} else if err != nil || got != 2*n {
							t.Errorf("request %d: got %d, %v", n, got, err)
						}
					}
				})
			}
		}
		all.Wait()
	})
	if len(served) != 2*workers*requests {
		t.Errorf("%d requests served, want %d", len(served), 2*workers*requests)
	}
	for r, n := range served {
		if n != 1 {
			t.Errorf("request %s served %d times", r, n)
		}
	}
}

// TestAlarm: when all is answered, no timer runs.
func TestAlarm(t *testing.T) {
	echo := func(context.Context, Message) (any, error) { return nil, nil }
	connect(t, wire.Impairment{}, echo, echo, func(t *testing.T, p *pair) {
		if err := p.d.Ask(context.Background(), KindHeartbeat, struct{}{}, nil); err != nil {
			t.Fatal(err)
		}
		<-time.After(time.Millisecond) // virtual: before anything would be sent again
		if p.d.alarm.Stop() || p.g.alarm.Stop() {
			t.Error("an alarm is set, and nothing is to be done")
		}
	})
}

func TestAskEnds(t *testing.T) {
	never := func(ctx context.Context, _ Message) (any, error) { <-ctx.Done(); return nil, ctx.Err() }
	connect(t, wire.Impairment{}, never, never, func(t *testing.T, p *pair) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if err := p.d.Ask(ctx, KindHello, Hello{}, nil); fault.CodeOf(err) != fault.Deadline {
			t.Errorf("deadline: %v", err)
		}
		canceled, cancelNow := context.WithCancel(t.Context())
		cancelNow()
		if err := p.d.Ask(canceled, KindHello, Hello{}, nil); fault.CodeOf(err) != fault.Canceled {
			t.Errorf("cancelled: %v", err)
		}
		failed := make(chan error)
		go func() { failed <- p.g.Ask(t.Context(), KindStop, Stop{}, nil) }()
		<-time.After(time.Second)
		p.cancel()
		if err := <-failed; fault.CodeOf(err) != fault.Unavailable {
			t.Errorf("endpoint ended: %v", err)
		}
		p.d.Deliver((&Message{Kind: KindStop, ID: 9, Floor: 9, Sender: 1}).Append(nil)) // after the end: nothing
	})
}

// TestBadRequestsAreAnswered: what cannot be carried out is refused, not ignored.
func TestBadRequestsAreAnswered(t *testing.T) {
	decode := func(_ context.Context, m Message) (any, error) {
		var h Hello
		if err := m.Decode(&h); err != nil {
			return nil, err
		}
		return func() {}, nil // no JSON
	}
	connect(t, wire.Impairment{}, decode, nil, func(t *testing.T, p *pair) {
		cases := []struct {
			name    string
			end     *Endpoint
			request any
			want    fault.Code
		}{
			{"malformed body", p.d, "not an object", fault.BadRequest},
			{"reply that is no JSON", p.d, Hello{}, fault.Internal},
			{"nobody handles it", p.g, Hello{}, fault.Unsupported},
			{"request that is no JSON", p.g, func() {}, fault.BadRequest},
		}
		for _, tc := range cases {
			if err := tc.end.Ask(t.Context(), KindHello, tc.request, nil); fault.CodeOf(err) != tc.want {
				t.Errorf("%s: error %v, want %v", tc.name, err, tc.want)
			}
		}
	})
}

// TestBusyHandlers: requests beyond MaxHandlers wait at their sender.
func TestBusyHandlers(t *testing.T) {
	release := make(chan struct{})
	var mu sync.Mutex
	running, most := 0, 0
	slow := func(context.Context, Message) (any, error) {
		mu.Lock()
		running++
		most = max(most, running)
		mu.Unlock()
		<-release
		mu.Lock()
		defer mu.Unlock()
		running--
		return nil, nil
	}
	connect(t, wire.Impairment{}, slow, nil, func(t *testing.T, p *pair) {
		release = make(chan struct{}) // of this bubble
		var all sync.WaitGroup
		for range 2 * MaxHandlers {
			all.Go(func() {
				if err := p.d.Ask(t.Context(), KindHello, Hello{}, nil); err != nil {
					t.Error(err)
				}
			})
		}
		<-time.After(time.Second)
		close(release)
		all.Wait()
	})
	if most != MaxHandlers {
		t.Errorf("%d handlers at a time, want %d", most, MaxHandlers)
	}
}

func TestTooManyRequests(t *testing.T) {
	e := NewEndpoint(Config{PeerConfig: PeerConfig{Boot: 1}})
	for range Window {
		if _, _, err := e.ask(KindHello, nil, nil, 0); err != nil {
			t.Fatal(err)
		}
	}
	if _, _, err := e.ask(KindHello, nil, nil, 0); fault.CodeOf(err) != fault.Overloaded {
		t.Errorf("error %v", err)
	}
	e.peer.Cancel(1)
	if _, _, err := e.ask(KindHello, nil, nil, 0); err != nil {
		t.Errorf("after one has ended: %v", err)
	}
}

// TestAskInTurn: while one request waits for its reply, thousands of others go on only as far as the window lets them, and
// wait then. One that does not wait its turn still has room.
func TestAskInTurn(t *testing.T) {
	const each, askers = 500, 8
	slow := func(_ context.Context, m Message) (any, error) {
		if m.Kind == KindLeave {
			<-time.After(time.Second) // virtual
		}
		return nil, nil
	}
	connect(t, wire.Impairment{}, slow, nil, func(t *testing.T, p *pair) {
		ctx := t.Context()
		var all sync.WaitGroup
		all.Go(func() {
			if err := p.d.AskInTurn(ctx, KindLeave, nil, nil); err != nil {
				t.Error(err)
			}
		})
		for range askers {
			all.Go(func() {
				for n := range each {
					if err := p.d.AskInTurn(ctx, KindWho, nil, nil); err != nil {
						t.Errorf("request %d: %v", n, err)
						return
					}
				}
			})
		}
		<-time.After(500 * time.Millisecond)
		for range Kept {
			if err := p.d.Ask(ctx, KindHeartbeat, nil, nil); err != nil {
				t.Errorf("one of the daemon's own: %v", err)
			}
		}
		given, giveUp := context.WithTimeout(ctx, 10*time.Millisecond)
		defer giveUp()
		if err := p.d.AskInTurn(given, KindWho, nil, nil); fault.CodeOf(err) != fault.Deadline {
			t.Errorf("a request whose turn does not come: %v", err)
		}
		all.Wait()
	})
}
