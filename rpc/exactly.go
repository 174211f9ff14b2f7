package rpc

import (
	"context"

	"github.com/apache/thrift/lib/go/thrift"

	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/rpc/packet"
	"github.com/bifrost-rack/bifrost/rpc/record"
	"github.com/bifrost-rack/bifrost/rpc/trailer"
)

// callJournalled makes a call of an exactly-once execution, unless a former attempt
// has journalled how it ended. The id of a call that the Gatekeeper logs is the
// same in each attempt, so its answer is found in the log; all else is answered
// from the journal: errors that arose here, and what calls of policy none brought.
func (c *client) callJournalled(ctx context.Context, b *strand, m *method, codec *codec, kind thrift.TMessageType, result thrift.TStruct) error {
	o, err := b.begin(m.op, trailer.Outcome)
	if err != nil {
		return err
	}
	defer o.end()
	o.fingerprint = c.fingerprint(codec)
	if o.known == nil {
		if err := ctx.Err(); err != nil {
			return o.decided(neverBegan(fault.FromContext(m.op, err)))
		}
		return c.perform(ctx, b, o, m, codec, kind, result)
	}
	was, err := parseOutcome(o.known.Data)
	switch {
	case err != nil:
		return o.diverged("%v", err)
	case was.fingerprint != o.fingerprint:
		return o.diverged("the service or the arguments were others when the execution ran before")
	case was.code != OK:
		return &Error{Code: was.code, Op: m.op, Msg: was.message, NeverBegan: was.neverBegan}
	case m.policy != PolicyNone:
		// It was answered, so it will be: the answer is in the log.
		return c.perform(context.WithoutCancel(ctx), b, o, m, codec, kind, result)
	case (was.answer == nil) != (result == nil):
		return o.diverged("the call was another when the execution ran before")
	case result == nil:
		return nil
	}
	return c.decode(ctx, codec, &pending{answer: *was.answer}, m, result)
}

// decided journals an error that this side decided on, and returns it as a re-run
// will see it.
func (o *operation) decided(err error) error {
	if o == nil {
		return err
	}
	failure := plain(o.op, err)
	if o.known != nil {
		return o.diverged("the call was answered when the execution ran before, and now: %s", failure)
	}
	o.record(trailer.Outcome, outcome{code: failure.Code, fingerprint: o.fingerprint, message: failure.Msg, neverBegan: failure.NeverBegan}.append(nil))
	return failure
}

// answered journals that the call has been answered; p is nil for a one-way that
// nobody logs.
func (o *operation) answered(m *method, p *pending) {
	if o == nil || p != nil && p.err != nil {
		return
	}
	out := outcome{fingerprint: o.fingerprint}
	switch {
	case p == nil:
	case m.policy == PolicyNone:
		out.answer = &p.answer
	case p.answer.Flags&packet.FlagReplay != 0: // what is logged is the call as a former run sent it
	case p.answer.Type != packet.Exception || p.answer.Code == OK:
		o.b.e.journal.confirm(p.mark) // an answer of the callee's: the call was logged
	}
	o.record(trailer.Outcome, out.append(nil))
}

// durable is execution.durable of the execution whose operation it is; nil is none.
func (o *operation) durable(child record.Call) bool { return o == nil || o.b.e.durable(child) }

// attach puts what the execution has journalled behind a call.
func (o *operation) attach(p *pending, codec *codec) error {
	codec.trailer, p.mark = o.b.e.journal.pending()
	return codec.checkWhole(o.op)
}
