package host

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/apache/thrift/lib/go/thrift"

	"github.com/bifrost-rack/bifrost/host/hostwire"
	"github.com/bifrost-rack/bifrost/internal/duration"
	"github.com/bifrost-rack/bifrost/rpc"
)

// call is a call that the child has. The goroutine of the runtime that runs the handler does what the child asks for meanwhile:
//
//	host ── call ──▶ child ── get, set, …, invoke ──▶ host ── result ──▶ child … ── answer ──▶ host
//	                       ── effect ──▶ host ── run ──▶ child ── effect done ──▶ host ── result ──▶
//
// So one thing at a time is asked for, as an execution that has to be the same when it runs again demands.
type call struct {
	child           *Child
	state           *state
	service, method string
	id              string
	oneway          bool
	number          uint32

	turn   turn                // guarded by the child's mutex
	frames chan hostwire.Frame // of the child, one at a time
}

// turn is whose turn it is in a call.
type turn uint8

const (
	own    turn = iota // the child's: it may ask, or answer
	hosts              // the host's: the child waits for a result
	effect             // the child's, which runs an effect
)

// String says what is the case.
func (t turn) String() string {
	return [...]string{own: "the handler runs, and no effect does", hosts: "it waits for a result", effect: "it runs an effect"}[t]
}

// run gives a call to the child, does what it asks for, and returns its answer. If the child is gone, run waits for the end of the node
// and returns the zero Frame: nothing must become of the call.
func (k *call) run(ctx context.Context, message []byte) hostwire.Frame {
	body := hostwire.CallBody{Service: k.service, ID: rpc.CallID(ctx), Caller: rpc.CallerAddress(ctx).String(), Message: message}
	k.id = body.ID
	if k.oneway {
		body.Flags |= hostwire.FlagOneway
	}
	if d, ok := ctx.Deadline(); ok {
		body.Timeout = max(duration.Milliseconds(time.Until(d)), 1)
	}
	for _, key := range thrift.GetReadHeaderList(ctx) {
		if value, ok := thrift.GetHeader(ctx, key); ok {
			body.Headers = append(body.Headers, hostwire.Header{Key: key, Value: value})
		}
	}
	c := k.child
	c.begin(k)
	c.send(hostwire.Call, k.number, body.Append(nil))
	stop := context.AfterFunc(ctx, func() {
		f := hostwire.FailBody{Code: rpc.CodeOf(ctx.Err())}
		c.send(hostwire.Cancel, k.number, f.Append(nil))
	})
	defer stop()
	for {
		f, ok := k.next()
		if !ok || !f.Kind.Asks() {
			return f
		}
		r, ok := k.perform(ctx, f)
		if !ok {
			return hostwire.Frame{}
		}
		k.give(own, hostwire.Result, r.Append(nil))
	}
}

// next is the next frame of the child for the call. It reports false if the child is gone; the node has ended then.
func (k *call) next() (hostwire.Frame, bool) {
	select {
	case f := <-k.frames:
		return f, true
	case <-k.child.gone:
		_ = k.child.lost()
		return hostwire.Frame{}, false
	}
}

// give gives the turn to the child with a frame.
func (k *call) give(t turn, kind hostwire.Kind, body []byte) {
	k.child.mu.Lock()
	k.turn = t
	k.child.mu.Unlock()
	k.child.send(kind, k.number, body)
}

// lost waits until the node has ended whose child is gone. An error that a handler returned before would be the outcome of its call.
func (c *Child) lost() error {
	<-c.node.Done()
	return rpc.Errorf(rpc.Unavailable, "the program that has the handler has ended")
}

// misbehaves ends the host for what the child has done.
func (c *Child) misbehaves(why error) error {
	c.end(why)
	return c.lost()
}

// perform does what the child asks for. It reports false if the child is gone.
func (k *call) perform(ctx context.Context, f hostwire.Frame) (r hostwire.ResultBody, ok bool) {
	data, err := k.do(ctx, f)
	var bad protocolError
	if errors.As(err, &bad) {
		_ = k.child.misbehaves(fmt.Errorf("%s for call %d: %w", f.Kind, k.number, bad.error))
		return r, false
	}
	select {
	case <-k.child.gone:
		_ = k.child.lost()
		return r, false
	default:
	}
	if err == nil && len(data) > k.child.config.MaxMessage {
		err = rpc.Errorf(rpc.BadRequest, "a result of %d bytes: the host takes %d (--max-message)", len(data), k.child.config.MaxMessage)
	}
	if err != nil {
		return resultOf(err), true
	}
	return hostwire.ResultBody{Data: data}, true
}

// protocolError is what a child does that none may do.
type protocolError struct{ error }

// resultOf is how an error reaches the child.
func resultOf(err error) hostwire.ResultBody {
	r := hostwire.ResultBody{Code: rpc.CodeOf(err), Data: []byte(err.Error())}
	var e *rpc.Error
	if errors.As(err, &e) {
		text := e.Msg
		if e.Err != nil {
			text = strings.TrimPrefix(text+": "+e.Err.Error(), ": ")
		}
		if r.Data = []byte(text); e.Remote {
			r.Flags |= hostwire.FlagRemote
		}
	}
	if rpc.NeverBegan(err) {
		r.Flags |= hostwire.FlagNeverBegan
	}
	r.Data = r.Data[:min(len(r.Data), hostwire.MaxBeside/2)]
	return r
}

// parsed is what has been parsed of a frame, or that the child misbehaves.
func parsed[T any](v T, err error) (T, error) {
	if err != nil {
		return v, protocolError{err}
	}
	return v, nil
}

