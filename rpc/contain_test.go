package rpc_test

import (
	"context"
	"errors"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/bifrost-rack/bifrost/rpc"
	"github.com/bifrost-rack/bifrost/rpc/internal/testsvc"
)

// odd is an error whose methods do what they should not.
type odd struct{ text, unwrap, is, as func() }

func (o *odd) Error() string { do(o.text); return "odd" }
func (o *odd) Unwrap() error { do(o.unwrap); return nil }
func (o *odd) Is(error) bool { do(o.is); return false }
func (o *odd) As(any) bool   { do(o.as); return false }

func do(f func()) {
	if f != nil {
		f()
	}
}

func panics() { panic("as asked") }

// checker is a handler whose check and echo a test fills in.
type checker struct {
	testsvc.Handler
	check func(context.Context) error
	echo  func() *testsvc.Everything
}

func (c *checker) Check(ctx context.Context, _ int32) error { return c.check(ctx) }

func (c *checker) Echo(context.Context, *testsvc.Everything) (*testsvc.Everything, error) {
	return c.echo(), nil
}

// misdeeds are what a handler does or returns that its program would end of.
var misdeeds = map[string]func(context.Context) error{
	"a nil exception":           func(context.Context) error { var r *testsvc.Refused; return r },
	"a nil error":               func(context.Context) error { var o *odd; return o },
	"a nil coded error":         func(context.Context) error { var e *rpc.Error; return e },
	"panic":                     func(context.Context) error { panic("as asked") },
	"panic with an error":       func(context.Context) error { panic(&odd{text: panics}) },
	"nil panic":                 func(context.Context) error { panic(nil) },
	"Goexit":                    func(context.Context) error { runtime.Goexit(); return nil },
	"Error panics":              func(context.Context) error { return &odd{text: panics} },
	"Error ends the goroutine":  func(context.Context) error { return &odd{text: runtime.Goexit} },
	"Unwrap panics":             func(context.Context) error { return &odd{unwrap: panics} },
	"Unwrap ends the goroutine": func(context.Context) error { return &odd{unwrap: runtime.Goexit} },
	"Is panics":                 func(context.Context) error { return &odd{is: panics} },
	"As panics":                 func(context.Context) error { return &odd{as: panics} },
	"no code":                   func(context.Context) error { return &rpc.Error{Msg: "of a test"} },
	"unknown code":              func(context.Context) error { return &rpc.Error{Code: 200, Msg: "of a test"} },
	"the cause of a coded error panics": func(context.Context) error {
		return &rpc.Error{Code: rpc.NotFound, Msg: "of a test", Err: &odd{text: panics}}
	},
	"an effect panics": func(ctx context.Context) error {
		_, err := rpc.Effect(ctx, "key", func(context.Context) ([]byte, error) { panic("as asked") })
		return err
	},
	"an effect ends the goroutine": func(ctx context.Context) error {
		_, err := rpc.Effect(ctx, "key", func(context.Context) ([]byte, error) { runtime.Goexit(); return nil, nil })
		return err
	},
	"a branch panics": func(ctx context.Context) error {
		return rpc.Go(ctx, func(context.Context) error { panic("as asked") }).Wait()
	},
	"a branch ends the goroutine": func(ctx context.Context) error {
		return rpc.Go(ctx, func(context.Context) error { runtime.Goexit(); return nil }).Wait()
	},
	"a branch's error panics": func(ctx context.Context) error {
		return rpc.Go(ctx, func(context.Context) error { return &odd{text: panics} }).Wait()
	},
}

