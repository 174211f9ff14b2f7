package host_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/apache/thrift/lib/go/thrift"

	"github.com/bifrost-rack/bifrost/bifrosttest"
	"github.com/bifrost-rack/bifrost/examples/counter/gen-go/counter"
	"github.com/bifrost-rack/bifrost/host"
	"github.com/bifrost-rack/bifrost/host/hostwire"
	"github.com/bifrost-rack/bifrost/rpc"
)

// frame is a frame as its bytes.
func frame(k hostwire.Kind, call uint32, body string) []byte {
	f := hostwire.Frame{Kind: k, Call: call, Body: []byte(body)}
	return f.Append(nil)
}

// TestHello_Bad: a child that cannot be served is told apart before the node joins, and the error says what is wrong.
func TestHello_Bad(t *testing.T) {
	hello := func(change func(*hostwire.HelloBody)) []byte {
		h := hostwire.HelloBody{Version: hostwire.Version, Services: []hostwire.ServiceBody{{Name: "Counter", Methods: []string{"add", "totals"}}}}
		change(&h)
		b, _ := json.Marshal(h)
		return frame(hostwire.Hello, 0, string(b))
	}
	service := func(change func(*hostwire.ServiceBody)) []byte {
		return hello(func(h *hostwire.HelloBody) { change(&h.Services[0]) })
	}
	pointers := `include "bifrost.thrift"
service Counter { i64 add(1: bifrost.GlobalPointer p), i64 totals() }`
	for want, sent := range map[string][]byte{
		"has not said what it serves: EOF":   nil,
		"unexpected EOF":                     hello(func(*hostwire.HelloBody) {})[:20],
		"want 4194304 at most":               {0xff, 0xff, 0xff, 0xff, byte(hostwire.Hello), 0, 0, 0, 0},
		"kind 99":                            {0, 0, 0, 5, 99, 0, 0, 0, 0},
		"a length of 2":                      {0, 0, 0, 2, byte(hostwire.Hello), 0, 0, 0, 0},
		"begins with answer for call 1":      frame(hostwire.Answer, 1, ""),
		"no JSON":                            frame(hostwire.Hello, 0, "hello"),
		"no version":                         frame(hostwire.Hello, 0, "{}"),
		"version 7 of the protocol":          hello(func(h *hostwire.HelloBody) { h.Version = 7 }),
		`unknown field "colour"`:             frame(hostwire.Hello, 0, `{"version": 1, "colour": 3}`),
		"after top-level value":              frame(hostwire.Hello, 0, `{"version": 1, "services": []}{"version": 1}`),
		"0 services":                         hello(func(h *hostwire.HelloBody) { h.Services = nil }),
		"same name":                          hello(func(h *hostwire.HelloBody) { h.Services = append(h.Services, h.Services[0]) }),
		"has 0 methods":                      service(func(s *hostwire.ServiceBody) { s.Methods = nil }),
		`has the method "add"`:               service(func(s *hostwire.ServiceBody) { s.Methods = []string{"add", "add"} }),
		`has the method "add.ref"`:           service(func(s *hostwire.ServiceBody) { s.Methods = []string{"add.ref"} }),
		"a service is called":                service(func(s *hostwire.ServiceBody) { s.Name = "" }),
		`policy "twice"`:                     service(func(s *hostwire.ServiceBody) { s.Policies = map[string]string{"add": "twice"} }),
		`of method "sub"`:                    service(func(s *hostwire.ServiceBody) { s.Policies = map[string]string{"sub": "none"} }),
		"-1 failures":                        service(func(s *hostwire.ServiceBody) { s.MaxFailures = map[string]int{"": -1} }),
		"5000 workers":                       service(func(s *hostwire.ServiceBody) { s.Workers = 5000 }),
		"its IDL: ":                          service(func(s *hostwire.ServiceBody) { s.IDL = "service Counter {" }),
		"defines no service of this name":    service(func(s *hostwire.ServiceBody) { s.IDL = "service Other { void ping() }" }),
		"method add: it has global pointers": service(func(s *hostwire.ServiceBody) { s.IDL = pointers }),
	} {
		ours, theirs := net.Pipe()
		go func() {
			_, _ = theirs.Write(sent)
			_ = theirs.Close()
		}()
		if _, err := host.Accept(t.Context(), ours, host.Config{}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	ours, theirs := net.Pipe()
	defer theirs.Close()
	if _, err := host.Accept(t.Context(), ours, host.Config{HelloTimeout: time.Millisecond}); err == nil || !strings.Contains(err.Error(), "timeout") {
		t.Error("a child that says nothing", err)
	}
	if _, err := host.Accept(t.Context(), ours, host.Config{Calls: -1}); rpc.CodeOf(err) != rpc.BadRequest {
		t.Error("no calls at a time", err)
	}
}

// misbehaving is the handler of a child that does what none may do when it is called, once.
type misbehaving struct {
	accounts
	do func(s *served)
}

func (m *misbehaving) Totals(ctx context.Context) ([]int64, error) {
	if do := m.do; do != nil {
		m.do = nil
		do(servedIn(ctx))
		<-servedIn(ctx).ctx.Done()
		panic(errDied)
	}
	return m.accounts.Totals(ctx)
}

// TestMisbehaviour: a child that does what none may do ends its host, which says why. The call is answered by the next one.
func TestMisbehaviour(t *testing.T) {
	answer := func(s *served, body []byte) { s.peer.send(hostwire.Answer, s.number, body) }
	for want, do := range map[string]func(s *served){
		"answer for call 1, which it does not have": func(s *served) { // the first one counts
			totals := thriftMessage("totals", thrift.REPLY, []byte{byte(thrift.LIST), 0, 0, byte(thrift.I64), 0, 0, 0, 0, 0})
			answer(s, totals)
			answer(s, totals)
		},
		"answer for call 999":             func(s *served) { s.peer.send(hostwire.Answer, 999, nil) },
		"has sent call for call 1":        func(s *served) { s.peer.send(hostwire.Call, s.number, nil) },
		"has sent hello for call 0":       func(s *served) { s.peer.send(hostwire.Hello, 0, nil) },
		"has sent effect done for call 1": func(s *served) { s.peer.send(hostwire.EffectDone, s.number, []byte{0}) },
		"get for call 1 while it waits": func(s *served) {
			s.peer.send(hostwire.Invoke, s.number, invokeOf("Back", "totals"))
			s.peer.send(hostwire.Get, s.number, nil)
		},
		"answer for call 1 while it runs an":   func(s *served) { s.peer.send(hostwire.Effect, s.number, nil); <-s.frames; answer(s, nil) },
		"kind 200":                             func(s *served) { s.peer.send(200, s.number, nil) },
		"set for call 1: malformed frame: key": func(s *served) { s.peer.send(hostwire.Set, s.number, []byte{0, 0, 0, 9, 'k'}) },
		"key of 5000 bytes":                    func(s *served) { s.peer.send(hostwire.Get, s.number, make([]byte, 5000)) },
		"random for call 1":                    func(s *served) { s.peer.send(hostwire.Random, s.number, []byte{1}) },
		"70000 random bytes":                   func(s *served) { s.peer.send(hostwire.Random, s.number, []byte{0, 1, 0x11, 0x70}) },
		"answer of method totals is no Thrift": func(s *served) { answer(s, []byte("42")) },
		"its answer of method totals: ":        func(s *served) { answer(s, thriftMessage("totals", thrift.REPLY, []byte{byte(thrift.LIST), 0, 0})) },
		"bytes follow the message":             func(s *served) { answer(s, thriftMessage("totals", thrift.REPLY, []byte{0, 0})) },
		`with an answer of "add"`:              func(s *served) { answer(s, thriftMessage("add", thrift.REPLY, []byte{0})) },
		"a Thrift message of type 1":           func(s *served) { answer(s, thriftMessage("totals", thrift.CALL, []byte{0})) },
		"its exception of method totals":       func(s *served) { answer(s, thriftMessage("totals", thrift.EXCEPTION, []byte{11})) },
		`fails with the code "ok"`:             func(s *served) { s.peer.send(hostwire.Fail, s.number, []byte{0}) },
		"code 77":                              func(s *served) { s.peer.send(hostwire.Fail, s.number, []byte{77}) },
		"effect done for call 1: ": func(s *served) {
			s.peer.send(hostwire.Effect, s.number, nil)
			<-s.frames
			s.peer.send(hostwire.EffectDone, s.number, nil)
		},
		"a line of level 9":                      func(s *served) { s.peer.send(hostwire.Log, s.number, []byte{9}) },
		"policy 9":                               func(s *served) { s.peer.send(hostwire.Invoke, s.number, []byte{9, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}) },
		`a call of service "Back": `:             func(s *served) { b := invokeOf("Back", "totals"); s.peer.send(hostwire.Invoke, s.number, b[:len(b)-1]) },
		"it has ended":                           func(s *served) { _ = s.peer.conn.Close() },
		"answer of 300000 bytes: want 263144 at": func(s *served) { answer(s, make([]byte, 300_000)) },
	} {
		t.Run(want, func(t *testing.T) {
			t.Parallel()
			w, first := &world{}, true
			var died chan error // of the bubble
			program := hosted(host.Config{MaxMessage: 1000}, func(conn net.Conn) (*peer, func(*hostwire.HelloBody)) {
				h := &misbehaving{accounts: accounts{world: w}}
				if first {
					h.do, first = do, false
				}
				return &peer{conn: conn, processors: map[string]thrift.TProcessor{"Counter": counter.NewCounterProcessor(h)}}, withState
			})
			programs := map[string]bifrosttest.Program{"back": back, "counter": func(ctx context.Context, node *rpc.Node, args []string) error {
				err := program(ctx, node, args)
				if ctx.Err() == nil {
					died <- err
				}
				return err
			}}
			bifrosttest.Run(t, bifrosttest.Config{Programs: programs}, func(t *testing.T, r *bifrosttest.Rack) {
				died = make(chan error, 9)
				r.DeployText(app)
				if got, err := counter.NewCounterClient(r.Client().Client("Counter")).Totals(r.Context()); err != nil || len(got) > 0 {
					t.Errorf("%v, %v", got, err)
				}
				select {
				case err := <-died:
					if !errors.Is(err, host.ErrChild) || !strings.Contains(err.Error(), want) {
						t.Errorf("the host has ended with %v, want %q", err, want)
					}
				case <-time.After(time.Minute):
					t.Error("the host has not ended")
				}
			})
		})
	}
}

// thriftMessage is a message with a struct as its bytes.
func thriftMessage(name string, kind thrift.TMessageType, body []byte) []byte {
	b := thrift.NewTMemoryBuffer()
	_ = binaryOver(b).WriteMessageBegin(context.Background(), name, kind, 0)
	return append(b.Bytes(), body...)
}

func invokeOf(service, method string) []byte {
	i := hostwire.InvokeBody{Policy: hostwire.NoPolicy, Service: service, Message: thriftMessage(method, thrift.CALL, []byte{0})}
	return i.Append(nil)
}

// TestLimits: what is refused by the host fails as such, and neither host nor child ends.
func TestLimits(t *testing.T) {
	l := &logged{}
	failures := make(chan string, 100)
	h := &scripted{run: func(ctx context.Context) error {
		s := servedIn(ctx)
		note := func(_ []byte, err error) { failures <- fmt.Sprint(rpc.CodeOf(err), ": ", err) }
		note(get(ctx, "key"))
		note(nil, set(ctx, "key", nil))
		note(s.ask(hostwire.Invoke, invokeOf("Nobody.serves.this", "ping")))
		note(counterCall(ctx, "Back", 1))
		_, err := doEffect(ctx, "fails", func() ([]byte, error) { return nil, rpc.Errorf(rpc.NoSpace, "full") })
		note(nil, err)
		line := hostwire.LogBody{Level: 2, Text: "half way"}
		s.peer.send(hostwire.Log, s.number, line.Append(nil))
		return nil
	}}
	cfg := host.Config{MaxMessage: 1000, Logger: l.logger()}
	programs := map[string]bifrosttest.Program{"back": back, "counter": hosted(cfg, func(conn net.Conn) (*peer, func(*hostwire.HelloBody)) {
		return &peer{conn: conn, processors: map[string]thrift.TProcessor{"Counter": counter.NewCounterProcessor(h)}}, nil
	})}
	bifrosttest.Run(t, bifrosttest.Config{Programs: programs}, func(t *testing.T, r *bifrosttest.Rack) {
		r.DeployText(strings.Replace(app, ", stateful: true", "", 1))
		client := counter.NewCounterClient(r.Client().Client("Counter"))
		_, err := client.Totals(r.Context())
		must(t, err)
		for _, want := range []string{"bad request: ", "bad request: ", "unavailable: ", "ok: ", "no space: "} {
			if got := <-failures; !strings.HasPrefix(got, want) {
				t.Errorf("%s, want %s", got, want)
			}
		}
		if !strings.Contains(l.String(), "level=WARN msg=child text=\"half way\" service=Counter method=totals call=") {
			t.Errorf("the child's line is not in the log: %s", l)
		}
		if _, err := client.Add(r.Context(), 1, make([]byte, 2000)); rpc.CodeOf(err) != rpc.BadRequest || !strings.Contains(err.Error(), "--max-message") {
			t.Errorf("arguments that are too long: %v", err)
		}
		_, err = client.Totals(r.Context())
		must(t, err)
	})
}

// scripted is a handler that does the same in each call.
type scripted struct {
	run func(ctx context.Context) error
}

func (s *scripted) Add(ctx context.Context, _ int32, _ []byte) (int64, error) { return 0, s.run(ctx) }

func (s *scripted) Totals(ctx context.Context) ([]int64, error) { return []int64{}, s.run(ctx) }

func counterCall(ctx context.Context, service string, account int32) ([]byte, error) {
	_, err := counter.NewCounterClient(invoker{service: service, policy: uint8(rpc.PolicyRecover)}).Add(ctx, account, []byte{1})
	return nil, err
}

// TestRun_Bad: a command that cannot be started, ends, or says nothing, is told with what has become of it, and is gone.
func TestRun_Bad(t *testing.T) {
	for want, command := range map[string][]string{
		"start the child: exec: ":           {"no-such-command-here"},
		"EOF (sh: exit status 3)":           {"sh", "-c", "exit 3"},
		"EOF (sh: exit status 0)":           {"sh", "-c", "exit 0"},
		"begins with answer for call 0":     {"sh", "-c", `printf '\000\000\000\005\006\000\000\000\000' >&$BIFROST_HOST_FD; read line <&$BIFROST_HOST_FD`},
		"has not said what it serves: read": {"sh", "-c", "trap '' TERM; sleep 1000 & sleep 1000"},
	} {
		cfg := host.Config{}
		if strings.Contains(want, "read") {
			cfg.HelloTimeout = 100 * time.Millisecond
		}
		err := host.Run(t.Context(), command, cfg)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", command, err, want)
		}
	}
}
