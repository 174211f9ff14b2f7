package rpc

import (
	"context"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/bifrost-rack/bifrost/dsm"
	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/internal/netio"
	"github.com/bifrost-rack/bifrost/rpc/endpoint"
	"github.com/bifrost-rack/bifrost/rpc/packet"
)

// execution is one run of a handler for one call. It travels in the handler's
// context: calls made with that context name it as their parent.
type execution struct {
	node   *Node
	export *export
	entry  *endpoint.Entry
	call   packet.Message
	buffer *datagram // what call lies in; nil if it has memory of its own
	from   netip.AddrPort
	// deadline is the caller's; the zero Time is none.
	deadline time.Time
	out      [1]netio.Message
	role     role // of the goroutine that runs it

	life struct { // of the handler's context
		sync.Mutex
		cancel    context.CancelFunc
		abandoned bool
	}

	mu      sync.Mutex
	client  *dsm.Client // for its memory operations; nil until asked for
	index   uint32      // of the last call made
	waiting int         // nested calls being waited for; the slot is given back while > 0
	ended   bool
}

// executionKey is where a context keeps its execution.
type executionKey struct{}

// executionOf returns the execution that a context belongs to, or nil.
func executionOf(ctx context.Context) *execution {
	e, _ := ctx.Value(executionKey{}).(*execution)
	return e
}

// allowed refuses calls that would escape the execution's order: after its end,
// to itself, and, with exactly-once, outside of any execution of a server.
func (c *client) allowed(e *execution, m *method) error {
	if e == nil {
		if m.policy != PolicyNone && c.node.serves() {
			return fault.New(BadRequest, m.op, "policy %s in a server asks for the handler's context", m.policy)
		}
		return nil
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.node != c.node {
		return fault.New(BadRequest, m.op, "the context is a handler's of another node, %s", e.node.self.Name)
	}
	if e.ended {
		return fault.New(BadRequest, m.op, "the handler whose context this is has returned")
	}
	if e.export.config.stateful && e.export.name == c.service {
		return fault.New(Deadlock, m.op, "a stateful service calls itself, and runs one call at a time")
	}
	return nil
}

// child fills in whose call a header is and returns the id that it must have;
// zero, for one of a session, with policy none.
func (e *execution) child(h *packet.Header) packet.ID {
	e.mu.Lock()
	e.index++
	h.Parent, h.Branch, h.Index = e.call.Call, 0, e.index
	e.mu.Unlock()
	if h.Flags.Policy() == PolicyNone {
		return packet.ID{}
	}
	return endpoint.ChildID(h.Parent, h.Branch, h.Index)
}

// yield gives the worker's slot back while the handler waits for a nested call,
// so that calls which come back to this node find one. A stateful service keeps
// it.
func (e *execution) yield() {
	e.promote()
	e.mu.Lock()
	defer e.mu.Unlock()
	e.waiting++
	if e.waiting == 1 && !e.ended && !e.export.config.stateful {
		e.export.pool.release()
	}
}

// resume takes a slot again.
func (e *execution) resume() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.waiting--
	if e.waiting == 0 && !e.ended && !e.export.config.stateful {
		e.export.pool.acquire()
	}
}

// end closes the execution and reports whether it still has a slot to give back:
// not if the handler has left a goroutine behind that waits for a nested call.
func (e *execution) end() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.ended = true
	return e.waiting == 0 || e.export.config.stateful
}

// context derives the handler's context.
func (e *execution) context(parent context.Context) context.Context {
	ctx := context.WithValue(parent, executionKey{}, e)
	var cancel context.CancelFunc
	if e.deadline.IsZero() {
		ctx, cancel = context.WithCancel(ctx)
	} else {
		ctx, cancel = context.WithDeadline(ctx, e.deadline)
	}
	e.life.Lock()
	defer e.life.Unlock()
	e.life.cancel = cancel
	if e.life.abandoned {
		cancel()
	}
	return ctx
}

// abandon cancels the handler's context, for its caller has given the call up.
// One-ways are not given up: nobody waits for them anyway.
func (e *execution) abandon() {
	if e.call.Type == packet.Oneway {
		return
	}
	e.life.Lock()
	defer e.life.Unlock()
	e.life.abandoned = true
	if e.life.cancel != nil {
		e.life.cancel()
	}
}

// close ends the handler's context and gives the call's memory back.
func (e *execution) close() {
	e.life.cancel()
	e.freeBuffer()
}

// keep gives the call memory of its own size, for it has to wait and the buffer
// that it was received in has room for any datagram.
func (e *execution) keep() {
	e.call.Payload, e.call.Trailer = slices.Clone(e.call.Payload), slices.Clone(e.call.Trailer)
	e.freeBuffer()
}

func (e *execution) freeBuffer() {
	if e.buffer != nil {
		freeDatagram(e.buffer)
		e.buffer = nil
	}
}

// receipted reports whether the call is acknowledged when it is accepted: a
// one-way that nobody logs. (Of the others the completion is reported.)
func (e *execution) receipted() bool {
	return e.call.Type == packet.Oneway && e.call.Flags&packet.FlagHeld == 0
}
