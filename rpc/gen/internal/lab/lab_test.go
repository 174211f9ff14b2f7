package lab_test

import (
	"context"
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/apache/thrift/lib/go/thrift"

	"github.com/bifrost-rack/bifrost/internal/join"
	"github.com/bifrost-rack/bifrost/internal/simrack"
	"github.com/bifrost-rack/bifrost/rpc"
	"github.com/bifrost-rack/bifrost/rpc/form"
	"github.com/bifrost-rack/bifrost/rpc/gen/internal/lab/gen-go/labtest/lab"
	"github.com/bifrost-rack/bifrost/rpc/gen/internal/lab/gen-go/shared"
)

// world is a client of a laboratory, over one network or the other.
type world struct {
	t       *testing.T
	ctx     context.Context
	handler *handler
	client  *lab.LabRefClient
	thrift  thrift.TClient // under it
	rack    *simrack.Rack  // nil over TCP
	node    *rpc.Node
	server  *rpc.Node // that serves Lab
}

func (w *world) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

// onRack runs f with a laboratory on s2, which asks a second one on s1.
func onRack(t *testing.T, f func(w *world)) {
	t.Helper()
	ctx := t.Context()
	w := &world{t: t, ctx: ctx, handler: newHandler()}
	rack, err := simrack.Start(ctx, simrack.Config{})
	w.must(err)
	defer func() {
		if err := rack.Close(); err != nil {
			t.Error(err)
		}
	}()
	w.rack = rack
	join := func(blade string) *rpc.Node {
		n, err := rack.Join(ctx, blade, blade)
		w.must(err)
		return n
	}
	w.node = join("c1")
	first, second := join("s2"), join("s1")
	w.server = first
	w.must(lab.ExportLab(ctx, second, "Second", newHandler()))
	w.handler.again = lab.OpenLab(first, "Second")
	w.must(lab.ExportLab(ctx, first, "Lab", w.handler))
	w.client, w.thrift = lab.OpenLab(w.node, "Lab", rpc.WithPolicy(rpc.PolicyNone, "greet")), w.node.Client("Lab")
	f(w)
	for _, n := range []*rpc.Node{w.node, first, second} {
		w.must(n.Close(ctx))
	}
}

// overTCP runs f with the same handler behind Thrift's own server.
func overTCP(t *testing.T, f func(w *world)) {
	t.Helper()
	w := &world{t: t, ctx: t.Context(), handler: newHandler()}
	listen, err := thrift.NewTServerSocket("127.0.0.1:0")
	w.must(err)
	w.must(listen.Listen())
	server := thrift.NewTSimpleServer4(lab.NewLabRefProcessor(w.handler), listen,
		thrift.NewTTransportFactory(), thrift.NewTBinaryProtocolFactoryConf(nil))
	done := make(chan error, 1)
	go func() { done <- server.Serve() }()
	socket := thrift.NewTSocketConf(listen.Addr().String(), nil)
	w.must(socket.Open())
	protocol := thrift.NewTBinaryProtocolConf(socket, nil)
	w.thrift = thrift.NewTStandardClient(protocol, protocol)
	w.client = lab.NewLabRefClient(w.thrift)
	f(w)
	w.must(socket.Close())
	w.must(server.Stop())
	w.must(<-done)
}

// everywhere runs a test over both, for the stubs promise the same.
func everywhere(t *testing.T, f func(w *world)) {
	t.Helper()
	t.Run("Bifröst", func(t *testing.T) { onRack(t, f) })
	t.Run("Thrift over TCP", func(t *testing.T) { overTCP(t, f) })
}

var film = []byte(strings.Repeat("all that is not black ", filmLength))

// filmLength makes a film longer than a packet.
const filmLength = 4000

func TestByReference(t *testing.T) {
	everywhere(t, func(w *world) {
		raw := rpc.RefOf(film)
		for range 2 { // the second time nothing is copied
			got, err := w.client.Develop(w.ctx, raw, 1)
			w.must(err)
			b, err := got.Take(w.ctx)
			w.must(err)
			if !reflect.DeepEqual(b, inverted(film)) {
				t.Errorf("develop: %d bytes, not the inverted film", len(b))
			}
			if _, err := got.Load(w.ctx); !errors.Is(err, rpc.ErrRefEnded) {
				t.Errorf("load after take: %v", err)
			}
		}
		same, err := w.client.Develop(w.ctx, raw, -1)
		w.must(err)
		if b, err := same.Take(w.ctx); err != nil || string(b) != string(film) {
			t.Errorf("what was lent, returned: %d bytes, %v", len(b), err)
		}
		counts, err := w.client.Histogram(w.ctx, raw)
		w.must(err)
		if c, err := counts.Take(w.ctx); err != nil || len(c) != 256 || c['a'] != 3*filmLength {
			t.Errorf("histogram: %v, %v", c, err)
		}
		n, err := w.client.Count(w.ctx, raw)
		if err != nil || n != int64(len(film)) {
			t.Errorf("inherited method: %d, %v", n, err)
		}
		w.must(raw.Free(w.ctx))
		if _, err := w.client.Count(w.ctx, raw); !errors.Is(err, rpc.ErrRefEnded) {
			t.Errorf("call with a freed reference: %v", err)
		}
	})
}

