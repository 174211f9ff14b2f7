package rpc_test

import (
	"bytes"
	"context"
	"errors"
	"maps"
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/apache/thrift/lib/go/thrift"

	"github.com/bifrost-rack/bifrost/internal/wire"
	"github.com/bifrost-rack/bifrost/rpc"
	"github.com/bifrost-rack/bifrost/rpc/internal/testrack"
	"github.com/bifrost-rack/bifrost/rpc/internal/testsvc"
)

// pair is a server of the test service and a client of it.
type pair struct {
	rack           *testrack.Rack
	handler        *testsvc.Handler
	server, caller *rpc.Node
	client         *testsvc.TestClient
}

func newPair(t testing.TB, opts ...rpc.ExportOption) *pair {
	t.Helper()
	p := &pair{rack: testrack.New(t, wire.Config{}), handler: &testsvc.Handler{}}
	p.server = serve(t, p.rack, p.handler, opts...)
	p.caller = joinNode(t, p.rack, "client")
	p.client = p.newClient()
	return p
}

// newClient returns a generated client: each goroutine needs its own.
func (p *pair) newClient() *testsvc.TestClient { return testsvc.NewTestClient(plain(p.caller, "Test")) }

func point(x, y float64) *testsvc.Point { return &testsvc.Point{X: x, Y: y} }

func everything() *testsvc.Everything {
	note, name := "note", "square"
	return &testsvc.Everything{
		Flag: true, Tiny: -128, Small: math.MinInt16, Medium: math.MaxInt32, Large: math.MinInt64, Real: math.Pi,
		Text: "Bifröst ᛒ", Raw: []byte{0, 255, 1}, Colour: testsvc.Colour_BLUE, Stamp: 1 << 62, Point: point(1, 2),
		Strings: []string{"", "a"}, Numbers: []int32{3, 1, 2},
		Shapes: map[string][]*testsvc.Point{"line": {point(0, 0), point(1, 1)}, "empty": {}}, Note: &note,
		Inner: &testsvc.Everything{Must: 2, Preset: 1, Shape: &testsvc.Shape{Corners: []*testsvc.Point{point(5, 5)}}},
		Shape: &testsvc.Shape{Name: &name}, Must: -1, Preset: 42, Matrix: [][]int64{{1}, {}, {2, 3}},
		Nested: map[int32]map[int32]string{1: {2: "x"}},
	}
}

// Every kind of type survives the way there and back.
func TestAllTypes(t *testing.T) {
	p := newPair(t)
	want := everything()
	got, err := p.client.Echo(t.Context(), want)
	if err != nil {
		t.Fatal(err)
	}
	fill := func(e *testsvc.Everything) { // what Thrift makes of an absent container
		if e.Strings == nil {
			e.Strings = []string{}
		}
	}
	fill(got)
	if !reflect.DeepEqual(got.Shapes, want.Shapes) || !got.Inner.Shape.Equals(want.Inner.Shape) {
		t.Errorf("got %+v", got)
	}
	got.Inner, want.Inner = nil, nil
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
	raw := bytes.Repeat([]byte{7}, 60000)
	if b, err := p.client.Blob(t.Context(), raw); err != nil || !bytes.Equal(b, raw) {
		t.Errorf("60000 bytes: got %d, %v", len(b), err)
	}
}

