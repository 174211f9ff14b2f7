package rpc

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/bifrost-rack/bifrost/dsm"
	"github.com/bifrost-rack/bifrost/dsm/dsmclient"
	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/internal/pace"
	"github.com/bifrost-rack/bifrost/rpc/idl/bifrost"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// Standing leases (docs/rights.md, section 4). The Gatekeeper opens a call slot, of which the owner of a value is the caller and the lessee the callee:
//
//	owner ── Share ──▶ Gatekeeper ── lend ──▶ switch        owner ── bifrost.Lease, in any message ──▶ lessee: Borrow
//	owner ── Unshare ▶ Gatekeeper ── fail call ──▶ switch, a second of rest ──▶ owner may write

// lease is a standing lease that this node has given.
type lease struct {
	node   *Node
	id     uint64
	base   dsm.Pointer
	handle bifrost.Lease
	once   sync.Once
	ended  chan struct{} // closed when nobody reads by it; err is valid then
	err    error
}

// sharePauses are those between two questions how far a lease has come, and endPauses those between questions whether it has ended, which takes a second.
var (
	sharePauses = pace.Pauses{First: time.Millisecond, Most: 100 * time.Millisecond}
	endPauses   = pace.Pauses{First: 50 * time.Millisecond, Most: 250 * time.Millisecond}
)

// Share lets the node at an address read the reference's value for longer than a call: until the lease ends. n is the node that owns
// the value. A value that does not stand in memory yet is put there. While it is shared, it can neither be written nor freed; it may be lent and
// shared with others.
//
//	lease, err := corpus.Share(ctx, node, reader)   // the owner; it passes the lease like any struct, by a call or an answer
//	…
//	text := rpc.RefOf[[]byte](nil)                  // the reader
//	err := text.Borrow(node, lease)
//	b, err := text.Load(ctx)
//	…
//	err = corpus.Unshare(ctx, lease)                // the owner may write then
//
// A lease ends by [Ref.Unshare], by an operator, when the owner's node ends, and when the reader's is gone for good. It outlives a restart of the Gatekeeper, the loss
// of the switch's registers, and a crash of the reader's program if that comes back. It must not be changed.
//
// A node shares what its program owns, not what an execution does: a reference made in a handler fails as [BadRequest], and so do a lent one, and the node itself as reader.
// Exactly-once executions cannot share ([Unsupported]), since a re-run would get another lease. [NotFound] says that there is no such node, [NoSpace] that
// the owner's user has its share of the rack's leases. If ctx ends, there is no lease in the end.
func (r *Ref[T]) Share(ctx context.Context, n *Node, with netip.Addr) (*bifrost.Lease, error) {
	const op = "share"
	if err := r.take(ctx, op); err != nil {
		return nil, err
	}
	defer r.put()
	b := branchOf(ctx)
	switch err := r.storage.usable(op); {
	case err != nil:
		return nil, err
	case b.journalled():
		return nil, fault.New(Unsupported, op, "an exactly-once execution gives no standing lease, since its re-run would get another one: let the program share, or a method of policy none")
	case r.storage.bound != nil || r.storage.state == refLent || r.storage.state == refShared:
		return nil, fault.New(BadRequest, op, "the reference belongs to a handler, or is lent: only its program's own values are shared")
	case r.storage.state == refLocal:
		bytes, err := r.bytes(op)
		if err == nil {
			err = r.store(context.WithValue(ctx, branchKey{}, (*opSequence)(nil)), op, n.memory, bytes)
		}
		if err != nil {
			return nil, err
		}
	}
	if r.storage.home != n.memory {
		return nil, fault.New(BadRequest, op, "the reference is not one of node %s", n.self.Name)
	}
	switch {
	case with == n.self.Address:
		return nil, fault.New(BadRequest, op, "node %s would share with itself: it reads what is its own", with)
	case r.storage.length == 0:
		return &bifrost.Lease{Address: []byte{}}, nil
	}
	l, err := n.share(ctx, r.storage.pointer, r.storage.length, with)
	if err != nil {
		return nil, err
	}
	r.storage.leases = append(r.storage.leases, l)
	return &l.handle, nil
}