// TestShortReferences: what is short travels inside calls and answers, and takes no
// memory of the rack; what is one byte longer stands there.
func TestShortReferences(t *testing.T) {
	const short = 65487 - 512 // of a packet on the rack's links
	onRack(t, func(w *world) {
		for _, size := range []int{1, 1000, short, short + 1} {
			want := 0
			if size > short {
				want = 2
			}
			raw := rpc.RefOf([]byte(strings.Repeat("x", size)))
			got, err := w.client.Develop(w.ctx, raw, 1)
			w.must(err)
			s, err := w.rack.Gatekeeper().Snapshot(w.ctx)
			w.must(err)
			if len(s.Regions) != want {
				t.Errorf("%d bytes there and back take %d regions, want %d", size, len(s.Regions), want)
			}
			if n, err := w.client.Count(w.ctx, got); n != int64(size) || err != nil { // a result that is passed on
				t.Errorf("the result has %d bytes, %v", n, err)
			}
			same, err := w.client.Develop(w.ctx, got, -1) // returns what it was lent
			w.must(err)
			b, err := same.Take(w.ctx)
			if err != nil || !reflect.DeepEqual(b, inverted([]byte(strings.Repeat("x", size)))) {
				t.Errorf("what was lent came back as %d bytes, %v", len(b), err)
			}
			w.must(raw.Free(w.ctx))
			w.must(got.Free(w.ctx))
			if _, err := got.Load(w.ctx); !errors.Is(err, rpc.ErrRefEnded) {
				t.Errorf("load after free: %v", err)
			}
			w.empty()
		}
	})
}

// TestShortReferencesTogether: values that fit a packet one by one exceed it together. They
// travel inside a message in parts, and none of them takes memory.
func TestShortReferencesTogether(t *testing.T) {
	onRack(t, func(w *world) {
		const each = 40_000
		film, curve := rpc.RefOf(make([]byte, each)), rpc.RefOf(make([]int8, each))
		sheet, medium := rpc.NewRef(form.Struct(lab.NewPrint), lab.NewPrint()), rpc.NewRef(form.Struct(lab.NewMedium), &lab.Medium{Film: []byte("m")})
		frame := rpc.NewRef(form.Struct(shared.NewFrame), &shared.Frame{})
		n, err := w.client.Mix(w.ctx, film, curve, rpc.RefOf([]int16{}), rpc.RefOf([]int32{}), rpc.RefOf([]int64{}), rpc.RefOf([]float64{}),
			sheet, frame, medium, 0, nil, nil)
		if want := int64(each + len("untitled") + 1); n != want || err != nil {
			t.Errorf("mix: %d, %v, want %d", n, err, want)
		}
		s, err := w.rack.Gatekeeper().Snapshot(w.ctx)
		w.must(err)
		if len(s.Regions) != 0 {
			t.Errorf("the values take %d regions", len(s.Regions))
		}
	})
}

// TestShortReferencesOfShortMessages: a value that exceeds what the caller's messages may have
// stands in memory, whether it fits a packet or not.
func TestShortReferencesOfShortMessages(t *testing.T) {
	onRack(t, func(w *world) {
		on, err := w.rack.Joiner("c1")
		w.must(err)
		node, err := rpc.Join(join.NewContext(w.ctx, on), rpc.WithName("narrow"), rpc.WithMaxMessage(4096))
		w.must(err)
		defer func() { w.must(node.Close(w.ctx)) }()
		raw := rpc.RefOf(make([]byte, 4096))
		if n, err := lab.OpenLab(node, "Lab").Count(w.ctx, raw); n != 4096 || err != nil {
			t.Errorf("count: %d, %v", n, err)
		}
		w.must(raw.Free(w.ctx))
	})
}

