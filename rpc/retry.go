package rpc

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/apache/thrift/lib/go/thrift"

	"github.com/bifrost-rack/bifrost/internal/fault"
)

// NeverBegan reports whether a call that failed with err certainly did not begin to run,
// and will not. False says nothing: the call may have run.
func NeverBegan(err error) bool {
	var e *Error
	return errors.As(err, &e) && e.NeverBegan
}

// Retry says when a call of policy none is made again that has failed as [Overloaded] or
// Unavailable. Calls of other policies need none: the rack sees to it that they run.
type Retry struct {
	// Attempts is how often a call is made at most, the first time included; less than 2
	// is no retry.
	Attempts int
	// Backoff is the pause before the second attempt; it doubles with each one, up to
	// MaxBackoff. The actual pause is drawn at random from the upper half. Defaults: 5 ms
	// and 1 s.
	Backoff, MaxBackoff time.Duration
	// Idempotent says that it does no harm to run the call more than once. Else it is made
	// again only if it never began.
	Idempotent bool
}

// Defaults of a [Retry].
const (
	defaultBackoff    = 5 * time.Millisecond
	defaultMaxBackoff = time.Second
)

// WithRetry has calls of policy none to these methods, or to all others if none is named,
// made again when they fail. All attempts together end with the call's context. In an
// exactly-once execution each attempt is an operation of its own. The default is none.
func WithRetry(r Retry, methods ...string) ClientOption {
	return clientFunc(func(c *clientConfig) { c.retries.set(r, methods) })
}

// WithHedging sends a second call to these methods, or to all others if none is named,
// when the first one has not been answered after a while: elsewhere, if the service has
// several nodes. The first answer counts, and the other call is cancelled. It says that
// the methods are idempotent, for both calls may run. It holds for calls of policy none
// that carry no pointers, outside of exactly-once executions. The default is none.
func WithHedging(after time.Duration, methods ...string) ClientOption {
	return clientFunc(func(c *clientConfig) { c.hedges.set(after, methods) })
}

// perMethod is an option's value for methods. The zero perMethod has none.
type perMethod[T any] struct {
	general *T // for the methods that have none of their own
	methods map[string]T
}

func (s *perMethod[T]) set(v T, methods []string) {
	if len(methods) == 0 {
		s.general = &v
	}
	for _, m := range methods {
		if s.methods == nil {
			s.methods = make(map[string]T)
		}
		s.methods[m] = v
	}
}

// of is the value for a method, false if there is none.
func (s *perMethod[T]) of(method string) (v T, ok bool) {
	if v, ok = s.methods[method]; ok || s.general == nil {
		return v, ok
	}
	return *s.general, true
}

// attempts makes a call until it succeeds, or must not be made again.
func (c *client) attempts(ctx context.Context, m *method, codec *codec, args, result thrift.TStruct) error {
	err := c.call(ctx, m, codec, args, result)
	if err == nil || m.policy != PolicyNone {
		return err
	}
	r, _ := c.config.retries.of(m.name)
	pause, most := r.Backoff, r.MaxBackoff
	if pause <= 0 {
		pause = defaultBackoff
	}
	if most <= 0 {
		most = defaultMaxBackoff
	}
	for n := 1; n < r.Attempts && r.again(err); n++ {
		pause = min(pause, most)
		if !wait(ctx, pause/2+rand.N(pause/2+1)) {
			break
		}
		codec.reset()
		if err = c.call(ctx, m, codec, args, result); err == nil {
			break
		}
		pause *= 2
	}
	return err
}

// again reports whether a call that failed may be made again.
func (r *Retry) again(err error) bool {
	switch fault.CodeOf(err) {
	case Overloaded, Unavailable:
		return r.Idempotent || NeverBegan(err)
	}
	return false
}

// wait reports whether d has passed before the context's end.
func wait(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// exchanged is how an exchange has ended.
type exchanged struct {
	p   *pending
	err error
}

// hedged is an exchange that a second one follows if the first takes too long.
func (c *client) hedged(ctx context.Context, after time.Duration, b *opSequence, m *method, written *codec) (*pending, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	done := make(chan exchanged, 2)
	copied := written.clone()
	defer copied.free()
	begin := func(message *codec) {
		p, err := c.exchange(ctx, b, nil, m, message, thrift.CALL)
		done <- exchanged{p, err}
	}
	go begin(written)
	out := 1
	t := time.NewTimer(after)
	defer t.Stop()
	var first exchanged
	for {
		select {
		case <-t.C:
			go begin(copied)
			out++
			continue
		case first = <-done:
		}
		out--
		if out == 0 || first.err == nil && first.p.good() {
			break
		}
		first.release(c.node) // it has failed: the other one may do better
	}
	cancel()
	for ; out > 0; out-- {
		other := <-done
		other.release(c.node)
	}
	return first.p, first.err
}

// release forgets an answer.
func (e exchanged) release(n *Node) {
	if e.p != nil {
		n.release(e.p)
	}
}

// good reports whether the answer is the callee's, and no refusal.
func (p *pending) good() bool { return p.err == nil && p.answer.Code == OK }
