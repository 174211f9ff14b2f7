package crosstest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"reflect"
	"strings"
	"testing"

	"github.com/apache/thrift/lib/go/thrift"
	"go.uber.org/goleak"

	"github.com/bifrost-rack/bifrost/internal/simrack"
	"github.com/bifrost-rack/bifrost/rpc"
	c "github.com/bifrost-rack/bifrost/rpc/internal/crosstest/gen-go/crosstest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// dialer makes a client of one of the services behind a multiplexing processor.
type dialer func(service string) thrift.TClient

// multiplexed is what Thrift's multiplexing client does to names.
type multiplexed struct {
	thrift.TClient
	service string
}

func (m multiplexed) Call(ctx context.Context, method string, args, result thrift.TStruct) (thrift.ResponseMeta, error) {
	return m.TClient.Call(ctx, m.service+thrift.MULTIPLEXED_SEPARATOR+method, args, result)
}

// processor serves all services of the IDL as one.
func processor(h *handler) *thrift.TMultiplexedProcessor {
	mux := thrift.NewTMultiplexedProcessor()
	mux.RegisterProcessor("Cross", c.NewCrossProcessor(h))
	mux.RegisterProcessor("Second", c.NewSecondProcessor(second{}))
	mux.RegisterProcessor("Extended", c.NewExtendedProcessor(second{}))
	return mux
}

// everywhere runs f against the same processor on a rack, in both protocols, and over TCP.
func everywhere(t *testing.T, f func(t *testing.T, client dialer, h *handler)) {
	h := &handler{later: make(chan int32, 1)}
	onRack(t, "Bifröst", h, rpc.Binary, f)
	onRack(t, "Bifröst, compact", h, rpc.Compact, f)
	overTCP(t, h, f)
}

func onRack(t *testing.T, name string, h *handler, protocol rpc.Protocol, f func(t *testing.T, client dialer, h *handler)) {
	t.Run(name, func(t *testing.T) {
		ctx := t.Context()
		rack, err := simrack.Start(ctx, simrack.Config{})
		must(t, err)
		server, err := rack.Join(ctx, "s1", "server")
		must(t, err)
		must(t, server.Export(ctx, "Everything", processor(h)))
		caller, err := rack.Join(ctx, "c1", "client")
		must(t, err)
		client := caller.Client("Everything", rpc.WithProtocol(protocol))
		f(t, func(service string) thrift.TClient { return multiplexed{client, service} }, h)
		must(t, caller.Close(ctx))
		must(t, server.Close(ctx))
		must(t, rack.Close())
	})
}

