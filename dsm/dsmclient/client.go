package dsmclient

import (
	"context"
	"errors"
	"math/rand/v2"
	"net/netip"
	"sync"
	"time"

	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
	"github.com/bifrost-rack/bifrost/dsm/internal/pool"
	"github.com/bifrost-rack/bifrost/dsm/internal/transport"
	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/internal/netio"
)

// Pointer is a global pointer: 16 bytes that name one byte of the distributed
// memory. The zero Pointer is nil.
type Pointer = dsmpacket.Pointer

// Error is what every operation fails with; its Code says why.
type Error = fault.Error

// Config is what a client needs of its node.
type Config struct {
	// Stack is the node's network; Address and Incarnation are the node's identity.
	Stack       netio.Network
	Address     netip.Addr
	Incarnation uint32
	// Rack returns the newest view of the rack. It is called for every
	// operation and must not block.
	Rack func() control.Rack
	// Batches asks the Gatekeeper for batches of region slots on a machine, so that the node has so many there, and lists all that it has: fewer if it
	// may not have more. It may be called concurrently, and returns when ctx ends.
	Batches func(ctx context.Context, machine uint8, want int) ([]uint32, error)
	// Limits bound what is under way, and for how long.
	Limits Limits
	// Keep makes the client keep freed regions for a second, for allocations of
	// their size: they stay under the node's control, and neither their free nor the
	// next allocation waits for a memory blade. Sizes that are allocated again and
	// again without coming back are allocated ahead. Whoever passes regions on must
	// then say so (Lend, Returned, HandOver, Gave, Gained).
	Keep bool
}

// Limits are dsm.Limits, where the fields are described.
type Limits struct {
	Window                                  int
	FirstTimeout, LeastTimeout, MostTimeout time.Duration
	GiveUp                                  time.Duration
}

// Check refuses what is negative.
func (l *Limits) Check() error {
	for name, value := range map[string]int64{
		"Window": int64(l.Window), "FirstTimeout": int64(l.FirstTimeout), "LeastTimeout": int64(l.LeastTimeout),
		"MostTimeout": int64(l.MostTimeout), "GiveUp": int64(l.GiveUp),
	} {
		if value < 0 {
			return fault.New(fault.BadRequest, "memory client", "Limits.%s of %d: want more than 0, or 0 for the default", name, value)
		}
	}
	return nil
}

// timing are those of package transport.
func (l *Limits) timing() transport.Limits {
	return transport.Limits{FirstTimeout: l.FirstTimeout, LeastTimeout: l.LeastTimeout, MostTimeout: l.MostTimeout, GiveUp: l.GiveUp}
}

// Client is one node's access to the distributed memory. Its methods may be
// called concurrently.
type Client struct {
	link  *link
	scope *scope                      // nil: on behalf of no execution
	by    func(Pointer) dsmpacket.Use // Scope.By
}

// NewClient returns a node's client. It binds the node's address on the memory
// port, so a node has one client at a time. A Config that lacks a function fails
// with BadRequest.
func NewClient(cfg Config) (*Client, error) {
	if cfg.Stack == nil || cfg.Rack == nil || cfg.Batches == nil {
		return nil, fault.New(fault.BadRequest, "memory client", "a Config without Stack, Rack or Batches")
	}
	l, err := newLink(cfg)
	if err != nil {
		return nil, err
	}
	return &Client{link: l}, nil
}

// Close ends the client and all clients made from it With a scope. Operations
// under way fail with Canceled. What became of the node's unsettled requests
// is then for whoever ends the node.
func (c *Client) Close() error { return c.link.close() }

// Read fills b with the bytes from p on. It returns how many bytes, from the
// first on, have been read; less than len(b) only with an error.
func (c *Client) Read(ctx context.Context, p Pointer, b []byte) (int, error) {
	return c.move(ctx, dsmpacket.OpRead, p, b)
}

