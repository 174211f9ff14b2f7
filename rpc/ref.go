package rpc

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"time"
	"unsafe"

	"github.com/bifrost-rack/bifrost/dsm"
	"github.com/bifrost-rack/bifrost/dsm/dsmclient"
	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/rpc/form"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// ErrRefEnded is what the use of a reference fails with (wrapped in an *Error of
// code [BadRequest]) when the call that it was lent for has ended, or when it has
// been freed or handed over.
var ErrRefEnded = errors.New("the reference has ended: its call is over, or it was freed or handed over")

// Ref is a value that travels by reference: what an IDL marks with (bifrost.ref).
// The value stands in distributed memory, or will as soon as it is first passed:
//
//	RefOf ──▶ local ──first call──▶ owned ──Free, Take, one-way, result──▶ ended
//	           ▲                      ▲
//	a call's ──┴── by value ──────────┘      a handler's argument ──▶ lent ──▶ ended
//	result
//
// A value that does not stand in memory travels inside the messages that carry the
// reference, and stays local, as long as that is cheaper:
//
//   - up to what fits a packet less 512 bytes, always;
//   - up to 16 MiB, in parts, in calls of policy none which no exactly-once execution
//     makes, and in answers to those which no handler makes. One-ways are no such calls. A
//     value is put into memory once, and stays there as it is passed on, if it has 512 KiB or more and the last
//     answers have said of the method's argument that two who get it do not read all of it; or
//     4 MiB, if one does not. A receiver that takes less (WithMaxMessage) gets it through memory.
//
// In exactly-once executions the choice depends on nothing else than the value, so that a
// re-run makes it again. An IDL may choose: (bifrost.ref = "region") always puts a value into memory,
// (bifrost.ref = "value") keeps one that is not there inside messages, up to what they may
// have (WithMaxMessage). Stats and metrics count both ways, and [MethodStats] says what answers have taught. That is known of arguments,
// not of nodes: a value is written before the node that serves the call is chosen.
//
// An owned Ref may be passed to any number of calls, which copies nothing; its
// owner frees it. While one of these calls is not over, the owner may read the value, but not free
// it; a call that was given up is over when its callee has answered. A handler may read a lent one and pass it on in nested calls
// until it returns. A Ref's methods may be called concurrently, except that the
// order of what an exactly-once handler does must not depend on chance (see [Go]).
type Ref[T any] struct {
	form    refForm[T]
	turn    chan struct{} // holds one token, taken by whoever looks at the rest
	value   T
	known   bool // value is the reference's
	storage refStorage
}

// refStorage is where a reference's value stands.
type refStorage struct {
	state   refState
	pointer dsm.Pointer       // nil if length is 0
	length  int64             // bytes
	inline  []byte            // the bytes, of a value that has come inside a message
	passed  bool              // inside a message
	onwards int               // what those spare whom it was lent on to; see learned
	seen    int64             // bytes of it that were read
	onward  bool              // the region is the execution's own: a lent value's that is passed on
	home    *dsmclient.Client // of the node, for one that belongs to no execution
	bound   *execution        // that it belongs to, or nil
	by      rpcpacket.Ref     // the standing lease, and where it is known; if shared
	borrows *borrows
	leases  []*lease // that were given, and are not over
}

// refState is how far a reference's life has come.
type refState uint8

const (
	refLocal refState = iota // not in memory yet
	refOwned
	refLent
	refWriting // a Writer's
	refShared  // another node's: this one has a standing lease
	refEnded
)

// RefOf makes a reference to a value that is not in distributed memory yet. The
// value must not be changed as long as the reference is used.
func RefOf[T Plain](value T) *Ref[T] { return newRef(plainForm[T](), value) }

// NewRef is [RefOf] for a value of any type that IDL has: a [form.Type] says how its values stand in memory.
func NewRef[T any](t form.Type[T], value T) *Ref[T] { return newRef(typedForm(t), value) }

func newRef[T any](f refForm[T], value T) *Ref[T] {
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
	if err := r.storage.usable(op); err != nil || r.known {
		return r.value, err
	}
	b, err := r.storage.read(ctx, op)
	if err != nil {
		return value, err
	}
	r.storage.seen += int64(len(b))
	if r.value, err = r.form.decode(b); err != nil {
		return value, &Error{Code: BadRequest, Op: op, Err: err}
	}
	r.known = true
	return r.value, nil
}

// Free ends the reference and gives its memory back. A lent one is its caller's to
// free: that is [BadRequest]. While a call of this program that it was passed to is not over,
// also one that was given up, Free fails as [PermissionDenied], and may be called again.
func (r *Ref[T]) Free(ctx context.Context) error {
	const op = "free reference"
	if err := r.take(ctx, op); err != nil {
		return err
	}
	defer r.put()
	return r.free(ctx, op)
}

func (r *Ref[T]) free(ctx context.Context, op string) error {
	if r.storage.state == refLent {
		return fault.New(BadRequest, op, "the reference is lent: only the caller that lent it may free it")
	}
	if err := r.storage.free(ctx, op); err != nil {
		return err
	}
	var zero T
	r.value, r.known, r.storage.inline = zero, false, nil
	return nil
}

// Take is [Ref.Load] and then [Ref.Free]: for a result that is needed once. If only the Free
// fails, the value comes with the error.
func (r *Ref[T]) Take(ctx context.Context) (T, error) {
	const op = "take reference"
	var zero T
	if err := r.take(ctx, op); err != nil {
		return zero, err
	}
	defer r.put()
	value, err := r.load(ctx, op)
	if err != nil || r.storage.state == refLent {
		return value, err
	}
	return value, r.free(ctx, op)
}