// Unshare takes leases back, or all that were given if none is named. It returns when nobody reads by them any more, a second later at least: calls of the reader that have passed the value on end
// first. From then on the value may be written and freed, if it is not lent otherwise. If ctx ends, that goes on without its caller, and another Unshare waits for it. It
// fails as [Unavailable] if the node has ended, which ends all its leases.
func (r *Ref[T]) Unshare(ctx context.Context, leases ...*bifrost.Lease) error {
	const op = "end a lease"
	if err := r.take(ctx, op); err != nil {
		return err
	}
	var ends []*lease
	for _, l := range r.storage.leases {
		if len(leases) == 0 || slices.ContainsFunc(leases, func(h *bifrost.Lease) bool { return h != nil && h.Slot == l.handle.Slot && h.Number == l.handle.Number }) {
			l.begin()
			ends = append(ends, l)
		}
	}
	r.put()
	for _, l := range ends {
		select {
		case <-l.ended:
			if l.err != nil {
				return coded(op, l.err)
			}
		case <-ctx.Done():
			return fault.FromContext(op, ctx.Err())
		}
	}
	if err := r.take(ctx, op); err != nil {
		return err
	}
	defer r.put()
	r.storage.leases = slices.DeleteFunc(r.storage.leases, func(l *lease) bool { return slices.Contains(ends, l) })
	return nil
}

// share begins a lease.
func (n *Node) share(ctx context.Context, p dsm.Pointer, length int64, with netip.Addr) (*lease, error) {
	const op = "share"
	l := &lease{node: n, base: p, ended: make(chan struct{})}
	if err := n.pass(ctx, []dsm.Pointer{p}, n.memory.Lend); err != nil {
		return nil, coded(op, err)
	}
	l.id = n.shares.Add(1)
	granted := make(chan struct{})
	var r control.ShareReply
	var err error
	if !n.life.enter() {
		return nil, n.life.failure()
	}
	go func() {
		defer n.life.readers.Done()
		defer close(granted)
		r, err = l.ask(control.Share{ID: l.id, Lessee: with, Regions: []rpcpacket.Region{rpcpacket.RegionOf(p)}}, control.ShareHolds, sharePauses)
	}()
	select {
	case <-granted:
		if err != nil {
			l.begin() // nothing may be left of it
			return nil, coded(op, err)
		}
	case <-ctx.Done():
		if n.life.enter() {
			go func() {
				defer n.life.readers.Done()
				<-granted // it has one request out at a time
				l.begin()
			}()
		}
		return nil, fault.FromContext(op, ctx.Err())
	}
	n.stats.leasesGiven.Add(1)
	l.handle = bifrost.Lease{Length: length, Address: p[:], Slot: int32(r.Slot), Number: int64(r.Number)} //nolint:gosec // 20 and 63 bits
	return l, nil
}

// ask asks the Gatekeeper until a lease has come to a state.
func (l *lease) ask(q control.Share, want control.ShareState, pauses pace.Pauses) (r control.ShareReply, err error) {
	n := l.node
	for pause := time.Duration(0); ; {
		r, err = n.session.Share(n.life.base, q)
		switch code := fault.CodeOf(err); {
		case n.life.base.Err() != nil:
			return r, n.life.failure()
		case err == nil && r.State == want:
			return r, nil
		case err == nil && want == control.ShareHolds && r.State != control.ShareComes:
			return r, fault.New(Unavailable, "share", "the lease has been ended before it was there")
		case err != nil && code != Overloaded && code != Unavailable:
			return r, err
		}
		if pause = pauses.Next(pause); !wait(n.life.base, pause) {
			return r, n.life.failure()
		}
	}
}

// begin begins the end of a lease, once.
func (l *lease) begin() {
	l.once.Do(func() {
		n := l.node
		if !n.life.enter() {
			l.err = n.life.failure()
			close(l.ended)
			return
		}
		go func() {
			defer n.life.readers.Done()
			defer close(l.ended)
			if _, l.err = l.ask(control.Share{ID: l.id, End: true}, control.ShareEnded, endPauses); l.err == nil {
				n.memory.Returned(l.base)
			}
		}()
	})
}

// awaitUnshared waits until the leases that former incarnations have given are over. It reports false if the node ends.
func (n *Node) awaitUnshared() bool {
	_, err := (&lease{node: n}).ask(control.Share{End: true}, control.ShareEnded, endPauses)
	return err == nil
}