func overTCP(t *testing.T, h *handler, f func(t *testing.T, client dialer, h *handler)) {
	t.Run("TCP", func(t *testing.T) {
		listen, err := thrift.NewTServerSocket("127.0.0.1:0")
		must(t, err)
		must(t, listen.Listen())
		server := thrift.NewTSimpleServer4(processor(h), listen, thrift.NewTTransportFactory(), thrift.NewTBinaryProtocolFactoryConf(nil))
		done := make(chan error, 1)
		go func() { done <- server.Serve() }()
		socket := thrift.NewTSocketConf(listen.Addr().String(), nil)
		must(t, socket.Open())
		p := thrift.NewTBinaryProtocolConf(socket, nil)
		f(t, func(service string) thrift.TClient {
			return thrift.NewTStandardClient(p, thrift.NewTMultiplexedProtocol(p, service))
		}, h)
		must(t, socket.Close())
		must(t, server.Stop())
		must(t, <-done)
	})
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// same calls a method that returns its argument.
func same[T any](t *testing.T, call func(context.Context, T) (T, error), values ...T) {
	t.Helper()
	for _, v := range values {
		got, err := call(t.Context(), v)
		if err != nil || !reflect.DeepEqual(got, v) {
			t.Errorf("%+v came back as %+v, %v", v, got, err)
		}
	}
}

func TestTypes(t *testing.T) {
	everywhere(t, func(t *testing.T, client dialer, _ *handler) {
		x := c.NewCrossClient(client("Cross"))
		must(t, x.Nothing(t.Context()))
		same(t, x.Text, "", "plain", "Bifröst ᛒᛁᚠᚱᚬᛋᛏ 🌈", "quote\"\\/\x00\b\n\r\t", strings.Repeat("long ", 4000))
		same(t, x.Truth, true, false)
		same(t, x.Tiny, 0, -1, math.MinInt8, math.MaxInt8)
		same(t, x.Small, 0, -1, math.MinInt16, math.MaxInt16)
		same(t, x.Medium, 0, -1, math.MinInt32, math.MaxInt32)
		same(t, x.Large, 0, -1, math.MinInt64, math.MaxInt64, 1<<53+1)
		same(t, x.Real, 0, -1, math.Pi, math.MaxFloat64, -math.SmallestNonzeroFloat64, math.Inf(1), math.Copysign(0, -1))
		if v, err := x.Real(t.Context(), math.NaN()); !math.IsNaN(v) || err != nil {
			t.Error("NaN:", v, err)
		}
		all := make([]byte, 256)
		for i := range all {
			all[i] = byte(i)
		}
		same(t, x.Raw, []byte{}, all)
		same(t, x.Digit, c.Digit_ONE, c.Digit_EIGHT, 77)
		same(t, x.Account, 0, math.MaxInt64)
		same(t, x.Members, []int32{}, []int32{-2, 0, 5})
		same(t, x.Sequence, []int32{}, []int32{5, 0, -2, 5})
		same(t, x.Numbers, map[int32]int32{}, map[int32]int32{-1: 1, 0: 10, math.MaxInt32: math.MinInt32})
		same(t, x.Texts, map[string]string{"": "", "a": "2", "with space": "3\n", "ß": "x"})
	})
}

// TestLarge: values that exceed a packet, in arguments, results and exceptions, with
// both kinds of policy, at three MTUs.
func TestLarge(t *testing.T) {
	for _, mtu := range []int{1500, 9000, 65535} {
		t.Run(fmt.Sprint("mtu=", mtu), func(t *testing.T) {
			ctx := t.Context()
			rack, err := simrack.Start(ctx, simrack.Config{MTU: mtu})
			must(t, err)
			server, err := rack.Join(ctx, "s1", "server")
			must(t, err)
			h := &handler{later: make(chan int32, 1)}
			must(t, server.Export(ctx, "Everything", processor(h)))
			caller, err := rack.Join(ctx, "c1", "client")
			must(t, err)
			for _, policy := range []rpc.Policy{rpc.PolicyNone, rpc.PolicyRecover} {
				x := c.NewCrossClient(multiplexed{caller.Client("Everything", rpc.WithPolicy(policy)), "Cross"})
				for _, size := range []int{mtu, 64 << 10, 1 << 20} {
					all := make([]byte, size)
					for i := range all {
						all[i] = byte(i*i>>8 ^ i)
					}
					if got, err := x.Raw(ctx, all); err != nil || !bytes.Equal(got, all) {
						t.Fatalf("%s: %d bytes came back as %d, %v", policy, size, len(got), err)
					}
				}
				text := strings.Repeat("long ", 20000)
				same(t, x.Text, text)
				var failure *c.Failure
				if _, err := x.FailTwice(ctx, "first", text); !errors.As(err, &failure) || failure.Message != text {
					t.Errorf("%s: exception: %v", policy, err)
				}
				numbers := map[int32]int32{}
				for i := range int32(20000) {
					numbers[i] = -i
				}
				same(t, x.Numbers, numbers)
			}
			must(t, caller.Close(ctx))
			must(t, server.Close(ctx))
			must(t, rack.Close())
		})
	}
}

func TestStructs(t *testing.T) {
	everywhere(t, func(t *testing.T, client dialer, _ *handler) {
		x := c.NewCrossClient(client("Cross"))
		full := &c.Scalars{Text: "Zero", Tiny: 1, Medium: -3, Large: -5}
		same(t, x.Scalars, &c.Scalars{}, full)
		same(t, x.Nest, &c.Nest{Depth: 1, Scalars: full, More: 5, Inner: &c.Nest{Depth: 2, Scalars: &c.Scalars{}}})
		left := "left"
		same(t, x.Either, &c.Either{Left: &left}, &c.Either{Right: full}, &c.Either{Many: []*c.Bonk{{Message: "a", Kind: 1}}})
		d := c.NewDefaults()
		same(t, x.Defaults, d, &c.Defaults{Number: 1, Text: "", Items: []int32{}, Flag: false, Digit: c.Digit_ONE})
		if d.Number != c.LIMIT || d.Text != "preset" || len(d.Items) != 3 || !d.Flag || d.Digit != c.Digit_FIVE {
			t.Errorf("defaults are %v", d)
		}
		same(t, x.Empty, &c.Empty{})
		same(t, x.Bonks, c.Bonks{}, c.Bonks{"k": {Message: "bonk", Kind: 7}})
		square, err := x.Square(t.Context(), 4)
		if err != nil || len(square) != 9 || square[-4][4] != -16 {
			t.Error("square:", square, err)
		}
		in := &c.Jungle{Accounts: map[c.Digit]c.Account{c.Digit_FIVE: 5}, Scalars: []*c.Scalars{full, {}}}
		jungle, err := x.Jungle(t.Context(), in)
		if err != nil || !reflect.DeepEqual(jungle[1][c.Digit_THREE], in) || jungle[2][c.Digit_EIGHT] == nil {
			t.Error("jungle:", jungle, err)
		}
		got, err := x.Gather(t.Context(), 42, 4242, 424242, map[int16]string{-1: "blah "}, c.Digit_EIGHT, 24)
		if want := (&c.Scalars{Text: "blah EIGHT", Tiny: 42, Medium: 4242, Large: 424266}); err != nil || !reflect.DeepEqual(got, want) {
			t.Error("gather:", got, err)
		}
	})
}

// TestVersions: a later caller's fields and arguments are skipped, and the answer's
// missing ones stay unset.
func TestVersions(t *testing.T) {
	everywhere(t, func(t *testing.T, client dialer, _ *handler) {
		x := c.NewCrossLaterClient(client("Cross"))
		got, err := x.Narrow(t.Context(), &c.Wide{
			A: 1, B: map[string][][]int64{"x": {{1, 2}, {}}}, Kept: "kept", C: &c.Nest{Inner: &c.Nest{}}, D: []byte{1},
		}, 5)
		if err != nil || got.Kept != "kept" || got.A != 0 || got.B != nil || got.C != nil || got.D != nil {
			t.Error(got, err)
		}
	})
}

func TestExceptions(t *testing.T) {
	everywhere(t, func(t *testing.T, client dialer, _ *handler) {
		ctx, x := t.Context(), c.NewCrossClient(client("Cross"))
		must(t, x.Fail(ctx, "not"))
		var failure *c.Failure
		if err := x.Fail(ctx, "declared"); !errors.As(err, &failure) || failure.Code != 1001 || failure.Message != "declared" {
			t.Error("declared:", err)
		}
		var app thrift.TApplicationException
		if err := x.Fail(ctx, "undeclared"); !errors.As(err, &app) || app.TypeId() != thrift.INTERNAL_ERROR || rpc.CodeOf(err) != rpc.Application {
			t.Error("undeclared:", err)
		}
		if _, err := x.FailTwice(ctx, "first", "m"); !errors.As(err, &failure) || failure.Message != "m" {
			t.Error("first of two:", err)
		}
		var detailed *c.Detailed
		if _, err := x.FailTwice(ctx, "second", "m"); !errors.As(err, &detailed) || detailed.Scalars.Text != "m" {
			t.Error("second of two:", err)
		}
		if s, err := x.FailTwice(ctx, "none", "m"); err != nil || s.Text != "m" {
			t.Error("none of two:", s, err)
		}
	})
}

func TestOneway(t *testing.T) {
	everywhere(t, func(t *testing.T, client dialer, h *handler) {
		x := c.NewCrossClient(client("Cross"))
		for i := range int32(3) {
			must(t, x.Later(t.Context(), i))
			if got := <-h.later; got != i {
				t.Errorf("%d came as %d", i, got)
			}
		}
		must(t, x.Nothing(t.Context())) // the connection is in order
	})
}

// TestMultiplexed: services of one name space do not see each other, inherited
// methods are there, and what is not there is refused.
func TestMultiplexed(t *testing.T) {
	everywhere(t, func(t *testing.T, client dialer, _ *handler) {
		ctx := t.Context()
		if s, err := c.NewSecondClient(client("Second")).Text(ctx, "x"); err != nil || s != "second x" {
			t.Error(s, err)
		}
		if s, err := c.NewCrossClient(client("Cross")).Text(ctx, "x"); err != nil || s != "x" {
			t.Error(s, err)
		}
		extended := c.NewExtendedClient(client("Extended"))
		if s, err := extended.Text(ctx, "x"); err != nil || s != "second x" {
			t.Error("inherited:", s, err)
		}
		if s, err := extended.Twice(ctx, "x"); err != nil || s != "xx" {
			t.Error("own:", s, err)
		}
		if _, err := c.NewExtendedClient(client("Second")).Twice(ctx, "x"); rpc.CodeOf(err) != rpc.NoSuchMethod {
			t.Error("no such method:", err)
		}
	})
}
