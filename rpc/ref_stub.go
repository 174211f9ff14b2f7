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

// What generated code does with references, for package stub.

func init() {
	bridge.CallerOf = callerOf
	bridge.Lend = func(ctx context.Context, c bridge.Caller, name string, ref any) (*bifrost.Reference, error) {
		return ref.(reference).lend(ctx, c, "argument "+name)
	}
	bridge.Gave = func(ref any) { ref.(reference).gave() }
	bridge.Result = func(ctx context.Context, c bridge.Caller, ref any, w *bifrost.Reference) error {
		return ref.(reference).result(ctx, c, w)
	}
	bridge.Done = func(ctx context.Context, ref any, err *error) { ref.(reference).done(ctx, err) }
	bridge.Lent = func(ctx context.Context, ref any, name string, w *bifrost.Reference, owned bool) error {
		return ref.(reference).lent(ctx, "argument "+name, w, owned)
	}
	bridge.Return = func(ctx context.Context, ref any) (*bifrost.Reference, error) { return ref.(reference).hand(ctx) }
	bridge.End = func(ctx context.Context, ref any) { ref.(reference).end(ctx) }
	bridge.Construct = func(ref, construct any) { ref.(reference).construct(construct) }
	bridge.DeclaredPolicy = func(p rpcpacket.Policy, methods []string) any { return withDeclaredPolicy(p, methods...) }
}

// reference is a *Ref[T] of any T.
type reference interface {
	lend(ctx context.Context, c bridge.Caller, op string) (*bifrost.Reference, error)
	gave()
	result(ctx context.Context, c bridge.Caller, w *bifrost.Reference) error
	done(ctx context.Context, err *error)
	lent(ctx context.Context, op string, w *bifrost.Reference, owned bool) error
	hand(ctx context.Context) (*bifrost.Reference, error)
	end(ctx context.Context)
	construct(f any)
}

// callerOf: a client that is not Node.Client's own, such as one that a middleware is
// wrapped around, counts as plain Thrift.
func callerOf(c thrift.TClient) bridge.Caller {
	if c, ok := c.(*client); ok {
		return bridge.Caller{Memory: c.node.memory, Inline: inlineLimit(c.node.budget)}
	}
	return bridge.Caller{}
}

func (r *Ref[T]) construct(f any) { r.form = structForm(f.(func() T)) }

func (r *Ref[T]) lend(ctx context.Context, c bridge.Caller, op string) (*bifrost.Reference, error) {
	if err := r.take(ctx, op); err != nil {
		return nil, err
	}
	defer r.put()
	if w, err := r.inside(op, c.Inline); w != nil || err != nil {
		return w, err
	}
	if err := r.store(ctx, op, c.Memory); err != nil {
		return nil, err
	}
	return r.storage.reference(), nil
}

// inside returns what a message carries for a value that is short and does not stand in
// memory; nil for any other.
func (r *Ref[T]) inside(op string, limit int) (*bifrost.Reference, error) {
	if err := r.storage.usable(op); err != nil {
		return nil, err
	}
	lent := r.storage.state == refLent && r.storage.inline != nil // it came so, and so it goes on
	if !lent && r.storage.state != refLocal {
		return nil, nil
	}
	b, err := r.bytes(op)
	if err != nil || len(b) == 0 || len(b) > limit && !lent {
		return nil, err
	}
	return &bifrost.Reference{Pointer: GlobalPointer(dsm.Pointer{}), Length: int64(len(b)), Value: b}, nil
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

// store puts a local reference's value into memory.
func (r *Ref[T]) store(ctx context.Context, op string, home *dsmclient.Client) error {
	if err := r.storage.usable(op); err != nil || r.storage.state != refLocal {
		return err
	}
	b, err := r.bytes(op)
	if err != nil {
		return err
	}
	return r.storage.write(ctx, op, home, b)
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
		return fault.New(Unsupported, op, "references travel over Bifröst only")
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
		return fault.New(BadRequest, op, "the message carries none")
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
			return fault.New(BadRequest, op, "a value of %d bytes for %d at %s", len(w.Value), w.Length, r.storage.pointer)
		}
		r.storage.inline = w.Value
		return nil
	}
	if w.Length < 0 || w.Length > MaxRef || (w.Length == 0) != r.storage.pointer.IsNil() {
		return fault.New(BadRequest, op, "%d bytes at %s", w.Length, r.storage.pointer)
	}
	return nil
}

// hand: what the handler was lent is copied, for it is not the handler's to hand over.
func (r *Ref[T]) hand(ctx context.Context) (*bifrost.Reference, error) {
	const op = "result"
	if err := r.take(ctx, op); err != nil {
		return nil, err
	}
	defer r.put()
	limit := 0
	if b := branchOf(ctx); b != nil && b.e != nil {
		limit = inlineLimit(b.e.node.budget)
	}
	if w, err := r.inside(op, limit); w != nil || err != nil {
		if err == nil && r.storage.state == refLocal {
			r.storage.state = refEnded
		}
		return w, err
	}
	place := &r.storage
	if place.state == refLent {
		value, err := r.load(ctx, op)
		if err != nil {
			return nil, err
		}
		r = newRef(r.form, value)
		place = &r.storage
	}
	if err := r.store(ctx, op, nil); err != nil {
		return nil, err
	}
	w := place.reference()
	place.state = refEnded
	return w, nil
}

func (r *Ref[T]) end(ctx context.Context) {
	if r.take(ctx, "") != nil {
		return
	}
	defer r.put()
	if r.storage.state == refOwned {
		late, cancel := afterwards(ctx)
		defer cancel()
		_ = r.free(late, "") // the region goes with the node at the latest
	}
	r.storage.state = refEnded
}
