package host_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"log/slog"
	"maps"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/apache/thrift/lib/go/thrift"

	"github.com/bifrost-rack/bifrost/bifrosttest"
	"github.com/bifrost-rack/bifrost/host"
	"github.com/bifrost-rack/bifrost/host/hostwire"
	"github.com/bifrost-rack/bifrost/rpc"
)

// peer is the child's end of a connection, in Go: what a package for another language does.
type peer struct {
	conn       net.Conn
	processors map[string]thrift.TProcessor
	// step is told of each frame before it is sent, and when it has come. If it returns true, the child dies there.
	step func(sent bool, k hostwire.Kind) bool

	mu    sync.Mutex
	calls map[uint32]*served
}

// served is a call that a peer has.
type served struct {
	peer   *peer
	number uint32
	body   hostwire.CallBody
	frames chan hostwire.Frame
	cancel chan hostwire.Frame // has the frame with which the host cancels the call
	ctx    context.Context     //nolint:containedctx // ends with the handler, and with the child
}

type servedKey struct{}

func servedIn(ctx context.Context) *served { return ctx.Value(servedKey{}).(*served) }

var errDied = errors.New("the child has died")

// hello says what a peer serves.
func (p *peer) hello(change func(*hostwire.HelloBody)) {
	h := hostwire.HelloBody{Version: hostwire.Version, Name: "peer", Speaks: "Go"}
	for _, name := range slices.Sorted(maps.Keys(p.processors)) {
		h.Services = append(h.Services, hostwire.ServiceBody{Name: name, Methods: slices.Sorted(maps.Keys(p.processors[name].ProcessorMap()))})
	}
	if change != nil {
		change(&h)
	}
	b, err := json.Marshal(h)
	if err != nil {
		panic(err)
	}
	p.send(hostwire.Hello, 0, b)
}

// send sends a frame, and ends the goroutine if the child is dead.
func (p *peer) send(k hostwire.Kind, call uint32, body []byte) {
	if p.step != nil && p.step(true, k) {
		_ = p.conn.Close()
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	f := hostwire.Frame{Kind: k, Call: call, Body: body}
	if _, err := p.conn.Write(f.Append(nil)); err != nil {
		panic(errDied)
	}
}

// dies recovers from the end of the child.
func dies() {
	if v := recover(); v != nil && v != any(errDied) {
		panic(v)
	}
}

// run serves until the host is gone.
func (p *peer) run(change func(*hostwire.HelloBody)) {
	defer dies()
	p.calls = map[uint32]*served{}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	defer p.conn.Close()
	p.hello(change)
	for {
		f, err := hostwire.Read(p.conn, 1<<30)
		if err != nil || p.step != nil && p.step(false, f.Kind) {
			return
		}
		p.take(ctx, f)
	}
}

func (p *peer) take(ctx context.Context, f hostwire.Frame) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch f.Kind {
	case hostwire.Call:
		ctx, cancel := context.WithCancel(ctx)
		s := &served{peer: p, number: f.Call, frames: make(chan hostwire.Frame, 1), cancel: make(chan hostwire.Frame, 1)}
		s.ctx = context.WithValue(ctx, servedKey{}, s)
		var err error
		if s.body, err = hostwire.ParseCall(f.Body); err != nil {
			panic(err)
		}
		p.calls[f.Call] = s
		context.AfterFunc(ctx, func() { close(s.frames) })
		go func() {
			defer dies()
			defer cancel()
			s.serve()
		}()
	case hostwire.Cancel:
		p.calls[f.Call].cancel <- f
	case hostwire.Result, hostwire.Run:
		p.calls[f.Call].frames <- f
	}
}

// serve has the processor serve the call.
func (s *served) serve() {
	in, out := thrift.NewTMemoryBuffer(), thrift.NewTMemoryBuffer()
	in.Write(s.body.Message)
	_, err := s.peer.processors[s.body.Service].Process(s.ctx, binaryOver(in), binaryOver(out))
	var coded *rpc.Error
	var broken brokenError
	switch {
	case errors.As(err, &broken):
		s.peer.send(hostwire.Broken, s.number, []byte(broken))
	case errors.As(err, &coded):
		f := hostwire.FailBody{Code: coded.Code, Data: []byte(coded.Msg)}
		s.peer.send(hostwire.Fail, s.number, f.Append(nil))
	default:
		s.peer.send(hostwire.Answer, s.number, out.Bytes())
	}
}

// brokenError is what a handler returns that is to count as broken.
type brokenError string

func (b brokenError) Error() string { return string(b) }

func binaryOver(b thrift.TTransport) thrift.TProtocol {
	return thrift.NewTBinaryProtocolConf(b, &thrift.TConfiguration{TBinaryStrictRead: new(true), TBinaryStrictWrite: new(true)})
}

