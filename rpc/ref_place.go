package rpc

import (
	"context"
	"time"

	"github.com/bifrost-rack/bifrost/dsm"
	"github.com/bifrost-rack/bifrost/internal/fault"
)

// MaxRef is how long a value that travels by reference may be, in bytes.
const MaxRef = 1 << 30

// refProbe is the length from which on a reference's last byte is read before
// room is made for all of them: a caller that lies about a length costs little.
const refProbe = 16 << 20

// maxInline is up to which length a value travels inside a message instead of in
// memory, in bytes. In memory it would take a call two held packets and four round
// trips more, which cost as much as to copy ten times as many bytes.
const maxInline = 16 << 10

// inlineLimit is that length where a datagram has at most budget bytes: two values fit
// a packet, with all that is around them.
func inlineLimit(budget int) int { return min(maxInline, (budget-512)/2) }

// usable refuses a reference that has ended, by itself or with its execution.
func (p *refPlace) usable(op string) error {
	if p.state == refEnded {
		return &Error{Code: BadRequest, Op: op, Err: ErrRefEnded}
	}
	if p.bound != nil {
		p.bound.mu.Lock()
		defer p.bound.mu.Unlock()
		if p.bound.ended {
			return &Error{Code: BadRequest, Op: op, Err: ErrRefEnded}
		}
	}
	return nil
}

// memory is the client that an operation in ctx goes through: that of the
// execution, and outside of any the node's.
func (p *refPlace) memory(ctx context.Context, op string) (*dsm.Client, error) {
	b := branchOf(ctx)
	if b != nil && b.e != nil && (p.bound == nil || p.bound == b.e) {
		return b.memory(), nil
	}
	if p.bound != nil || p.home == nil {
		return nil, fault.New(BadRequest, op, "it belongs to a handler, and asks for that handler's context")
	}
	return p.home, nil
}

// read returns the bytes.
func (p *refPlace) read(ctx context.Context, op string) ([]byte, error) {
	switch {
	case p.length == 0:
		return []byte{}, nil
	case p.inline != nil:
		return p.inline, nil
	}
	memory, err := p.memory(ctx, op)
	if err != nil {
		return nil, err
	}
	if p.length > refProbe {
		if _, err := memory.Read(ctx, p.pointer.Add(p.length-1), make([]byte, 1)); err != nil {
			return nil, err
		}
	}
	b := make([]byte, p.length)
	_, err = memory.Read(ctx, p.pointer, b)
	return b, err
}

// write puts a local reference's bytes into memory, which makes it owned. home is
// the node's memory, for a reference that no execution makes.
func (p *refPlace) write(ctx context.Context, op string, home *dsm.Client, b []byte) error {
	if len(b) > MaxRef {
		return fault.New(BadRequest, op, "%d bytes: at most %d", len(b), MaxRef)
	}
	p.belong(ctx, home)
	if len(b) == 0 {
		p.state = refOwned
		return nil
	}
	memory, err := p.memory(ctx, op)
	if err != nil {
		return err
	}
	pointer, err := memory.Alloc(ctx, uint64(len(b)))
	if err != nil {
		return err
	}
	if _, err := memory.Write(ctx, pointer, b); err != nil {
		late, cancel := afterwards(ctx)
		defer cancel()
		_ = memory.Free(late, pointer) // the write's error tells more
		return err
	}
	p.state, p.pointer, p.length, p.inline = refOwned, pointer, int64(len(b)), nil
	return nil
}

// afterwards is a context to free memory in when a call is over: if the call's own
// has ended, one that lasts just long enough to begin with it, for a Free goes on
// without its caller.
func afterwards(ctx context.Context) (context.Context, context.CancelFunc) {
	if ctx.Err() == nil {
		return ctx, func() {}
	}
	return context.WithTimeout(context.WithoutCancel(ctx), time.Millisecond)
}

// belong says whose the place is: the execution's that ctx is of, or the node's.
func (p *refPlace) belong(ctx context.Context, home *dsm.Client) {
	p.bound, p.home = nil, home
	if b := branchOf(ctx); b != nil && b.e != nil {
		p.bound, p.home = b.e, nil
	}
}

// free gives the memory back.
func (p *refPlace) free(ctx context.Context, op string) error {
	if err := p.usable(op); err != nil {
		return err
	}
	if p.state == refOwned && p.length > 0 {
		memory, err := p.memory(ctx, op)
		if err != nil {
			return err
		}
		if err := memory.Free(ctx, p.pointer); err != nil {
			return err
		}
	}
	p.state = refEnded
	return nil
}