func TestExceptionsThatTheIDLDeclares(t *testing.T) {
	p := newPair(t)
	if s, err := p.client.Greet(t.Context(), "Heimdall", []string{"watchman"}); s != "hello watchman Heimdall" || err != nil {
		t.Errorf("got %q, %v", s, err)
	}
	var refused *testsvc.Refused
	if _, err := p.client.Greet(t.Context(), "", nil); !errors.As(err, &refused) || refused.Number != 7 {
		t.Errorf("got %v", err)
	}
	var other *testsvc.Other
	received(p.server, testsvc.Evidence())
	if _, err := p.client.Greet(t.Context(), "other", nil); !errors.As(err, &other) || other.Evidence == nil {
		t.Errorf("got %v", err)
	}
	err := p.client.Check(t.Context(), -3)
	if !errors.As(err, &refused) || refused.Number != -3 || rpc.CodeOf(err) != rpc.Declared {
		t.Errorf("got %v with code %v", err, rpc.CodeOf(err))
	}
	if err := p.client.Check(t.Context(), 3); err != nil {
		t.Error(err)
	}
	for _, n := range []*rpc.Node{p.caller, p.server} { // they are failures of a kind of their own
		for _, m := range n.Methods() {
			if _, declared := m.Times[rpc.Declared]; len(m.Times) > 0 && (!declared || len(m.Times) != 2) {
				t.Errorf("%s counts %s.%s: %+v", n.Name(), m.Service, m.Method, m.Times)
			}
		}
	}
}

func TestExceptionsThatItDoesNotDeclare(t *testing.T) {
	p := newPair(t)
	err := p.client.Fail(t.Context(), "")
	var app thrift.TApplicationException
	if !errors.As(err, &app) || app.TypeId() != thrift.INTERNAL_ERROR || !strings.Contains(err.Error(), testsvc.ErrFail.Error()) {
		t.Errorf("got %v", err)
	}
	if rpc.CodeOf(err) != rpc.Application {
		t.Errorf("code %v", rpc.CodeOf(err))
	}
	// A coded error keeps its code.
	p.handler.Gate = func(context.Context, int64) error { return rpc.Errorf(rpc.NoSpace, "%d is too much", 5) }
	var coded *rpc.Error
	_, err = p.client.Count(t.Context(), 5)
	if !errors.As(err, &coded) || coded.Code != rpc.NoSpace || !coded.Remote || coded.Op != "call Test.count" || coded.Msg != "5 is too much" {
		t.Errorf("got %#v", err)
	}
}