// do does what a frame asks for.
func (k *call) do(ctx context.Context, f hostwire.Frame) ([]byte, error) {
	switch f.Kind {
	case hostwire.Now:
		return binary.BigEndian.AppendUint64(nil, uint64(rpc.Now(ctx).UnixNano())), nil //nolint:gosec // two's complement on the wire
	case hostwire.Random:
		n, err := parsed(hostwire.ParseRandom(f.Body))
		if err != nil {
			return nil, err
		}
		b := make([]byte, n)
		return b, rpc.Random(ctx, b)
	case hostwire.Effect:
		key, err := parsed(hostwire.ParseKey(f.Body))
		if err != nil {
			return nil, err
		}
		return rpc.Effect(ctx, key, func(context.Context) ([]byte, error) { return k.effect() })
	case hostwire.Invoke:
		i, err := parsed(hostwire.ParseInvoke(f.Body))
		if err != nil {
			return nil, err
		}
		return k.invoke(ctx, &i)
	default:
		return k.ofState(f)
	}
}

// effect has the child run an effect.
func (k *call) effect() ([]byte, error) {
	k.give(effect, hostwire.Run, nil)
	f, ok := k.next()
	if !ok {
		return nil, rpc.Errorf(rpc.Unavailable, "the program that has the handler has ended")
	}
	done, err := hostwire.ParseFail(f.Body)
	if err != nil { // which the journal must not get as the effect's outcome
		return nil, k.child.misbehaves(fmt.Errorf("%s for call %d: %w", f.Kind, k.number, err))
	}
	if done.Code != rpc.OK {
		return nil, rpc.Errorf(done.Code, "%s", done.Data)
	}
	return done.Data, nil
}

// ofState reads or writes the service's state.
func (k *call) ofState(f hostwire.Frame) ([]byte, error) {
	var set hostwire.SetBody
	var err error
	if f.Kind == hostwire.Set {
		set, err = parsed(hostwire.ParseSet(f.Body))
	} else {
		set.Key, err = parsed(hostwire.ParseKey(f.Body))
	}
	switch {
	case err != nil:
		return nil, err
	case k.state == nil:
		return nil, rpc.Errorf(rpc.BadRequest, "service %s has no state: the child must say that it has, when it says what it serves", k.service)
	}
	switch f.Kind {
	case hostwire.Set:
		return nil, k.state.set(set.Key, set.Value)
	case hostwire.Delete:
		k.state.remove(set.Key)
		return nil, nil
	case hostwire.Keys:
		return hostwire.AppendKeys(nil, k.state.keys(set.Key)), nil
	default:
		value, there := k.state.entries[set.Key]
		if !there {
			return []byte{0}, nil
		}
		return append([]byte{1}, value...), nil
	}
}

// invoke makes a call of another service, as part of the execution. The result is a Thrift message; nothing, of a one-way.
func (k *call) invoke(ctx context.Context, i *hostwire.InvokeBody) ([]byte, error) {
	m, err := openMessage(ctx, i.Message)
	if err == nil && m.kind != thrift.CALL && m.kind != thrift.ONEWAY {
		err = fmt.Errorf("a Thrift message of type %d: want %d or %d", m.kind, thrift.CALL, thrift.ONEWAY)
	}
	if err == nil {
		if err = m.Skip(ctx, thrift.STRUCT); err == nil && m.Transport().RemainingBytes() > 0 {
			err = fmt.Errorf("%d bytes follow the message", m.Transport().RemainingBytes())
		}
	}
	if err != nil {
		return nil, protocolError{fmt.Errorf("a call of service %.100q: %w", i.Service, err)}
	}
	if i.Timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, duration.Times(int64(i.Timeout), time.Millisecond))
		defer cancel()
	}
	for _, h := range i.Headers {
		ctx = rpc.WithHeader(ctx, h.Key, h.Value)
	}
	client := k.child.client(target{i.Service, i.Policy})
	if m.kind == thrift.ONEWAY {
		_, err := client.Call(ctx, m.name, arguments(m.body), nil)
		return nil, err
	}
	r := reply{buffer: newMemory(k.child.config.MaxMessage)}
	out := binaryOver(r.buffer)
	_, err = client.Call(ctx, m.name, arguments(m.body), &r)
	var app thrift.TApplicationException
	var coded *rpc.Error
	switch {
	case err == nil:
		head := newMemory(hostwire.MaxBeside)
		err = binaryOver(head).WriteMessageBegin(ctx, m.name, thrift.REPLY, 0)
		return append(head.Bytes(), r.buffer.Bytes()...), err
	case errors.As(err, &coded) || !errors.As(err, &app):
		return nil, err
	}
	r.buffer.Reset()
	err = errors.Join(out.WriteMessageBegin(ctx, m.name, thrift.EXCEPTION, 0), app.Write(ctx, out))
	return r.buffer.Bytes(), err
}

// arguments are a struct in the binary protocol, which the clients of a node write.
type arguments []byte

// Write implements thrift.TStruct.
func (a arguments) Write(_ context.Context, p thrift.TProtocol) error {
	_, err := p.Transport().Write(a)
	return err
}

// Read implements thrift.TStruct.
func (arguments) Read(context.Context, thrift.TProtocol) error {
	return thrift.NewTProtocolException(errors.New("arguments are only written"))
}

// reply is the result of a call, as the child gets it.
type reply struct{ buffer *memory }

// Read implements thrift.TStruct.
func (r *reply) Read(ctx context.Context, p thrift.TProtocol) error {
	r.buffer.Reset()
	return copyStruct(ctx, p, binaryOver(r.buffer), maxDepth, nil)
}

// Write implements thrift.TStruct.
func (*reply) Write(context.Context, thrift.TProtocol) error {
	return thrift.NewTProtocolException(errors.New("replies are only read"))
}
