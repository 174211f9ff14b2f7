package rpc

import (
	"context"
	"errors"
	"fmt"
	"math"

	"github.com/apache/thrift/lib/go/thrift"

	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/rpc/packet"
)

// decode turns a call's answer into the generated code's result, or into an
// error (a nil result is a one-way's): a coded one for a system exception, Thrift's for one that the callee's
// processor raised.
func (c *client) decode(ctx context.Context, codec *codec, p *pending, m *method, result thrift.TStruct) error {
	if p.err != nil {
		return coded(m.op, p.err)
	}
	m.meter.answers.add(uint64(len(p.answer.Payload)), sizeUnit)
	if p.answer.Type == packet.Exception && p.answer.Code != fault.OK {
		e := fault.Remote(p.answer.Code, m.op, "%s", p.answer.Payload)
		e.NeverBegan = p.unbegun()
		return e
	}
	if result == nil {
		return nil // a one-way that has been logged
	}
	headers, err := codec.takeHeaders(&p.answer)
	if err != nil {
		return badAnswer(m, err)
	}
	if len(headers) > 0 {
		codec.answered = headerMap(headers)
	}
	o, err := codec.open(ctx)
	if err != nil {
		return badAnswer(m, err)
	}
	if !answers(o.name, m.name) {
		return badAnswer(m, errors.New("answers method "+o.name))
	}
	switch {
	case o.kind == thrift.EXCEPTION && p.answer.Type == packet.Exception:
		app := thrift.NewTApplicationException(thrift.UNKNOWN_APPLICATION_EXCEPTION, "")
		if err := app.Read(ctx, codec); err != nil {
			return badAnswer(m, err)
		}
		return app
	case o.kind == thrift.REPLY && p.answer.Type == packet.Reply:
		if err := result.Read(ctx, codec); err != nil {
			return badAnswer(m, err)
		}
		return nil
	}
	return badAnswer(m, errors.New("message type does not fit the packet's"))
}

// unbegun reports whether an exception says for sure that the call did not begin. The
// Gatekeeper, which releases its refusals, knows of no copies that it did not hold.
func (p *pending) unbegun() bool {
	f := p.answer.Flags
	return f&packet.FlagUnbegun != 0 && (f&packet.FlagReleased == 0 || f.Exact() || !p.Resent())
}

// neverBegan marks an error that arose before the call was sent.
func neverBegan(err error) error {
	if e, ok := err.(*Error); ok { //nolint:errorlint // those of calls are not wrapped
		marked := *e
		marked.NeverBegan = true
		return &marked
	}
	return err
}

// badAnswer is the error for an answer that is not what the IDL promises.
func badAnswer(m *method, err error) error {
	return &Error{Code: BadRequest, Op: m.op, Msg: "malformed answer", Remote: true, Err: err}
}

// coded makes any error one of a call.
func coded(op string, err error) error {
	var e *Error
	if errors.As(err, &e) {
		if e.Op == "" {
			named := *e
			named.Op = op
			e = &named
		}
		return e
	}
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return fault.FromContext(op, err)
	}
	return &Error{Code: Internal, Op: op, Err: err}
}

// checkWhole refuses a message that cannot be logged: its trailer is too large.
func (c *codec) checkWhole(op string) error {
	if n := c.size(); n > packet.MaxWhole {
		return fault.New(NoSpace, op, "a message of %d bytes, %d of them state and journal; a message that is logged has %d at most: keep large data in distributed memory",
			n, len(c.trailer), packet.MaxWhole)
	}
	return nil
}

// limit is how many bytes a message has at most, header included: one that is logged,
// or one of policy none.
func (n *Node) limit(logged bool) int {
	if logged {
		return packet.MaxWhole
	}
	return packet.HeaderSize + int(min(n.large.most, math.MaxInt-packet.HeaderSize)) //nolint:gosec // bounded
}

// tooLong is why a message that a codec has written is refused.
func (n *Node) tooLong(what string, c *codec, logged bool) string {
	if !logged {
		return n.large.tooLong(what, uint64(c.size()-packet.HeaderSize)) //nolint:gosec // not negative
	}
	return fmt.Sprintf("%s of %d bytes, one that is logged has %d at most: pass large values by reference, or ask for policy none", what, c.size(), packet.MaxWhole)
}
