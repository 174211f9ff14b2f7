package rpc

import (
	"context"
	"errors"

	"github.com/bifrost-rack/bifrost/dsm"
	"github.com/bifrost-rack/bifrost/internal/fault"
)

// ErrRefEnded is what the use of a reference fails with (wrapped in an *Error of
// code BadRequest) when the call that it was lent for has ended, or when it has
// been freed or handed over.
var ErrRefEnded = errors.New("the reference has ended: its call is over, or it was freed or handed over")

// Ref is a value that travels by reference: what an IDL marks with (bifrost.ref).
// The value stands in distributed memory, or will as soon as it is first passed:
//
//	RefOf ──▶ local ──first call──▶ owned ──Free, Take, one-way, result──▶ ended
//	           ▲                      ▲
//	a call's ──┴── short ──── long ───┘      a handler's argument ──▶ lent ──▶ ended
//	result
//
// A short value (at most 16 KiB, and half of a packet) stays local: it travels inside
// each message that carries the reference, and takes no memory of the rack.
//
// An owned Ref may be passed to any number of calls, which copies nothing; its
// owner frees it. A handler may read a lent one and pass it on in nested calls
// until it returns. A Ref's methods may be called concurrently, except that the
// order of what an exactly-once handler does must not depend on chance (see Go).
type Ref[T any] struct {
	form  form[T]
	turn  chan struct{} // holds one token, taken by whoever looks at the rest
	value T
	known bool // value is the reference's
	place refPlace
}

// refPlace is where a reference's value stands.
type refPlace struct {
	state   refState
	pointer dsm.Pointer // nil if length is 0
	length  int64       // bytes
	inline  []byte      // the bytes, of a value that has come inside a message
	home    *dsm.Client // of the node, for one that belongs to no execution
	bound   *execution  // that it belongs to, or nil
}

// refState is how far a reference's life has come.
type refState uint8

const (
	refLocal refState = iota // not in memory yet
	refOwned
	refLent
	refEnded
)

// RefOf makes a reference to a value that is not in distributed memory yet. The
// value must not be changed as long as the reference is used.
func RefOf[T Plain](value T) *Ref[T] { return newRef(plainForm[T](), value) }

// RefOfStruct is RefOf for a struct that the Thrift compiler has generated.
func RefOfStruct[T Struct](value T) *Ref[T] { return newRef(structForm(zeroStruct[T]), value) }

func newRef[T any](f form[T], value T) *Ref[T] {
	r := &Ref[T]{form: f, turn: make(chan struct{}, 1), value: value, known: true}
	r.turn <- struct{}{}
	return r
}

// Load returns the value. It is read when first asked for and kept, so all callers
// get the same one, which they must not change.
func (r *Ref[T]) Load(ctx context.Context) (T, error) {
	const op = "load reference"
	var zero T
	if err := r.take(ctx, op); err != nil {
		return zero, err
	}
	defer r.put()
	return r.load(ctx, op)
}

func (r *Ref[T]) load(ctx context.Context, op string) (value T, err error) {
	if err := r.place.usable(op); err != nil || r.known {
		return r.value, err
	}
	b, err := r.place.read(ctx, op)
	if err != nil {
		return value, err
	}
	if r.value, err = r.form.decode(b); err != nil {
		return value, &Error{Code: BadRequest, Op: op, Err: err}
	}
	r.known = true
	return r.value, nil
}

// Free ends the reference and gives its memory back. A lent one is its caller's to
// free: that is BadRequest.
func (r *Ref[T]) Free(ctx context.Context) error {
	const op = "free reference"
	if err := r.take(ctx, op); err != nil {
		return err
	}
	defer r.put()
	return r.free(ctx, op)
}

func (r *Ref[T]) free(ctx context.Context, op string) error {
	if r.place.state == refLent {
		return fault.New(BadRequest, op, "it is lent, and its caller's to free")
	}
	if err := r.place.free(ctx, op); err != nil {
		return err
	}
	var zero T
	r.value, r.known, r.place.inline = zero, false, nil
	return nil
}

// Take is Load and then Free: for a result that is needed once. If only the Free
// fails, the value comes with the error.
func (r *Ref[T]) Take(ctx context.Context) (T, error) {
	const op = "take reference"
	var zero T
	if err := r.take(ctx, op); err != nil {
		return zero, err
	}
	defer r.put()
	value, err := r.load(ctx, op)
	if err != nil || r.place.state == refLent {
		return value, err
	}
	return value, r.free(ctx, op)
}

// take waits for the reference's turn.
func (r *Ref[T]) take(ctx context.Context, op string) error {
	if r == nil {
		return fault.New(BadRequest, op, "it is nil")
	}
	select {
	case <-r.turn:
		return nil
	default:
	}
	select {
	case <-r.turn:
		return nil
	case <-ctx.Done():
		return fault.FromContext(op, ctx.Err())
	}
}

func (r *Ref[T]) put() { r.turn <- struct{}{} }