// Write puts b at p. It returns how many bytes, from the first on, certainly
// stand there; less than len(b) only with an error. If the region is lent by a call that this program has not made, Write waits until it is over. When the context ends, what
// has been sent may still be written: Settle waits until that is known, and so
// do this client's later operations on the same bytes.
func (c *Client) Write(ctx context.Context, p Pointer, b []byte) (int, error) {
	return c.move(ctx, dsmpacket.OpWrite, p, b)
}

// Free ends the region that p is the first byte of. The node must control it,
// and no lease on it may be out. If the region is lent by a call that this program has not made, Free waits until it is over. A Free whose context ends
// goes on without its caller. If the client Keeps regions, and knows that the node controls this one and
// that nobody else has it, Free waits for nobody; else for the memory blade.
func (c *Client) Free(ctx context.Context, p Pointer) error {
	_, err := c.move(ctx, dsmpacket.OpFree, p, nil)
	return err
}

// move carries out an operation on a pointer.
func (c *Client) move(ctx context.Context, op dsmpacket.Op, p Pointer, b []byte) (int, error) {
	scope, err := c.scope.begin(op)
	if err != nil {
		return 0, err
	}
	defer c.scope.end()
	if err := c.link.check(ctx, op, p); err != nil {
		return 0, err
	}
	if len(b) == 0 && op != dsmpacket.OpFree {
		return 0, nil
	}
	if c.scope.freed(p) {
		return 0, errFreed(op, p)
	}
	if err := c.scope.changes(op, p.Machine()); err != nil {
		return 0, err
	}
	if op == dsmpacket.OpFree {
		return 0, c.free(ctx, p, scope)
	}
	u, err := c.link.cache.begin(ctx, op, p, len(b))
	if err != nil {
		return 0, err
	}
	n, err := c.carryOut(ctx, op, p, b, scope)
	u.end(err)
	if c.scope.counts() {
		c.link.cache.note([]Pointer{p}, (*regionCache).gone) // the write may be taken back
	}
	return n, err
}

// free frees a region, or keeps it to be used again.
func (c *Client) free(ctx context.Context, p Pointer, scope transport.Scope) error {
	v := c.link.cache.free(p, c.scope.counts())
	switch v {
	case pool.Kept, pool.Deferred:
		return nil
	case pool.Twice:
		return errFreed(dsmpacket.OpFree, p)
	case pool.Unknown:
	}
	if c.scope.counts() {
		return c.freeAtEnd(ctx, p, scope)
	}
	return c.freeNow(ctx, p)
}

func errFreed(op dsmpacket.Op, p Pointer) error {
	return fault.New(fault.PermissionDenied, op.String(), "%s has been freed", p)
}

// freeAtEnd has a region freed when the execution has ended: it may
// be taken back until then. The memory machine is asked whether the node may write to the region,
// which is whether it may free it, unless the execution has allocated it.
func (c *Client) freeAtEnd(ctx context.Context, p Pointer, scope transport.Scope) error {
	if p.Bare() != p.Base() {
		return fault.New(fault.BadRequest, dsmpacket.OpFree.String(), "%s is inside of a region: free %s, where the region begins", p, p.Base())
	}
	if !c.scope.decider.HasAllocated(p) {
		_, err := c.carryOut(ctx, dsmpacket.OpWrite, p, nil, scope)
		if e, is := errors.AsType[*fault.Error](err); is {
			e.Op = dsmpacket.OpFree.String()
		}
		if err != nil {
			return err
		}
	}
	c.scope.decider.Free(p.Bare())
	return nil
}

// carryOut has the memory blade carry out a read or a write. It goes on with a write when its region is lent no longer.
func (c *Client) carryOut(ctx context.Context, op dsmpacket.Op, p Pointer, b []byte, scope transport.Scope) (done int, err error) {
	for pause := time.Duration(0); ; {
		t := c.link.operations.get()
		if t.Op, t.Pointer, t.Buf, t.Scope = op, p.Add(int64(done)), b[done:], scope; op == dsmpacket.OpRead && c.by != nil {
			t.By = c.by(p)
		}
		c.link.run(ctx, t)
		n, status, local, lent := t.N, t.Status, t.Local, t.Lent
		c.link.operations.put(t)
		switch done += n; {
		case status == fault.OK:
			return done, nil
		case !lent:
			return done, failure(ctx, op, p.Add(int64(done)), status, local)
		case c.link.account.lends(p):
			return done, errLent(op, p)
		}
		if pause, err = c.link.rest(ctx, op, pause, lentPauses); err != nil {
			return done, err
		}
		if err := c.scope.goesOn(op); err != nil {
			return done, err
		}
	}
}