// TestEveryType passes each kind of reference, and plain values beside.
func TestEveryType(t *testing.T) {
	everywhere(t, func(w *world) {
		values := lab.LabValues(w.client)
		sheet := &lab.Print{Title: "five!", Colour: lab.Colour_RED}
		got, err := values.Mix(w.ctx, lab.Film{1, 2}, []int8{-1, -2}, []int16{-300}, []int32{1 << 30}, []int64{-(1 << 40)},
			lab.Curve{0.5, 7}, sheet, &shared.Frame{Width: 9}, &lab.Medium{Film: []byte("abc")}, 11,
			map[lab.Colour][]*lab.Print{lab.Colour_GREEN: {sheet, sheet}}, []string{"x", "y", "z"})
		w.must(err)
		if want := int64(2 - 3 - 300 + 1<<30 - 1<<40 + 7 + 5 + 9 + 3 + 11 + 2 + 3); got != want {
			t.Errorf("mix: %d, want %d", got, want)
		}
		p, err := values.Show(w.ctx, "")
		w.must(err)
		if p.Title != "untitled" || p.Colour != lab.Colour_GREEN || !reflect.DeepEqual(p.Frame.Planes, [][]byte{{1}, {2, 3}}) {
			t.Errorf("show: %v", p)
		}
		if c, err := values.Colour(w.ctx, p); err != nil || c != lab.Colour_GREEN {
			t.Errorf("colour: %v, %v", c, err)
		}
		curve, err := values.NewCurve_(w.ctx, 3)
		if err != nil || !reflect.DeepEqual(curve, lab.Curve{0, 0.5, 1}) {
			t.Errorf("curve: %v, %v", curve, err)
		}
		if curve, err := values.NewCurve_(w.ctx, 0); err != nil || len(curve) != 0 {
			t.Errorf("empty curve: %v, %v", curve, err)
		}
		frame, err := values.ScaleFrame(w.ctx, &shared.Frame{Width: 2, Height: 3}, 4)
		if err != nil || frame.Width < 4 || frame.Height < 6 {
			t.Errorf("scaled: %v, %v", frame, err)
		}
		if s, err := values.Greet(w.ctx, "you", frame); err != nil || !strings.HasPrefix(s, "hello you") {
			t.Errorf("greet: %q, %v", s, err)
		}
		plain, err := values.Plain(w.ctx, curve, lab.Film("ab"), true, 2)
		if err != nil || plain[0][5][0] != lab.Colour_GREEN {
			t.Errorf("plain: %v, %v", plain, err)
		}
		if s, err := values.Label(w.ctx, "x"); err != nil || s != "<x>" {
			t.Errorf("inherited method by value: %q, %v", s, err)
		}
		w.empty()
	})
}

// empty finds nothing left in memory.
func (w *world) empty() {
	w.t.Helper()
	if w.rack == nil {
		return
	}
	ctx, cancel := context.WithTimeout(w.ctx, time.Minute)
	defer cancel()
	for { // what is kept for the next call is given back after a while
		s, err := w.rack.Gatekeeper().Snapshot(w.ctx)
		w.must(err)
		if len(s.Regions) == 0 {
			return
		}
		select {
		case <-time.After(10 * time.Millisecond):
		case <-ctx.Done():
			w.t.Fatalf("regions left behind: %+v", s.Regions)
		}
	}
}

func TestExceptions(t *testing.T) {
	everywhere(t, func(w *world) {
		values := lab.LabValues(w.client)
		var corrupt *lab.Corrupt
		if _, err := values.Develop(w.ctx, []byte{1, 0}, 0); !errors.As(err, &corrupt) || corrupt.Offset != 1 {
			t.Errorf("declared: %v", err)
		}
		var broken *shared.Broken
		if _, err := values.Develop(w.ctx, film, -2); !errors.As(err, &broken) || broken.Why != "contrast" {
			t.Errorf("declared elsewhere: %v", err)
		}
		if err := values.Burn(w.ctx, []byte{1}); !errors.As(err, &corrupt) {
			t.Errorf("declared, without a result: %v", err)
		}
		if w.rack != nil { // they are failures of a kind of their own
			for got := map[string]uint64{}; got["develop.ref"] != 2 || got["burn.ref"] != 1; {
				methods, err := w.rack.Gatekeeper().Methods(w.ctx)
				w.must(err)
				for _, m := range methods {
					got[m.Method] = m.Ended[rpc.Declared]
				}
				select {
				case <-time.After(10 * time.Millisecond): // the callee tells of its calls some at a time
				case <-w.ctx.Done():
					t.Fatalf("the rack counts as declared: %v", got)
				}
			}
		}
		_, err := values.Develop(w.ctx, film, -3)
		if err == nil || w.rack != nil && rpc.CodeOf(err) != rpc.NotFound {
			t.Errorf("coded: %v", err)
		}
		if _, err := values.Develop(w.ctx, film, -4); rpc.CodeOf(err) != rpc.Application || !strings.Contains(err.Error(), "undeclared") {
			t.Errorf("undeclared: %v", err)
		}
		if _, err := values.Develop(w.ctx, film, -5); err == nil {
			t.Error("a handler that returns no reference: no error")
		}
		if _, err := w.client.Develop(w.ctx, nil, 0); rpc.CodeOf(err) != rpc.BadRequest {
			t.Errorf("no argument: %v", err)
		}
		w.empty()
	})
}