// Borrow makes a reference that stands nowhere yet, such as RefOf[[]byte](nil), one to a value that another node shares with this one ([Ref.Share]). It may be read, and
// passed on in calls, until the lease ends: then that fails as [PermissionDenied]. In exactly-once executions, too, so one that reads it should be done before the owner
// takes it back: a re-run which finds it ended fails as [Nondeterminism] if it did something else before. Free, and Take, forget it here, and leave it to its owner.
func (r *Ref[T]) Borrow(n *Node, l *bifrost.Lease) error {
	const op = "borrow"
	if err := r.take(context.Background(), op); err != nil {
		return err
	}
	defer r.put()
	switch {
	case r.storage.state != refLocal || r.storage.inline != nil:
		return fault.New(BadRequest, op, "the reference has a value already")
	case l == nil:
		return fault.New(BadRequest, op, "there is no lease")
	}
	var none T
	if l.Length == 0 && len(l.Address) == 0 {
		r.value, r.known, r.storage = none, false, refStorage{state: refShared, home: n.memory}
		return nil
	}
	p, err := dsmpacket.FromBytes(l.Address)
	ref := rpcpacket.Ref{Slot: rpcpacket.Slot(l.Slot), Number: rpcpacket.Number(l.Number)} //nolint:gosec // checked below
	switch {
	case err != nil:
		return &Error{Code: BadRequest, Op: op, Err: err}
	case !p.InPrefix(n.memory.Prefix()) || l.Length < 1 || l.Length > MaxRef || l.Slot < 1 || !ref.Slot.Valid() || l.Number < 1:
		return fault.New(BadRequest, op, "it is no lease: %d bytes at %s, slot %d, number %d", l.Length, p, l.Slot, l.Number)
	case n.memory.Owns(p):
		return fault.New(BadRequest, op, "%s is this node's own", p)
	}
	r.value, r.known = none, false
	r.storage = refStorage{state: refShared, home: n.memory, pointer: p, length: l.Length, by: ref, borrows: &n.borrows}
	n.borrows.add(rpcpacket.RegionOf(p), ref)
	return nil
}

// borrows are the standing leases that a node has, as its program has told. The zero value is ready.
type borrows struct {
	memory *dsmclient.Client // whose account says what the node owns

	mu  sync.Mutex
	all map[rpcpacket.Region][]rpcpacket.Ref
	now atomic.Pointer[map[rpcpacket.Region]rpcpacket.Ref] // by which to read: the newest ones; nil if there are none. It does not change
}

func (b *borrows) add(r rpcpacket.Region, by rpcpacket.Ref) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.all == nil {
		b.all = map[rpcpacket.Region][]rpcpacket.Ref{}
	}
	b.all[r] = append(b.all[r], by)
	b.publish(r)
}

func (b *borrows) drop(r rpcpacket.Region, by rpcpacket.Ref) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for i, o := range b.all[r] {
		if o == by {
			b.all[r] = append(b.all[r][:i:i], b.all[r][i+1:]...)
			break
		}
	}
	if len(b.all[r]) == 0 {
		delete(b.all, r)
	}
	b.publish(r)
}

// publish has readers find a region's newest lease. The caller holds the lock.
func (b *borrows) publish(r rpcpacket.Region) {
	if len(b.all) == 0 {
		b.now.Store(nil)
		return
	}
	now := map[rpcpacket.Region]rpcpacket.Ref{}
	if was := b.now.Load(); was != nil {
		maps.Copy(now, *was)
	}
	delete(now, r)
	for _, by := range b.all[r] {
		if by.Number > now[r].Number {
			now[r] = by
		}
	}
	b.now.Store(&now)
}

// lease is the standing lease by which the node has a region, the zero Ref if it has none. What it owns itself it reads as that.
func (b *borrows) lease(r rpcpacket.Region) rpcpacket.Ref {
	now := b.now.Load()
	if now == nil {
		return rpcpacket.Ref{}
	}
	by := (*now)[r]
	if by != (rpcpacket.Ref{}) && b.memory.Owns(r.Base(b.memory.Prefix())) {
		return rpcpacket.Ref{}
	}
	return by
}

// use is lease for a read on behalf of no execution.
func (b *borrows) use(p dsm.Pointer) dsmpacket.Use {
	by := b.lease(rpcpacket.RegionOf(p))
	return dsmpacket.Use{Slot: uint32(by.Slot), Number: uint64(by.Number)}
}

// errManyLenders refuses what a call's slots have no room for.
var errManyLenders = fmt.Errorf("a call passes on what has come by more than %d calls and standing leases: make it several calls", rpcpacket.MaxLists)
