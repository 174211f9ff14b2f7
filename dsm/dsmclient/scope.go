package dsmclient

import (
	"context"
	"sync"

	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
	"github.com/bifrost-rack/bifrost/dsm/internal/transport"
	"github.com/bifrost-rack/bifrost/internal/fault"
)

// Scope names the branch of an execution on whose behalf a client's operations
// are. The zero Scope is none.
type Scope struct {
	Execution [16]byte
	Branch    uint64 // 0 for the trunk
	// By tells by which use of a call slot the execution may read a region, the zero Use if the region is its node's. It may be called
	// concurrently, and must not block. nil stands for one that knows of no such region.
	By func(Pointer) dsmpacket.Use
}

// Decider is the execution on whose behalf a client's operations are. Its node decides what becomes
// of what it changes (Commit, Rollback). Its methods may be called concurrently.
type Decider interface {
	// Changes is asked before each operation that changes memory of a machine. An error ends the
	// operation.
	Changes(machine uint8) error
	// Former is the region that a former run has got for an allocation, false if there is none. An error says that it is lost, and that somebody may know
	// it: no run gets another one in its place.
	Former(branch uint64, index uint32) (base Pointer, had bool, err error)
	// Allocated says that the execution has got a region for an allocation, which begins at base.
	Allocated(branch uint64, index uint32, base Pointer)
	// HasAllocated reports whether Allocated has named the region that a pointer points into, and the execution has not freed it.
	HasAllocated(p Pointer) bool
	// Free has the region that begins at p freed when the execution has ended.
	Free(p Pointer)
	// Freed reports whether the execution has freed the region that a pointer points into, as far
	// as that is known.
	Freed(p Pointer) bool
}

// With returns a client whose operations are on behalf of an execution: memory
// blades can take them back until the execution is committed. It shares
// everything else with c.
//
// Its operations are numbered from 0 in the order in which they begin, failed
// ones included, which a re-run must repeat: by its number an allocation gets the
// region that it got before. So there is one client for each branch, which does
// one operation at a time; another that begins meanwhile fails as
// Nondeterminism. Who has made it must Finish it before the execution is
// committed.
//
// With a Scope of no execution it returns a client without these rules, and d is not used.
func (c *Client) With(s Scope, d Decider) *Client {
	if s.Execution == [16]byte{} {
		return &Client{link: c.link, by: s.By}
	}
	return &Client{link: c.link, by: s.By, scope: &scope{Scope: s, decider: d}}
}

// Finish ends a client made With a scope: operations that begin later fail. It
// waits like Settle, without which an operation that was cancelled could take
// effect after the execution has been committed. Of a client without a scope it
// does nothing.
func (c *Client) Finish(ctx context.Context) error {
	if !c.scope.counts() {
		return nil
	}
	c.scope.finish()
	return c.settleBranch(ctx)
}

// settleBranch waits until it is known what became of each allocation, write and
// free that the branch has begun.
func (c *Client) settleBranch(ctx context.Context) error {
	branch := transport.Scope{Execution: c.scope.Execution, Branch: c.scope.Branch}
	for { // again, as an allocation that was cancelled is then taken back
		more, err := c.link.wait(ctx, func(e *transport.Endpoint) *transport.Barrier { return e.BarrierOf(branch) })
		if !more || err != nil {
			return err
		}
	}
}

// scope counts the operations of one branch; nil is that of no execution.
type scope struct {
	Scope
	decider Decider

	mu       sync.Mutex
	next     uint32
	busy     bool // an operation is under way
	finished bool
}

func (s *scope) counts() bool { return s != nil }

// changes asks before an operation.
func (s *scope) changes(op dsmpacket.Op, machine uint8) error {
	if s == nil || op == dsmpacket.OpRead {
		return nil
	}
	return s.decider.Changes(machine)
}

// freed reports whether a pointer's region goes at the end of the execution.
func (s *scope) freed(p Pointer) bool { return s != nil && s.decider.Freed(p) }

// former is the region that an allocation is to get again.
func (s *scope) former(at transport.Scope) (base Pointer, had bool, err error) {
	if s == nil {
		return base, false, nil
	}
	return s.decider.Former(at.Branch, at.Index)
}