// misbehaves has a service with one worker do a misdeed, before and after its method is known to be quick, in calls of both
// kinds: each is answered, by name, and the service goes on.
func misbehaves(t *testing.T, p *pair, h *checker, method string, call func(context.Context, *testsvc.TestClient) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute) // virtual
	defer cancel()
	if err := p.server.Export(ctx, "Odd", testsvc.NewTestProcessor(h), rpc.WithWorkers(1), rpc.WithQueue(1)); err != nil {
		t.Fatal(err)
	}
	for _, policy := range []rpc.Policy{rpc.PolicyNone, rpc.PolicyRecover} {
		c := testsvc.NewTestClient(p.caller.Client("Odd", rpc.WithPolicy(policy)))
		for range 3 {
			var coded *rpc.Error
			err := call(ctx, c)
			if !errors.As(err, &coded) || coded.Code != rpc.Internal || !coded.Remote || !strings.Contains(coded.Msg, "service Odd, method "+method) {
				t.Errorf("policy %v: got %v", policy, err)
			}
			if sum, err := c.Add(ctx, 1, 2); sum != 3 || err != nil {
				t.Errorf("policy %v: the next call: %v, %v", policy, sum, err)
			}
		}
	}
	closeNode(t, p.caller)
	closeNode(t, p.server)
}

// TestMisdeeds: whatever a handler does or returns ends its call, and nothing else.
func TestMisdeeds(t *testing.T) {
	for name, misdeed := range misdeeds {
		t.Run(name, func(t *testing.T) {
			calm(t, nil, func(t *testing.T, p *pair) {
				misbehaves(t, p, &checker{check: misdeed}, "check", func(ctx context.Context, c *testsvc.TestClient) error { return c.Check(ctx, 1) })
			})
		})
	}
	t.Run("a result that cannot be written", func(t *testing.T) {
		broken := everything()
		broken.Shape = nil
		calm(t, nil, func(t *testing.T, p *pair) {
			misbehaves(t, p, &checker{echo: func() *testsvc.Everything { return broken }}, "echo", func(ctx context.Context, c *testsvc.TestClient) error {
				_, err := c.Echo(ctx, everything())
				return err
			})
		})
	})
}

// TestMisdeedsOfOneways: a one-way that ends badly leaves the slot free.
func TestMisdeedsOfOneways(t *testing.T) {
	calm(t, nil, func(t *testing.T, p *pair) {
		h := &noter{checker: checker{check: misdeeds["Goexit"]}, done: make(chan struct{}, 1)}
		if err := p.server.Export(t.Context(), "Odd", testsvc.NewTestProcessor(h), rpc.WithWorkers(1)); err != nil {
			t.Fatal(err)
		}
		for _, policy := range []rpc.Policy{rpc.PolicyNone, rpc.PolicyRecover} {
			c := testsvc.NewTestClient(p.caller.Client("Odd", rpc.WithPolicy(policy)))
			for range 3 {
				if err := c.Note(t.Context(), 1); err != nil {
					t.Error(err)
				}
				<-h.done
			}
			if sum, err := c.Add(t.Context(), 1, 2); sum != 3 || err != nil {
				t.Errorf("policy %v: the next call: %v, %v", policy, sum, err)
			}
		}
	})
}

// noter is a checker whose one-way ends its goroutine.
type noter struct {
	checker
	done chan struct{}
}

func (n *noter) Note(ctx context.Context, _ int64) error {
	n.done <- struct{}{}
	return n.check(ctx)
}

// TestMainLeaves: a main whose function panics, or ends its goroutine, has ended as one that fails: the next one goes on from the
// last checkpoint.
func TestMainLeaves(t *testing.T) {
	for name, leave := range map[string]func(){"panic": panics, "Goexit": runtime.Goexit} {
		t.Run(name, func(t *testing.T) {
			p := newPair(t)
			over := make(chan struct{})
			go func() {
				defer close(over)
				defer func() { _ = recover() }()
				_ = rpc.Main(t.Context(), p.server, "odd", func(ctx context.Context, _ []byte) error {
					if err := rpc.Checkpoint(ctx, []byte("half")); err != nil {
						t.Error(err)
					}
					_ = rpc.Now(ctx)
					leave()
					return nil
				})
			}()
			select {
			case <-over:
			case <-time.After(time.Minute):
				t.Fatal("Main has not returned")
			}
			if err := rpc.Main(t.Context(), p.server, "odd", func(_ context.Context, state []byte) error {
				if string(state) != "half" {
					t.Errorf("state %q", state)
				}
				return nil
			}); err != nil {
				t.Error(err)
			}
		})
	}
}