func TestPanicBecomesException(t *testing.T) {
	p := newPair(t)
	for range 3 { // also when the reader itself runs the handler
		var coded *rpc.Error
		if err := p.client.Fail(t.Context(), "panic"); !errors.As(err, &coded) || coded.Code != rpc.Internal || !coded.Remote {
			t.Fatalf("got %v", err)
		}
	}
	if err := p.client.Ping(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestOneway(t *testing.T) {
	p := newPair(t)
	for i := range int64(100) {
		if err := p.client.Note(t.Context(), i); err != nil {
			t.Fatal(err)
		}
	}
	// Close lets one-ways on their way arrive.
	closeNode(t, p.caller)
	closeNode(t, p.server)
	notes := p.handler.Notes()
	for i := range int64(100) {
		if notes[i] != 1 {
			t.Errorf("note %d was run %d times", i, notes[i])
		}
	}
}

func closeNode(t testing.TB, n *rpc.Node) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := n.Close(ctx); err != nil {
		t.Error(err)
	}
}

func TestLongMethodName(t *testing.T) {
	p := newPair(t)
	if s, err := p.client.MethodWithAVeryLongName(t.Context(), "x"); s != "x" || err != nil {
		t.Error(s, err)
	}
}

func TestUnknownMethodAndService(t *testing.T) {
	p := newPair(t)
	c := plain(p.caller, "Test")
	_, err := c.Call(t.Context(), "nothing", &testsvc.BasePingArgs{}, &testsvc.BasePingResult{})
	if rpc.CodeOf(err) != rpc.NoSuchMethod {
		t.Errorf("got %v", err)
	}
	for _, name := range []string{"", strings.Repeat("x", 256), "a\x00b"} {
		if _, err := c.Call(t.Context(), name, &testsvc.BasePingArgs{}, &testsvc.BasePingResult{}); rpc.CodeOf(err) != rpc.BadRequest {
			t.Errorf("method %q: %v", name, err)
		}
	}
}

// twice is TSmall's handler.
type twice struct{}

func (twice) Twice(_ context.Context, n int64) (int64, error) { return 2 * n, nil }

// prefixed is what a multiplexing client does: it puts the service before the
// method.
type prefixed struct {
	thrift.TClient
	service string
}

func (p prefixed) Call(ctx context.Context, method string, args, result thrift.TStruct) (thrift.ResponseMeta, error) {
	return p.TClient.Call(ctx, p.service+thrift.MULTIPLEXED_SEPARATOR+method, args, result)
}

func TestMultiplexedProcessor(t *testing.T) {
	r := testrack.New(t, wire.Config{})
	mux := thrift.NewTMultiplexedProcessor()
	mux.RegisterProcessor("Test", testsvc.NewTestProcessor(&testsvc.Handler{}))
	mux.RegisterProcessor("Small", testsvc.NewSmallProcessor(twice{}))
	if err := joinNode(t, r, "server").Export(t.Context(), "Mux", mux); err != nil {
		t.Fatal(err)
	}
	c := plain(joinNode(t, r, "client"), "Mux")
	if n, err := testsvc.NewSmallClient(prefixed{c, "Small"}).Twice(t.Context(), 21); n != 42 || err != nil {
		t.Error(n, err)
	}
	if n, err := testsvc.NewTestClient(prefixed{c, "Test"}).Add(t.Context(), 1, 2); n != 3 || err != nil {
		t.Error(n, err)
	}
	if _, err := testsvc.NewTestClient(prefixed{c, "Other"}).Add(t.Context(), 1, 2); rpc.CodeOf(err) != rpc.NoSuchMethod {
		t.Error(err)
	}
}

type verbose struct{ *testsvc.Handler }

func (verbose) Blob(context.Context, []byte) ([]byte, error) { return make([]byte, 100000), nil }

func TestDeadlineAndCancel(t *testing.T) {
	p := newPair(t)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	err := p.client.Fail(ctx, "wait") // the handler waits for its context, which has the caller's deadline
	if rpc.CodeOf(err) != rpc.Deadline || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v", err)
	}
	ctx, cancel = context.WithCancel(t.Context())
	started := make(chan struct{})
	p.handler.Gate = func(ctx context.Context, _ int64) error {
		close(started)
		<-ctx.Done()
		return ctx.Err()
	}
	go func() {
		<-started
		cancel()
	}()
	_, err = p.client.Count(ctx, 1)
	if rpc.CodeOf(err) != rpc.Canceled || !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	// The next call of the session tells the callee, which cancels the handler;
	// else Close would have to cut it off.
	if err := p.client.Ping(t.Context()); err != nil {
		t.Error(err)
	}
	if _, err := p.client.Add(ctx, 1, 1); rpc.CodeOf(err) != rpc.Canceled {
		t.Errorf("a call with an ended context: %v", err)
	}
}

// Many callers on one node, each answered right, at most once.
func TestConcurrentCallers(t *testing.T) {
	p := newPair(t)
	const callers, calls = 64, 50
	errs := make(chan error, callers)
	for i := range int64(callers) {
		go func() {
			c := p.newClient()
			for j := range int64(calls) {
				n := i*calls + j
				if got, err := c.Count(t.Context(), n); err != nil || got != 1 {
					errs <- errors.Join(err, errors.New("count is not 1"))
					return
				}
				if got, err := c.Add(t.Context(), n, 1); err != nil || got != n+1 {
					errs <- errors.Join(err, errors.New("wrong answer"))
					return
				}
			}
			errs <- nil
		}()
	}
	for range callers {
		if err := <-errs; err != nil {
			t.Fatal(err)
		}
	}
	counts := slices.Collect(maps.Values(p.handler.Counts()))
	if len(counts) != callers*calls || slices.Max(counts) != 1 {
		t.Errorf("%d numbers counted, at most %d times", len(counts), slices.Max(counts))
	}
}