// take waits for the reference's turn.
func (r *Ref[T]) take(ctx context.Context, op string) error {
	if r == nil {
		return fault.New(BadRequest, op, "the reference is nil")
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

// refProbe is the length from which on a reference's last byte is read before
// room is made for all of them: a caller that lies about a length costs little.
const refProbe = 16 << 20

// usable refuses a reference that has ended, by itself or with its execution.
func (p *refStorage) usable(op string) error {
	if p.state == refEnded {
		return &Error{Code: BadRequest, Op: op, Err: ErrRefEnded}
	}
	if p.state == refWriting {
		return fault.New(BadRequest, op, "the reference is being written: close its Writer first")
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
func (p *refStorage) memory(ctx context.Context, op string) (*dsmclient.Client, error) {
	b := branchOf(ctx)
	if b != nil && b.e != nil && (p.bound == nil || p.bound == b.e) {
		return b.memory(), nil
	}
	if p.bound != nil || p.home == nil {
		return nil, fault.New(BadRequest, op, "the reference belongs to a handler: pass the context that this handler was given")
	}
	return p.home, nil
}

// read returns the bytes.
func (p *refStorage) read(ctx context.Context, op string) ([]byte, error) {
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
func (p *refStorage) write(ctx context.Context, op string, home *dsmclient.Client, b []byte) error {
	if len(b) > MaxRef {
		return fault.New(BadRequest, op, "a value of %d bytes: a reference has at most %d", len(b), MaxRef)
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
func (p *refStorage) belong(ctx context.Context, home *dsmclient.Client) {
	p.bound, p.home = nil, home
	if b := branchOf(ctx); b != nil && b.e != nil {
		p.bound, p.home = b.e, nil
	}
}

// free gives the memory back.
func (p *refStorage) free(ctx context.Context, op string) error {
	if p.state == refWriting {
		p.state = refOwned // half of a value
	}
	if err := p.usable(op); err != nil {
		return err
	}
	if p.state == refShared && p.borrows != nil {
		p.borrows.drop(rpcpacket.RegionOf(p.pointer), p.by)
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

// Plain is what stands in memory as it is: binary, and lists of fixed-size
// numbers, which stand one after the other in little-endian order.
type Plain interface {
	[]byte | []int8 | []int16 | []int32 | []int64 | []float64
}

// refForm is how values of a type stand in memory.
type refForm[T any] struct {
	encode func(T) ([]byte, error)
	decode func([]byte) (T, error)
	typed  form.Type[T] // of values that are not Plain
	plain  bool
}

// plainForm is the form of bytes and numbers.
func plainForm[T Plain]() refForm[T] {
	return refForm[T]{encode: encodePlain[T], decode: decodePlain[T], plain: true}
}

// typedForm is the form of all other values (package form).
func typedForm[T any](t form.Type[T]) refForm[T] {
	return refForm[T]{encode: t.Marshal, decode: t.Unmarshal, typed: t}
}

// number is what lists of numbers are made of.
type number interface {
	int8 | int16 | int32 | int64 | float64
}

// little says that numbers stand in this machine's memory as they stand in the rack's:
// then a list of them and its bytes are the same memory, and nothing is copied.
var little = binary.NativeEndian.Uint16([]byte{1, 0}) == 1

func encodePlain[T Plain](v T) ([]byte, error) {
	switch v := any(v).(type) {
	case []byte:
		return v, nil
	case []int8:
		return encodeNumbers(v)
	case []int16:
		return encodeNumbers(v)
	case []int32:
		return encodeNumbers(v)
	case []int64:
		return encodeNumbers(v)
	case []float64:
		return encodeNumbers(v)
	}
	return nil, fmt.Errorf("%T is neither bytes nor a list of numbers", v)
}

func decodePlain[T Plain](b []byte) (v T, err error) {
	switch p := any(&v).(type) {
	case *[]byte:
		*p = b
	case *[]int8:
		*p, err = decodeNumbers[int8](b)
	case *[]int16:
		*p, err = decodeNumbers[int16](b)
	case *[]int32:
		*p, err = decodeNumbers[int32](b)
	case *[]int64:
		*p, err = decodeNumbers[int64](b)
	case *[]float64:
		*p, err = decodeNumbers[float64](b)
	}
	return v, err
}

// encodeNumbers returns the bytes of v, which may be v's own memory.
func encodeNumbers[E number](v []E) ([]byte, error) {
	if !little {
		return binary.Append(nil, binary.LittleEndian, v)
	}
	var e E
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(v))), len(v)*int(unsafe.Sizeof(e))), nil
}

// decodeNumbers returns the numbers in b, which may be b's own memory.
func decodeNumbers[E number](b []byte) ([]E, error) {
	var e E
	size := int(unsafe.Sizeof(e))
	if len(b)%size != 0 {
		return nil, fmt.Errorf("%d bytes are not a whole number of %T", len(b), e)
	}
	at := unsafe.Pointer(unsafe.SliceData(b))
	if little && len(b) > 0 && uintptr(at)%unsafe.Alignof(e) == 0 {
		return unsafe.Slice((*E)(at), len(b)/size), nil
	}
	v := make([]E, len(b)/size)
	_, err := binary.Decode(b, binary.LittleEndian, v)
	return v, err
}