// moody is a state whose methods do what a test says. It knows what has changed.
type moody struct {
	all, fresh                      string
	snapshot, restore, delta, apply func()
}

func (m *moody) add(s string) { m.all, m.fresh = m.all+s, m.fresh+s }

func (m *moody) Snapshot() ([]byte, error) {
	do(m.snapshot)
	m.fresh = ""
	return []byte(m.all), nil
}

func (m *moody) Restore(b []byte) error {
	do(m.restore)
	m.all, m.fresh = string(b), ""
	return nil
}

func (m *moody) Delta() ([]byte, error) {
	do(m.delta)
	d := m.fresh
	m.fresh = ""
	return []byte(d), nil
}

func (m *moody) Apply(b []byte) error {
	do(m.apply)
	m.all += string(b)
	return nil
}

// once is a function that does f when it is called for the n-th time.
func once(n int, f func()) func() {
	return func() {
		if n--; n == 0 {
			f()
		}
	}
}

// TestMisdeedsOfStates: when a handler, or a method of its state, panics or ends its goroutine, what the call has made of the
// state is undone. The service goes on.
func TestMisdeedsOfStates(t *testing.T) {
	for name, leave := range map[string]func(){"panics": panics, "ends its goroutine": runtime.Goexit} {
		for _, method := range []string{"Snapshot", "Delta", "handler"} {
			t.Run(method+" "+name, func(t *testing.T) {
				m, bad := &moody{all: "a"}, func() {}
				h := &checker{check: func(context.Context) error { m.add("b"); bad(); return nil }}
				var state rpc.State = m
				if method == "Snapshot" {
					state = struct{ rpc.State }{m} // without deltas
				}
				p := newPair(t)
				if err := p.server.Export(t.Context(), "Odd", testsvc.NewTestProcessor(h), rpc.WithState(state)); err != nil {
					t.Fatal(err)
				}
				switch method {
				case "Snapshot":
					m.snapshot = once(3, leave)
				case "Delta":
					m.delta = once(3, leave)
				default:
					bad = once(2, leave)
				}
				c := testsvc.NewTestClient(p.caller.Client("Odd", rpc.WithPolicy(rpc.PolicyRecover)))
				for i, want := range []string{"ab", "ab", "abb"} {
					err := c.Check(t.Context(), 1)
					if i != 1 && err != nil || i == 1 && (rpc.CodeOf(err) != rpc.Internal || !strings.Contains(err.Error(), "service Odd, method check")) {
						t.Errorf("call %d: %v", i, err)
					}
					if _, err := c.Add(t.Context(), 1, 2); err != nil { // which waits for what the call before does to the state
						t.Error(err)
					}
					if m.all != want {
						t.Errorf("call %d: state %q, want %q", i, m.all, want)
					}
				}
			})
		}
	}
}

// TestStateCannotBeRestored: a service whose state panics in Restore is not exported. If that is to undo a call, its node ends: only the
// ledger knows the state then.
func TestStateCannotBeRestored(t *testing.T) {
	for name, leave := range map[string]func(){"panics": panics, "ends its goroutine": runtime.Goexit} {
		t.Run(name, func(t *testing.T) {
			m := &moody{all: "a", restore: leave}
			p := newPair(t)
			h := &checker{check: func(context.Context) error { m.add("b"); panic("as asked") }}
			if err := p.server.Export(t.Context(), "Odd", testsvc.NewTestProcessor(h), rpc.WithState(m)); err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			go func() {
				_ = testsvc.NewTestClient(p.caller.Client("Odd", rpc.WithPolicy(rpc.PolicyRecover))).Check(ctx, 1)
			}()
			select {
			case <-p.server.Done():
				if err := p.server.Export(t.Context(), "More", testsvc.NewTestProcessor(h)); rpc.CodeOf(err) != rpc.Internal || !strings.Contains(err.Error(), "service Odd") {
					t.Errorf("the node has ended: %v", err)
				}
			case <-ctx.Done():
				t.Error("the node goes on, and nobody knows its state")
			}
		})
	}
}
