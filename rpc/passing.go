package rpc

import (
	"context"
	"errors"
	"math"

	"github.com/apache/thrift/lib/go/thrift"

	"github.com/bifrost-rack/bifrost/dsm"
	"github.com/bifrost-rack/bifrost/dsm/dsmclient"
	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/rpc/idl/bifrost"
	"github.com/bifrost-rack/bifrost/rpc/internal/bridge"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// Where the ways of a value cross, in bytes, by what two CPUs have shown (bifrost-bench patterns-*, the quietest of five, µs, by value and by
// region). Who reads all of a value gets it faster by value, whatever its length: 64 KiB 54 and 205, 1 MiB 445 and 923, 8 MiB 2,659 and 12,066.
// Passed on once it is the same: 8 MiB 11,610 and 21,074. Passed on three times: 64 KiB 554 and 513, 512 KiB 1,336 and 929, 1 MiB 3,382 and 1,462. Of one page: 1 MiB
// 377 and 352, 4 MiB 1,479 and 1,072.
const (
	// besideValue is how much of a packet is left for what stands beside a value. It need
	// not be enough: a message that exceeds a packet goes in parts.
	besideValue = 512
	// mostInParts is up to which length a value travels in parts. Longer ones have not been
	// measured, and would take as much memory of their receiver as of the rack.
	mostInParts = 16 << 20
	// sparedFrom is the length from which on a region pays that spares sparesMuch, and partFrom that from which on one pays that spares a transfer
	// alone.
	sparedFrom = 512 << 10
	partFrom   = 4 << 20
	sparesMuch = 3
)

// valued is below which length a value travels inside a message, by what a region would spare. again says that it has been in a message before: a region is written
// once for all calls that come.
func valued(spares int, again bool) int {
	switch {
	case spares >= sparesMuch, spares >= sparesTransfer && again:
		return sparedFrom
	case spares >= sparesTransfer:
		return partFrom
	}
	return math.MaxInt
}

// inline is up to which length a value travels inside a message instead of in memory, in
// bytes: whatever fits a packet and a message (WithMaxMessage) or, in parts, more. What a
// ledger is to keep does not go in parts, for it would need twice the room there, unless the IDL has it so. Nor does a one-way's: nobody hears
// that its receiver takes less.
func (n *Node) inline(w bridge.Way, parts bool) int {
	most := n.ports.budget
	switch {
	case w == bridge.InRegion:
		return 0
	case w == bridge.InMessage:
		most = n.large.limit()
	case parts:
		most = mostInParts + besideValue
	}
	return min(most, n.large.limit()) - besideValue
}

// What generated code does with references, for package stub.

func init() {
	bridge.CallerOf = callerOf
	bridge.Lend = func(ctx context.Context, c bridge.Caller, a bridge.Argument, ref any) (*bifrost.Reference, error) {
		return ref.(reference).lend(ctx, c, a)
	}
	bridge.Spares = func(ref any) int { return ref.(reference).spares() }
	bridge.Gave = func(ref any) { ref.(reference).gave() }
	bridge.Result = func(ctx context.Context, c bridge.Caller, ref any, w *bifrost.Reference) error {
		return ref.(reference).result(ctx, c, w)
	}
	bridge.Done = func(ctx context.Context, ref any, err *error) { ref.(reference).done(ctx, err) }
	bridge.Lent = func(ctx context.Context, ref any, name string, w *bifrost.Reference, owned bool) error {
		return ref.(reference).lent(ctx, "argument "+name, w, owned)
	}
	bridge.Return = func(ctx context.Context, w bridge.Way, takes int64, ref any) (*bifrost.Reference, error) {
		return ref.(reference).hand(ctx, w, takes)
	}
	bridge.TakesLess = func(err error) bool {
		var e *Error
		return errors.As(err, &e) && e.Code == BadRequest && e.Remote && e.NeverBegan
	}
	bridge.End = func(ctx context.Context, ref any) { ref.(reference).end(ctx) }
	bridge.DeclaredPolicy = func(p rpcpacket.Policy, methods []string) any { return withDeclaredPolicy(p, methods...) }
}

// reference is a *Ref[T] of any T.
type reference interface {
	lend(ctx context.Context, c bridge.Caller, a bridge.Argument) (*bifrost.Reference, error)
	spares() int
	gave()
	result(ctx context.Context, c bridge.Caller, w *bifrost.Reference) error
	done(ctx context.Context, err *error)
	lent(ctx context.Context, op string, w *bifrost.Reference, owned bool) error
	hand(ctx context.Context, w bridge.Way, takes int64) (*bifrost.Reference, error)
	end(ctx context.Context)
}

// callerOf: a client that is not Node.Client's own, such as one that a middleware is
// wrapped around, counts as plain Thrift.
func callerOf(c thrift.TClient) bridge.Caller {
	if c, ok := c.(*client); ok {
		return bridge.Caller{Memory: c.node.memory, Inside: c.inside, Learn: c.learn, Spares: c.spares, Takes: c.takes}
	}
	return bridge.Caller{}
}

// inside decides whether a value of so many bytes travels inside a call.
func (c *client) inside(ctx context.Context, a bridge.Argument, length int, again bool) bool {
	parts := c.unrecorded(ctx, a.Method)
	most := c.node.inline(a.Way, parts && !a.Oneway)
	if parts && a.Way == bridge.Cheapest {
		spares, _ := c.node.learned.spares(c.learnedKey(a))
		most = min(most, valued(spares, again)-1)
	}
	return c.node.stats.moves(length, most)
}

// unrecorded reports whether nobody keeps what a call of a method carries.
func (c *client) unrecorded(ctx context.Context, method string) bool {
	b := branchOf(ctx)
	if b.journalled() {
		return false
	}
	p, err := c.policy(b, method)
	return err == nil && p == PolicyNone
}

// takes is how many bytes the answer to a call may have, 0 for as many as a callee sends.
func (c *client) takes(ctx context.Context, method string) int64 {
	limit, most := c.node.large.limit(), c.node.ports.budget
	if c.unrecorded(ctx, method) {
		most = mostInParts + besideValue
	}
	if limit >= most {
		return 0
	}
	return int64(limit)
}

func (c *client) learnedKey(a bridge.Argument) learnedKey {
	return learnedKey{c.service, a.Method, a.Name}
}

func (c *client) learn(a bridge.Argument, spares int) { c.node.learned.note(c.learnedKey(a), spares) }

// spares is what a callee has said last. An exactly-once execution tells nothing of it, so that its re-run answers alike.
func (c *client) spares(ctx context.Context, a bridge.Argument) int {
	if branchOf(ctx).journalled() {
		return 0
	}
	_, last := c.node.learned.spares(c.learnedKey(a))
	return last
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
	again := r.storage.passed
	r.storage.onwards += c.Spares(ctx, a)
	if r.storage.stands() {
		return r.storage.reference(), nil
	}
	return r.moved(ctx, op, c.Memory, func(length int) bool { return c.Inside(ctx, a, length, again) })
}

func (r *Ref[T]) spares() int {
	select {
	case <-r.turn:
		defer r.put()
	default: // a goroutine that the handler has left behind uses it
		return sparesNothing
	}
	spares := r.storage.onwards
	if r.storage.seen < r.storage.length-r.storage.length/8 { // all but the index, of a list
		spares += sparesTransfer
	} else {
		spares += sparesNothing
	}
	return min(max(spares, sparesNothing), mostSpares)
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
func (r *Ref[T]) hand(ctx context.Context, way bridge.Way, takes int64) (*bifrost.Reference, error) {
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
		if w, err = r.copied(ctx, op, way, takes); err != nil {
			return nil, err
		}
	}
	if r.storage.state != refLent && r.storage.state != refShared {
		r.storage.state = refEnded
	}
	return w, nil
}

// copied is a value that does not stand in memory, or was lent, as an answer carries it whose caller takes so many bytes, if that is not 0.
func (r *Ref[T]) copied(ctx context.Context, op string, way bridge.Way, takes int64) (*bifrost.Reference, error) {
	c := newRef(r.form, r.value)
	if c.storage.inline = r.storage.inline; c.storage.inline == nil {
		var err error
		if c.value, err = r.load(ctx, op); err != nil {
			return nil, err
		}
	}
	r.storage.seen = r.storage.length
	return c.moved(ctx, op, nil, func(length int) bool {
		b := branchOf(ctx)
		if b == nil || b.e == nil {
			return false
		}
		// A caller that is an execution may be an exactly-once one, which journals the answer.
		most := b.e.node.inline(way, b.e.journal == nil && b.e.call.Parent.IsZero())
		if takes > 0 {
			most = min(most, int(max(takes-besideValue, 0)))
		}
		return b.e.node.stats.moves(length, most)
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