// begin returns the header fields of an operation, which end must follow.
func (s *scope) begin(op dsmpacket.Op) (transport.Scope, error) {
	if s == nil {
		return transport.Scope{}, nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.finished {
		return transport.Scope{}, errEnded(op)
	}
	if s.busy {
		return transport.Scope{}, fault.New(fault.Nondeterminism, op.String(),
			"another operation of the branch is under way: do them one after the other, or in branches (rpc.Go)")
	}
	s.busy = true
	s.next++
	return transport.Scope{Execution: s.Execution, Branch: s.Branch, Index: s.next - 1}, nil
}

func (s *scope) end() {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.busy = false
}

// goesOn refuses to try an operation again after the end of its execution.
func (s *scope) goesOn(op dsmpacket.Op) error {
	if s == nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.finished {
		return errEnded(op)
	}
	return nil
}

func errEnded(op dsmpacket.Op) error {
	return fault.New(fault.BadRequest, op.String(), "the execution or branch has ended")
}

func (s *scope) finish() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.finished = true
}

// What follows is for a runtime that passes regions on: a client may use a freed region
// again only if it knows where each has been.

// Lend makes regions ready for a call that carries pointers to them: it waits like
// Settle. When the call has been answered, the runtime says so by Returned; if it never
// is, it does not.
func (c *Client) Lend(ctx context.Context, ptrs ...Pointer) error {
	if err := c.ready(ctx, ptrs); err != nil {
		return err
	}
	c.link.cache.note(ptrs, (*regionCache).lent)
	c.link.account.lend(ptrs...)
	return nil
}

// Returned tells the client that a call has been answered for which regions were lent.
func (c *Client) Returned(ptrs ...Pointer) {
	c.link.cache.note(ptrs, (*regionCache).back)
	c.link.account.back(ptrs...)
}

// HandOver makes regions ready to be given away by an answer. They are in the node's account until the answer is kept (Gave), and cannot be handed over
// otherwise meanwhile; Kept takes that back. HandOver waits like Settle. If one of them is not the node's, by its account, or is being handed over, it fails
// as PermissionDenied, and nothing changes.
func (c *Client) HandOver(ctx context.Context, ptrs ...Pointer) error {
	if err := c.ready(ctx, ptrs); err != nil {
		return err
	}
	if foreign := c.link.account.hand(ptrs); !foreign.IsNil() {
		return fault.New(fault.PermissionDenied, "hand over", "%s is not this node's", foreign)
	}
	c.link.cache.note(ptrs, (*regionCache).gone)
	return nil
}

// Kept tells the client that regions stay which were to be handed over: there is no such answer.
func (c *Client) Kept(ptrs ...Pointer) { c.link.account.keep(ptrs) }

// Gained tells the client that an answer has brought the node control of regions, on
// behalf of no execution. They are then freed without their caller's waiting for it.
func (c *Client) Gained(ptrs ...Pointer) {
	c.link.account.add(ptrs...)
	c.link.cache.note(ptrs, (*regionCache).gained)
}

// ready makes regions hold what the program thinks they hold, for good.
func (c *Client) ready(ctx context.Context, ptrs []Pointer) error {
	for _, p := range ptrs {
		if c.link.cache.freed(p) {
			return fault.New(fault.PermissionDenied, "pass on", "%s has been freed", p)
		}
		if err := c.link.cache.whole(ctx, p); err != nil {
			return err
		}
	}
	return c.Settle(ctx, ptrs...)
}

// freed reports whether a pointer's region has been given back.
func (rc *regionCache) freed(p Pointer) bool {
	if rc == nil {
		return false
	}
	rc.mu.Lock()
	defer rc.mu.Unlock()
	return rc.gaveBack(p)
}

// whole zeroes what is stale in a pointer's region.
func (rc *regionCache) whole(ctx context.Context, p Pointer) error {
	if rc == nil {
		return nil
	}
	rc.mu.Lock()
	r := rc.pool.Find(p)
	if r == nil || r.Stale.Empty() || r.Idle() {
		rc.mu.Unlock()
		return nil
	}
	base, size := r.Base, int(r.Size())
	rc.mu.Unlock()
	u, err := rc.begin(ctx, dsmpacket.OpRead, base, size)
	if err == nil {
		u.end(nil)
	}
	return err
}

// note tells the pool about each pointer.
func (rc *regionCache) note(ptrs []Pointer, what func(*regionCache, Pointer)) {
	if rc == nil || len(ptrs) == 0 {
		return
	}
	rc.mu.Lock()
	defer rc.mu.Unlock()
	for _, p := range ptrs {
		what(rc, p)
	}
}

func (rc *regionCache) lent(p Pointer)   { rc.pool.Lend(p) }
func (rc *regionCache) back(p Pointer)   { rc.pool.Back(p) }
func (rc *regionCache) gone(p Pointer)   { rc.pool.Forget(p) }
func (rc *regionCache) gained(p Pointer) { rc.pool.Gained(p) }
