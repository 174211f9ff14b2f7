package peer

import (
	"context"
	"errors"

	"github.com/apache/thrift/lib/go/thrift"

	"github.com/bifrost-rack/bifrost/examples/arrays/gen-go/arrays"
	"github.com/bifrost-rack/bifrost/examples/arrays/service"
)

// valueHandler serves the arrays by value, and tells how long it works.
type valueHandler struct{ service.Arrays }

// Increment adds delta to every byte.
func (h valueHandler) Increment(ctx context.Context, data []byte, delta int8) ([]byte, error) {
	p := Served.Phases()
	defer p.Time(Handler)()
	defer p.Time(Compute)()
	return h.Arrays.Increment(ctx, data, delta)
}

// Add adds a and b element by element.
func (h valueHandler) Add(ctx context.Context, a, b []byte) ([]byte, error) {
	p := Served.Phases()
	defer p.Time(Handler)()
	defer p.Time(Compute)()
	return h.Arrays.Add(ctx, a, b)
}

// processor serves Ping and the arrays in one.
func processor(h arrays.Arrays) thrift.TProcessor {
	p := arrays.NewArraysProcessor(h)
	for name, f := range arrays.NewPingProcessor(service.Ping{}).ProcessorMap() {
		p.AddToProcessorMap(name, f)
	}
	return timed(p)
}

// timed makes a processor tell how long each call takes it, from the moment when
// its name is known until its answer is written.
func timed(p thrift.TProcessor) thrift.TProcessor {
	return thrift.WrapProcessor(p, func(_ string, next thrift.TProcessorFunction) thrift.TProcessorFunction {
		return thrift.WrappedTProcessorFunction{
			Wrapped: func(ctx context.Context, seq int32, in, out thrift.TProtocol) (bool, thrift.TException) {
				defer Served.Phases().Time(Unmarshal)() // the handler's part is taken off in the end
				return next.Process(ctx, seq, in, out)
			},
		}
	})
}

// sum is what the last stage of a chain answers.
func sum(data []byte) (s int64) {
	for _, b := range data {
		s += int64(b)
	}
	return s
}

// pattern fills an array so that a shifted, cut or stale copy is noticed.
func pattern(size int, seed byte) []byte {
	b := make([]byte, size)
	for i := range b {
		b[i] = byte(i) ^ byte(i>>8)*31 ^ byte(i>>16)*17 + seed
	}
	return b
}

// delta is what the increments add.
const delta = 3

// errWrong is a result that is not what it must be.
var errWrong = errors.New("wrong result")

// verifyEvery is how often results are compared whole; all others are by their
// length, first and last byte. Comparing is no part of what is measured.
const verifyEvery = 64

// verifier checks the results of an operation.
type verifier struct {
	want []byte
	n    int
}

func incremented(data []byte) *verifier {
	want := make([]byte, len(data))
	for i, b := range data {
		want[i] = b + delta
	}
	return &verifier{want: want}
}

func added(a, b []byte) *verifier {
	want := make([]byte, len(a))
	for i := range a {
		want[i] = a[i] + b[i]
	}
	return &verifier{want: want}
}

func (v *verifier) check(c *Clock, got []byte, err error) error {
	if err != nil {
		return err
	}
	defer c.Pause()()
	if len(got) != len(v.want) {
		return errWrong
	}
	v.n++
	if v.n%verifyEvery == 1 && string(got) != string(v.want) {
		return errWrong
	}
	if n := len(got); n > 0 && (got[0] != v.want[0] || got[n-1] != v.want[n-1]) {
		return errWrong
	}
	return nil
}