// TestLentRefEnds: what a handler keeps is of no use when it has returned.
func TestLentRefEnds(t *testing.T) {
	everywhere(t, func(w *world) {
		w.must(lab.LabValues(w.client).Burn(w.ctx, film))
		if _, err := w.handler.kept.Load(w.ctx); !errors.Is(err, rpc.ErrRefEnded) || rpc.CodeOf(err) != rpc.BadRequest {
			t.Errorf("load: %v", err)
		}
		if err := w.handler.kept.Free(w.ctx); !errors.Is(err, rpc.ErrRefEnded) {
			t.Errorf("free: %v", err)
		}
	})
}

func TestOneway(t *testing.T) {
	everywhere(t, func(w *world) {
		raw := rpc.RefOf([]byte("film"))
		w.must(w.client.Archive(w.ctx, raw, "a"))
		if got := <-w.handler.archived; got != "a film <nil>" {
			t.Errorf("archived %q", got)
		}
		if err := raw.Free(w.ctx); !errors.Is(err, rpc.ErrRefEnded) {
			t.Errorf("free of what was given away: %v", err)
		}
		w.must(lab.LabValues(w.client).Archive(w.ctx, nil, "b"))
		if got := <-w.handler.archived; got != "b  <nil>" {
			t.Errorf("archived %q", got)
		}
	})
}

// TestPlainClient: code that only Thrift has generated calls the same handler by
// value.
func TestPlainClient(t *testing.T) {
	everywhere(t, func(w *world) {
		plain := lab.NewLabClient(w.thrift)
		b, err := plain.Develop(w.ctx, film, 1)
		if err != nil || !reflect.DeepEqual(b, inverted(film)) {
			t.Errorf("develop: %d bytes, %v", len(b), err)
		}
		var corrupt *lab.Corrupt
		if _, err := plain.Develop(w.ctx, []byte{0}, 1); !errors.As(err, &corrupt) {
			t.Errorf("declared exception: %v", err)
		}
		if n, err := plain.Count(w.ctx, film); err != nil || n != int64(len(film)) {
			t.Errorf("inherited: %d, %v", n, err)
		}
	})
}

// TestNestedCallPassesOn: a handler lends what it was lent, and returns what it
// got, and nothing is copied or left.
func TestNestedCallPassesOn(t *testing.T) {
	onRack(t, func(w *world) {
		frame := rpc.NewRef(form.Struct(shared.NewFrame), &shared.Frame{Width: 2, Height: 3})
		got, err := w.client.ScaleFrame(w.ctx, frame, 4)
		w.must(err)
		f, err := got.Take(w.ctx)
		if err != nil || f.Width != 4 || f.Height != 6 {
			t.Errorf("scaled: %v, %v", f, err)
		}
		w.must(frame.Free(w.ctx))
		w.empty()
	})
}

// TestGivenUp: the memory of a call whose context ends is its caller's again when
// the handler has returned.
func TestGivenUp(t *testing.T) {
	onRack(t, func(w *world) {
		ctx, cancel := context.WithCancel(w.ctx)
		hold := make(chan struct{})
		w.must(lab.ExportKeeper(w.ctx, w.node, "Slow", &keeper{entered: cancel, hold: hold}))
		caller, err := w.rack.Join(w.ctx, "s1", "caller")
		w.must(err)
		film := rpc.RefOf(film)
		_, err = lab.OpenKeeper(caller, "Slow").Keep(ctx, film)
		if rpc.CodeOf(err) != rpc.Canceled {
			t.Errorf("given up: %v", err)
		}
		close(hold)
		for rpc.CodeOf(film.Free(w.ctx)) == rpc.PermissionDenied { // lent until the handler has returned
		}
		w.empty()
		w.must(caller.Close(w.ctx))
	})
}
