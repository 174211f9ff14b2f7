package rpc

import (
	"context"

	"github.com/apache/thrift/lib/go/thrift"

	"github.com/bifrost-rack/bifrost/dsm"
	"github.com/bifrost-rack/bifrost/dsm/dsmclient"
	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/rpc/idl/bifrost"
	"github.com/bifrost-rack/bifrost/rpc/internal/bridge"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// Where the ways of a value cross, in bytes, by what two CPUs have shown (there and back,
// quiet): 62,000 bytes take 45 µs inside a packet and 716 through regions, 64 KiB 106 in
// parts and 738, 2 MiB 1,895 and 3,577. Two packets of a call with a region waited for the
// Gatekeeper then. None does now, and regions have not been measured again.
const (
	// besideValue is how much of a packet is left for what stands beside a value. It need
	// not be enough: a message that exceeds a packet goes in parts.
	besideValue = 512
	// mostInParts is up to which length a value travels in parts. Longer ones have not been
	// measured, and would take as much memory of their receiver as of the rack.
	mostInParts = 2 << 20
	// againFrom is the length from which on a value that is passed a second time does so by
	// a region: it is put there once, and each further call sends a pointer.
	againFrom = 1 << 20
)

// inline is up to which length a value travels inside a message instead of in memory, in
// bytes: whatever fits a packet and a message (WithMaxMessage) or, in parts, more. What a
// ledger is to keep does not go in parts, for it would need twice the room there, unless the IDL has it so.
func (n *Node) inline(w bridge.Way, parts bool) int {
	most := n.budget
	switch {
	case w == bridge.InRegion:
		return 0
	case w == bridge.InMessage:
		most = n.limit()
	case parts:
		most = mostInParts + besideValue
	}
	return min(most, n.limit()) - besideValue
}

// What generated code does with references, for package stub.

func init() {
	bridge.CallerOf = callerOf
	bridge.Lend = func(ctx context.Context, c bridge.Caller, a bridge.Argument, ref any) (*bifrost.Reference, error) {
		return ref.(reference).lend(ctx, c, a)
	}
	bridge.PassedOn = func(ref any) bool { return ref.(reference).passedOn() }
	bridge.Gave = func(ref any) { ref.(reference).gave() }
	bridge.Result = func(ctx context.Context, c bridge.Caller, ref any, w *bifrost.Reference) error {
		return ref.(reference).result(ctx, c, w)
	}
	bridge.Done = func(ctx context.Context, ref any, err *error) { ref.(reference).done(ctx, err) }
	bridge.Lent = func(ctx context.Context, ref any, name string, w *bifrost.Reference, owned bool) error {
		return ref.(reference).lent(ctx, "argument "+name, w, owned)
	}
	bridge.Return = func(ctx context.Context, w bridge.Way, ref any) (*bifrost.Reference, error) {
		return ref.(reference).hand(ctx, w)
	}
	bridge.End = func(ctx context.Context, ref any) { ref.(reference).end(ctx) }
	bridge.DeclaredPolicy = func(p rpcpacket.Policy, methods []string) any { return withDeclaredPolicy(p, methods...) }
}

// reference is a *Ref[T] of any T.
type reference interface {
	lend(ctx context.Context, c bridge.Caller, a bridge.Argument) (*bifrost.Reference, error)
	passedOn() bool
	gave()
	result(ctx context.Context, c bridge.Caller, w *bifrost.Reference) error
	done(ctx context.Context, err *error)
	lent(ctx context.Context, op string, w *bifrost.Reference, owned bool) error
	hand(ctx context.Context, w bridge.Way) (*bifrost.Reference, error)
	end(ctx context.Context)
}

// callerOf: a client that is not Node.Client's own, such as one that a middleware is
// wrapped around, counts as plain Thrift.
func callerOf(c thrift.TClient) bridge.Caller {
	if c, ok := c.(*client); ok {
		return bridge.Caller{Memory: c.node.memory, Inside: c.inside, Learn: c.learn}
	}
	return bridge.Caller{}
}

// inside decides whether a value of so many bytes travels inside a call.
func (c *client) inside(ctx context.Context, a bridge.Argument, length int, again bool) bool {
	b := branchOf(ctx)
	parts := false
	if !b.journalled() {
		p, err := c.policy(b, a.Method)
		parts = err == nil && p == PolicyNone
	}
	most := c.node.inline(a.Way, parts)
	if length >= againFrom && a.Way == bridge.Cheapest && (again || parts && c.node.learned.passesOn(learnedKey{c.service, a.Method, a.Name})) {
		most = againFrom - 1
	}
	return c.node.moves(length, most)
}

// moves reports whether a value travels inside a message, which has room for most bytes of it, and counts it.
func (n *Node) moves(length, most int) (inside bool) {
	if inside = length <= most; inside {
		n.stats.refsInMessages.Add(1)
	} else {
		n.stats.refsInRegions.Add(1)
	}
	return inside
}

func (c *client) learn(a bridge.Argument, passedOn bool) {
	c.node.learned.note(learnedKey{c.service, a.Method, a.Name}, passedOn)
}

func (r *Ref[T]) lend(ctx context.Context, c bridge.Caller, a bridge.Argument) (*bifrost.Reference, error) {
	op := "argument " + a.Name
	if err := r.take(ctx, op); err != nil {
		return nil, err
	}
	defer r.put()
	if err := r.storage.usable(op); err != nil {
		return nil, err
	}
	again := r.storage.passed || r.storage.inline != nil
	r.storage.lentOn = true
	if r.storage.stands() {
		return r.storage.reference(), nil
	}
	return r.moved(ctx, op, c.Memory, func(length int) bool { return c.Inside(ctx, a, length, again) })
}

func (r *Ref[T]) passedOn() bool {
	select {
	case <-r.turn:
		defer r.put()
		return r.storage.lentOn
	default: // a goroutine that the handler has left behind uses it
		return false
	}
}

// stands reports whether the value is in memory, or needs none.
func (p *refStorage) stands() bool {
	return p.state == refOwned || p.state == refShared || p.state == refLent && (p.inline == nil || p.onward)
}

// moved is what a message carries for a value that does not stand in memory: the value, if it is to be inside, or
// the region that it then has.
func (r *Ref[T]) moved(ctx context.Context, op string, home *dsmclient.Client, inside func(length int) bool) (*bifrost.Reference, error) {
	b, err := r.bytes(op)
	if err != nil {
		return nil, err
	}
	if len(b) > 0 && inside(len(b)) {
		r.storage.passed = true
		return &bifrost.Reference{Pointer: GlobalPointer(dsm.Pointer{}), Length: int64(len(b)), Value: b}, nil
	}
	if err := r.store(ctx, op, home, b); err != nil {
		return nil, err
	}
	return r.storage.reference(), nil
}

// bytes are those of a value that does not stand in memory.
func (r *Ref[T]) bytes(op string) ([]byte, error) {
	if r.storage.inline != nil {
		return r.storage.inline, nil
	}
	b, err := r.form.encode(r.value)
	if err != nil {
		return nil, &Error{Code: BadRequest, Op: op, Err: err}
	}
	return b, nil
}

// store puts a value that does not stand in memory there. The region of a lent one is
// this execution's, and goes with it.
func (r *Ref[T]) store(ctx context.Context, op string, home *dsmclient.Client, b []byte) error {
	lent := r.storage
	if err := r.storage.write(ctx, op, home, b); err != nil {
		r.storage = lent
		return err
	}
	if lent.state == refLent {
		r.storage.state, r.storage.bound, r.storage.inline, r.storage.onward = refLent, lent.bound, lent.inline, true
	}
	return nil
}

func (p *refStorage) reference() *bifrost.Reference {
	return &bifrost.Reference{Pointer: GlobalPointer(p.pointer), Length: p.length}
}

func (r *Ref[T]) gave() {
	<-r.turn
	defer r.put()
	r.storage.state = refEnded
}

func (r *Ref[T]) result(ctx context.Context, c bridge.Caller, w *bifrost.Reference) error {
	if err := r.arrive("result", w); err != nil {
		err.Remote = true
		return err
	}
	r.storage.state = r.storage.arrived()
	r.storage.belong(ctx, c.Memory)
	return nil
}

func (r *Ref[T]) done(ctx context.Context, err *error) {
	if r.take(ctx, "free reference") != nil {
		return // whoever has it is not done, which only a program's mistake brings about
	}
	defer r.put()
	if r.storage.state == refEnded {
		return
	}
	late, cancel := afterwards(ctx)
	defer cancel()
	if ferr := r.free(late, "free reference"); ferr != nil && *err == nil {
		*err = ferr
	}
}

func (r *Ref[T]) lent(ctx context.Context, op string, w *bifrost.Reference, owned bool) error {
	b := branchOf(ctx)
	if b == nil || b.e == nil {
		return fault.New(Unsupported, op, "references travel over Bifröst only, not over other Thrift transports")
	}
	if err := r.arrive(op, w); err != nil {
		return err
	}
	r.storage.state, r.storage.bound = refLent, b.e
	if owned {
		r.storage.state = r.storage.arrived()
	}
	return nil
}

// arrived is the state of a reference that its receiver may do with what it likes.
func (p *refStorage) arrived() refState {
	if p.inline != nil {
		return refLocal
	}
	return refOwned
}

// arrive checks what a message carries, and makes it what the reference is to.
func (r *Ref[T]) arrive(op string, w *bifrost.Reference) *Error {
	if w == nil {
		return fault.New(BadRequest, op, "the message carries no reference")
	}
	var none T
	r.value, r.known = none, false
	if g := w.Pointer; g != nil && len(g.Address) > 0 {
		p, err := dsmpacket.FromBytes(g.Address)
		if err != nil {
			return &Error{Code: BadRequest, Op: op, Err: err}
		}
		r.storage.pointer = p
	}
	r.storage.length = w.Length
	if w.Value != nil {
		if !r.storage.pointer.IsNil() || w.Length == 0 || int64(len(w.Value)) != w.Length {
			return fault.New(BadRequest, op, "the message has a value of %d bytes, but a length of %d and the pointer %s", len(w.Value), w.Length, r.storage.pointer)
		}
		r.storage.inline = w.Value
		return nil
	}
	if w.Length < 0 || w.Length > MaxRef || (w.Length == 0) != r.storage.pointer.IsNil() {
		return fault.New(BadRequest, op, "the message has a reference of %d bytes at %s: want 0 bytes and no pointer, or 1 to %d bytes and a pointer", w.Length, r.storage.pointer, MaxRef)
	}
	return nil
}

// hand: what the handler was lent, or has a lease for, is copied, for it is not the handler's to hand over.
func (r *Ref[T]) hand(ctx context.Context, way bridge.Way) (*bifrost.Reference, error) {
	const op = "result"
	if err := r.take(ctx, op); err != nil {
		return nil, err
	}
	defer r.put()
	if err := r.storage.usable(op); err != nil {
		return nil, err
	}
	w := r.storage.reference()
	if r.storage.state != refOwned {
		var err error
		if w, err = r.copied(ctx, op, way); err != nil {
			return nil, err
		}
	}
	if r.storage.state != refLent && r.storage.state != refShared {
		r.storage.state = refEnded
	}
	return w, nil
}

// copied is a value that does not stand in memory, or was lent, as an answer carries it.
func (r *Ref[T]) copied(ctx context.Context, op string, way bridge.Way) (*bifrost.Reference, error) {
	c := newRef(r.form, r.value)
	if c.storage.inline = r.storage.inline; c.storage.inline == nil {
		var err error
		if c.value, err = r.load(ctx, op); err != nil {
			return nil, err
		}
	}
	return c.moved(ctx, op, nil, func(length int) bool {
		b := branchOf(ctx)
		if b == nil || b.e == nil {
			return false
		}
		// A caller that is an execution may be an exactly-once one, which journals the answer.
		return b.e.node.moves(length, b.e.node.inline(way, b.e.journal == nil && b.e.call.Parent.IsZero()))
	})
}

func (r *Ref[T]) end(ctx context.Context) {
	if r.take(ctx, "") != nil {
		return
	}
	defer r.put()
	if r.storage.onward {
		r.storage.state = refOwned
	}
	if r.storage.state == refOwned {
		late, cancel := afterwards(ctx)
		defer cancel()
		_ = r.free(late, "") // the region goes with the node at the latest
	}
	r.storage.state = refEnded
}