// ask asks the host for something.
func (s *served) ask(k hostwire.Kind, body []byte) ([]byte, error) {
	s.peer.send(k, s.number, body)
	return s.result(<-s.frames)
}

func (s *served) result(f hostwire.Frame) ([]byte, error) {
	if f.Kind == 0 {
		panic(errDied)
	}
	r, err := hostwire.ParseResult(f.Body)
	if err != nil {
		panic(err)
	}
	if r.Code != rpc.OK {
		return nil, rpc.Errorf(r.Code, "%s", r.Data)
	}
	return r.Data, nil
}

func get(ctx context.Context, key string) ([]byte, error) {
	b, err := servedIn(ctx).ask(hostwire.Get, []byte(key))
	if err != nil || b[0] == 0 {
		return nil, err
	}
	return b[1:], nil
}

func set(ctx context.Context, key string, value []byte) error {
	b := hostwire.SetBody{Key: key, Value: value}
	_, err := servedIn(ctx).ask(hostwire.Set, b.Append(nil))
	return err
}

// number reads a number of the state.
func number(ctx context.Context, key string) (int64, error) {
	b, err := get(ctx, key)
	if err != nil || b == nil {
		return 0, err
	}
	return int64(binary.BigEndian.Uint64(b)), nil
}

func setNumber(ctx context.Context, key string, n int64) error {
	return set(ctx, key, binary.BigEndian.AppendUint64(nil, uint64(n)))
}

func doEffect(ctx context.Context, key string, f func() ([]byte, error)) ([]byte, error) {
	s := servedIn(ctx)
	s.peer.send(hostwire.Effect, s.number, []byte(key))
	r := <-s.frames
	if r.Kind == hostwire.Run {
		b, err := f()
		done := hostwire.FailBody{Data: b}
		if err != nil {
			done = hostwire.FailBody{Code: rpc.CodeOf(err), Data: []byte(err.Error())}
		}
		s.peer.send(hostwire.EffectDone, s.number, done.Append(nil))
		r = <-s.frames
	}
	return s.result(r)
}

// invoker makes calls of another service within a call.
type invoker struct {
	service string
	policy  uint8
	timeout time.Duration
}

// Call implements thrift.TClient.
func (i invoker) Call(ctx context.Context, method string, args, result thrift.TStruct) (thrift.ResponseMeta, error) {
	out := thrift.NewTMemoryBuffer()
	p := binaryOver(out)
	kind := thrift.CALL
	if result == nil {
		kind = thrift.ONEWAY
	}
	if err := errors.Join(p.WriteMessageBegin(ctx, method, kind, 0), args.Write(ctx, p)); err != nil {
		return thrift.ResponseMeta{}, err
	}
	body := hostwire.InvokeBody{Policy: i.policy, Timeout: uint32(i.timeout.Milliseconds()), Service: i.service, Message: out.Bytes(), Headers: []hostwire.Header{{Key: "tenant", Value: "blue"}}}
	b, err := servedIn(ctx).ask(hostwire.Invoke, body.Append(nil))
	if err != nil || result == nil {
		return thrift.ResponseMeta{}, err
	}
	in := thrift.NewTMemoryBuffer()
	in.Write(b)
	p = binaryOver(in)
	_, kind, _, err = p.ReadMessageBegin(ctx)
	if err == nil && kind == thrift.EXCEPTION {
		app := thrift.NewTApplicationException(0, "")
		err = errors.Join(app.Read(ctx, p))
		if err == nil {
			err = app
		}
		return thrift.ResponseMeta{}, err
	}
	if err == nil {
		err = result.Read(ctx, p)
	}
	return thrift.ResponseMeta{}, err
}

// hosted is a program of the rack: a host, and a peer as its child. Each start of the program makes a new peer.
func hosted(cfg host.Config, child func(conn net.Conn) (p *peer, change func(*hostwire.HelloBody))) bifrosttest.Program {
	return func(ctx context.Context, node *rpc.Node, _ []string) error {
		ours, theirs := net.Pipe()
		p, change := child(theirs)
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			p.run(change)
		}()
		defer func() { <-ended }()
		c, err := host.Accept(ctx, ours, cfg)
		if err != nil {
			return err
		}
		err = c.Serve(ctx, node)
		if err != nil {
			<-time.After(100 * time.Millisecond) // a process takes a while to end: nothing must become of its calls meanwhile
		}
		return err
	}
}

// logged collects what a host logs.
type logged struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logged) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logged) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func (l *logged) logger() *slog.Logger {
	return slog.New(slog.NewTextHandler(l, &slog.HandlerOptions{Level: slog.LevelDebug}))
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
