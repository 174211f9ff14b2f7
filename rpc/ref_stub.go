package rpc

import (
	"context"

	"github.com/apache/thrift/lib/go/thrift"

	"github.com/bifrost-rack/bifrost/dsm"
	"github.com/bifrost-rack/bifrost/dsm/packet"
	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/rpc/idl/bifrost"
)

// What follows is for the code that "bifrost gen" writes.

// RefCaller makes the calls of a generated client.
type RefCaller struct {
	home  *dsm.Client
	limit int // up to which length values travel inside the message
}

// NewRefCaller returns what calls by reference through c need. A client that is not
// Node.Client's own, such as one that a middleware is wrapped around, counts as
// plain Thrift.
func NewRefCaller(c thrift.TClient) RefCaller {
	if c, ok := c.(*client); ok {
		return RefCaller{home: c.node.memory, limit: inlineLimit(c.node.budget)}
	}
	return RefCaller{}
}

// ByReference reports whether the other side can be reached by reference: not
// over plain Thrift.
func (c RefCaller) ByReference() bool { return c.home != nil }

// LendRef is what a call carries for an argument: it puts the value into memory
// unless it stands there or is short.
func LendRef[T any](ctx context.Context, c RefCaller, name string, r *Ref[T]) (*bifrost.Reference, error) {
	op := "argument " + name
	if err := r.take(ctx, op); err != nil {
		return nil, err
	}
	defer r.put()
	if w, err := r.inside(op, c.limit); w != nil || err != nil {
		return w, err
	}
	if err := r.store(ctx, op, c.home); err != nil {
		return nil, err
	}
	return r.place.reference(), nil
}

// inside returns what a message carries for a value that is short and does not stand in
// memory; nil for any other.
func (r *Ref[T]) inside(op string, limit int) (*bifrost.Reference, error) {
	if err := r.place.usable(op); err != nil {
		return nil, err
	}
	lent := r.place.state == refLent && r.place.inline != nil // it came so, and so it goes on
	if !lent && r.place.state != refLocal {
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
	if r.place.inline != nil {
		return r.place.inline, nil
	}
	b, err := r.form.encode(r.value)
	if err != nil {
		return nil, &Error{Code: BadRequest, Op: op, Err: err}
	}
	return b, nil
}

// store puts a local reference's value into memory.
func (r *Ref[T]) store(ctx context.Context, op string, home *dsm.Client) error {
	if err := r.place.usable(op); err != nil || r.place.state != refLocal {
		return err
	}
	b, err := r.bytes(op)
	if err != nil {
		return err
	}
	return r.place.write(ctx, op, home, b)
}

func (p *refPlace) reference() *bifrost.Reference {
	return &bifrost.Reference{Pointer: GlobalPointer(p.pointer), Length: p.length}
}

// GaveRef ends a reference that a one-way call has carried away.
func GaveRef[T any](r *Ref[T]) {
	<-r.turn
	defer r.put()
	r.place.state = refEnded
}

// ResultRef makes the reference that a call has returned.
func ResultRef[T any](ctx context.Context, c RefCaller, f Form[T], w *bifrost.Reference) (*Ref[T], error) {
	r, err := arrivedRef(f, "result", w)
	if err != nil {
		err.Remote = true
		return nil, err
	}
	r.place.state = r.place.arrived()
	r.place.belong(ctx, c.home)
	return r, nil
}

// DoneRef ends a reference that a client stub has made for a plain value, and sets
// err if nothing else has failed.
func DoneRef[T any](ctx context.Context, r *Ref[T], err *error) {
	if r.take(ctx, "free reference") != nil {
		return // whoever has it is not done, which only a program's mistake brings about
	}
	defer r.put()
	if r.place.state == refEnded {
		return
	}
	late, cancel := afterwards(ctx)
	defer cancel()
	if ferr := r.free(late, "free reference"); ferr != nil && *err == nil {
		*err = ferr
	}
}

// LentRef makes the reference that a handler gets for an argument; owned says that
// it is a one-way's, whose caller has let go of it.
func LentRef[T any](ctx context.Context, f Form[T], name string, w *bifrost.Reference, owned bool) (*Ref[T], error) {
	op := "argument " + name
	b := branchOf(ctx)
	if b == nil || b.e == nil {
		return nil, fault.New(Unsupported, op, "references travel over Bifröst only")
	}
	r, err := arrivedRef(f, op, w)
	if err != nil {
		return nil, err
	}
	r.place.state, r.place.bound = refLent, b.e
	if owned {
		r.place.state = r.place.arrived()
	}
	return r, nil
}

// arrived is the state of a reference that its receiver may do with what it likes.
func (p *refPlace) arrived() refState {
	if p.inline != nil {
		return refLocal
	}
	return refOwned
}

// arrivedRef checks what a message carries.
func arrivedRef[T any](f Form[T], op string, w *bifrost.Reference) (*Ref[T], *Error) {
	if w == nil {
		return nil, fault.New(BadRequest, op, "the message carries none")
	}
	r := emptyRef(f)
	if g := w.Pointer; g != nil && len(g.Address) > 0 {
		p, err := packet.FromBytes(g.Address)
		if err != nil {
			return nil, &Error{Code: BadRequest, Op: op, Err: err}
		}
		r.place.pointer = p
	}
	r.place.length = w.Length
	if w.Value != nil {
		if !r.place.pointer.IsNil() || w.Length == 0 || int64(len(w.Value)) != w.Length {
			return nil, fault.New(BadRequest, op, "a value of %d bytes for %d at %s", len(w.Value), w.Length, r.place.pointer)
		}
		r.place.inline = w.Value
		return r, nil
	}
	if w.Length < 0 || w.Length > MaxRef || (w.Length == 0) != r.place.pointer.IsNil() {
		return nil, fault.New(BadRequest, op, "%d bytes at %s", w.Length, r.place.pointer)
	}
	return r, nil
}

// ReturnRef is what an answer carries for a handler's result: it puts the value
// into memory unless it stands there or is short. What the handler was lent is copied, for it
// is not the handler's to hand over. The reference ends.
func ReturnRef[T any](ctx context.Context, r *Ref[T]) (*bifrost.Reference, error) {
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
		if err == nil && r.place.state == refLocal {
			r.place.state = refEnded
		}
		return w, err
	}
	place := &r.place
	if place.state == refLent {
		value, err := r.load(ctx, op)
		if err != nil {
			return nil, err
		}
		r = newRef(r.form, value)
		place = &r.place
	}
	if err := r.store(ctx, op, nil); err != nil {
		return nil, err
	}
	w := place.reference()
	place.state = refEnded
	return w, nil
}

// EndRef ends a handler's argument; one that it owns and has not passed on is
// freed.
func EndRef[T any](ctx context.Context, r *Ref[T]) {
	if r.take(ctx, "") != nil {
		return
	}
	defer r.put()
	if r.place.state == refOwned {
		late, cancel := afterwards(ctx)
		defer cancel()
		_ = r.free(late, "") // the region goes with the node at the latest
	}
	r.place.state = refEnded
}