// Prefix is byte 4 of every global pointer of the rack.
func (c *Client) Prefix() uint8 { return c.link.rack().DSMPrefix }

// Settle returns when it is known what became of each write and free of the
// pointers' regions that this node has begun, cancelled ones included: none
// can take effect any more. A runtime settles the requests on a region before it passes it on.
// Without pointers, a client made With a scope waits for all that it has begun
// itself, allocations included.
func (c *Client) Settle(ctx context.Context, ptrs ...Pointer) error {
	if len(ptrs) == 0 && c.scope.counts() {
		return c.settleBranch(ctx)
	}
	_, err := c.link.wait(ctx, func(e *transport.Endpoint) *transport.Barrier { return e.Barrier(ptrs) })
	return err
}

// failure returns the error that an operation at p ended with.
func failure(ctx context.Context, op dsmpacket.Op, p Pointer, status fault.Code, local bool) error {
	e := &Error{Code: status, Op: op.String(), Msg: p.String(), Remote: !local}
	switch {
	case !local:
	case status == fault.Unavailable:
		e.Msg += ": the memory blade does not answer"
	case ctx.Err() != nil:
		e.Err = context.Cause(ctx)
	default:
		e.Msg += ": the client is closed"
	}
	return e
}

// waiter is what a transfer's Tag is: ended is called when the outcome is there, with
// the link's mutex held.
type waiter interface{ ended() }

// operation is a transfer whose caller waits.
type operation struct {
	transport.Transfer
	done chan struct{} // gets one value when the outcome is there
	// sending is datagrams under way to the network that refer to Buf, or repeat a request. It is
	// added to under the link's mutex, while the outcome is not there.
	sending sync.WaitGroup
}

// ended implements waiter.
func (o *operation) ended() { o.done <- struct{}{} } // has room for one

// operations keeps operations to use again. It is a client's own, as channels
// made in a testing/synctest bubble must stay there.
type operations struct{ pool sync.Pool }

func (s *operations) get() *operation {
	o, ok := s.pool.Get().(*operation)
	if !ok {
		o = &operation{done: make(chan struct{}, 1)}
	}
	o.Tag = o
	return o
}

// put takes an operation back that the endpoint does not know any more.
func (s *operations) put(o *operation) {
	o.Transfer = transport.Transfer{}
	s.pool.Put(o)
}

// candidates returns machine ids in the order in which an allocation tries them:
// drawn at random, weighted by free space, so that clients spread over the
// blades without talking to each other. Full ones come last: what is known of
// their space may be old.
func candidates(r *rand.Rand, blades []control.MemoryBlade) []uint8 {
	left := append([]control.MemoryBlade(nil), blades...)
	order := make([]uint8, 0, len(left))
	for len(left) > 0 {
		i := draw(r, left)
		order = append(order, left[i].Machine)
		left = append(left[:i], left[i+1:]...)
	}
	return order
}

// draw returns an index with a probability proportional to the blade's free
// space. Weights are in KiB, so that adding them up cannot overflow.
func draw(r *rand.Rand, blades []control.MemoryBlade) int {
	total := uint64(0)
	for _, b := range blades {
		total += weight(b)
	}
	at := r.Uint64N(total)
	for i, b := range blades {
		if at < weight(b) {
			return i
		}
		at -= weight(b)
	}
	return len(blades) - 1
}

func weight(b control.MemoryBlade) uint64 {
	if b.Free == 0 {
		return 1
	}
	return 1 + b.Free>>10
}
