package rpc

import (
	"context"

	"github.com/bifrost-rack/bifrost/dsm"
	"github.com/bifrost-rack/bifrost/dsm/dsmclient"
	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/rpc/form"
)

// Elements opens a list or set by reference, to read its elements one by one: Len, At, Slice
// and All of a [form.Array]. What is read depends on what is asked for, not on how long the list is.
func Elements[E any](ctx context.Context, r *Ref[[]E]) (form.Array[E], error) {
	p, err := r.Place(ctx)
	if err != nil {
		return form.Array[E]{}, err
	}
	if !r.form.plain {
		return form.ElementsOf(ctx, p, r.form.typed)
	}
	var elem any
	switch any(*new(E)).(type) {
	case int8:
		elem = form.I8[int8]()
	case int16:
		elem = form.I16[int16]()
	case int32:
		elem = form.I32[int32]()
	case int64:
		elem = form.I64[int64]()
	case float64:
		elem = form.Double[float64]()
	default:
		return form.Array[E]{}, fault.New(BadRequest, "read part", "a binary has no elements: read its Place")
	}
	return form.Elements(ctx, p, elem.(form.Type[E]))
}

// Entries opens a map by reference, to look single keys up: Get and All of a [form.Dict].
func Entries[K comparable, V any](ctx context.Context, r *Ref[map[K]V]) (form.Dict[K, V], error) {
	p, err := r.Place(ctx)
	if err != nil {
		return form.Dict[K, V]{}, err
	}
	return form.EntriesOf(ctx, p, r.form.typed)
}

// Place is where the value stands, to read parts of it: [Elements] of a list,
// [Entries] of a map, the function FieldsOf that is generated for a struct, or [form.FieldsOf], and [form.Place.Read] of a binary. What
// they read depends on what is asked for, not on how long the value is. They can be used
// as long as the reference, with the context of its handler.
func (r *Ref[T]) Place(ctx context.Context) (form.Place, error) {
	const op = "read part"
	length, content, err := r.content(ctx, op)
	if err != nil {
		return form.Place{}, err
	}
	read := func(ctx context.Context, offset int64, b []byte) error {
		return r.readPart(ctx, op, content, offset, b)
	}
	if r.form.plain {
		return form.Raw(length, read), nil
	}
	return form.Open(ctx, r.form.typed, length, read)
}

// content returns the length of the value, and its bytes unless they stand in memory. It
// fails if the reference has ended.
func (r *Ref[T]) content(ctx context.Context, op string) (int64, []byte, error) {
	if err := r.take(ctx, op); err != nil {
		return 0, nil, err
	}
	defer r.put()
	if err := r.storage.usable(op); err != nil || r.storage.state != refLocal {
		return r.storage.length, r.storage.inline, err
	}
	b, err := r.bytes(op)
	return int64(len(b)), b, err
}

// readPart reads a part of the content or, if that is nil, of what stands in memory.
func (r *Ref[T]) readPart(ctx context.Context, op string, content []byte, offset int64, b []byte) error {
	if err := r.take(ctx, op); err != nil {
		return err
	}
	r.storage.seen += int64(len(b))
	now := r.storage
	r.put()
	if err := now.usable(op); err != nil {
		return err
	}
	if content != nil {
		copy(b, content[offset:])
		return nil
	}
	memory, err := now.memory(ctx, op)
	if err == nil {
		_, err = memory.Read(ctx, now.pointer.Add(offset), b)
	}
	return err
}

// Writer writes the value of a new reference, a list, set or map, as its elements come
// ([form.Append], [form.Put]): one that is longer than what a program wants to hold. It
// keeps a quarter of a megabyte and 4 bytes for each element, 16 for an entry of a map. Its
// Close makes the reference an owned one; until then only Free can be called, which
// gives the memory back. In a handler the reference belongs to the handler, and ctx is the
// handler's.
func (r *Ref[T]) Writer(ctx context.Context, node *Node) (*form.Writer, error) {
	const op = "write reference"
	if err := r.take(ctx, op); err != nil {
		return nil, err
	}
	defer r.put()
	if err := r.storage.usable(op); err != nil {
		return nil, err
	}
	if r.form.plain || r.storage.state != refLocal || r.storage.inline != nil {
		return nil, fault.New(BadRequest, op, "only a new reference to a list, set or map that is not of numbers alone is written as it comes")
	}
	w := &refWriter{storage: &r.storage, turn: r.turn}
	writer, err := form.NewWriter(r.form.typed, func(b []byte, last bool) error { return w.write(ctx, b, last) })
	if err != nil {
		return nil, &Error{Code: BadRequest, Op: op, Err: err}
	}
	var none T
	r.value, r.known = none, false
	r.storage.belong(ctx, node.memory)
	r.storage.state = refWriting
	return writer, nil
}

// refWriter puts the pieces of a value into memory.
type refWriter struct {
	turn    chan struct{} // guards storage
	storage *refStorage
	room    int64 // bytes of the region
	written int64
}

// write puts a piece into memory. When the region is full, one of twice its size takes its
// place.
func (w *refWriter) write(ctx context.Context, b []byte, last bool) error {
	const op = "write reference"
	<-w.turn
	defer func() { w.turn <- struct{}{} }()
	p := w.storage
	if p.state != refWriting {
		return &Error{Code: BadRequest, Op: op, Err: ErrRefEnded}
	}
	memory, err := p.memory(ctx, op)
	if err != nil {
		return err
	}
	if need := w.written + int64(len(b)); need > w.room {
		if err := w.grow(ctx, memory, grown(w.room, need)); err != nil {
			return err
		}
	}
	if _, err := memory.Write(ctx, p.pointer.Add(w.written), b); err != nil {
		return err
	}
	w.written += int64(len(b))
	if last {
		p.state, p.length = refOwned, w.written
	}
	return nil
}

// grown is how many bytes the region has that takes the place of one of room bytes, when so many are needed.
func grown(room, need int64) int64 { return max(need, min(2*room, MaxRef)) }

func (w *refWriter) grow(ctx context.Context, memory *dsmclient.Client, room int64) error {
	p := w.storage
	larger, err := memory.Alloc(ctx, uint64(room))
	if err != nil {
		return err
	}
	if err := w.move(ctx, memory, larger); err != nil {
		_ = memory.Free(ctx, larger) // the first error tells more
		return err
	}
	was := p.pointer
	p.pointer, p.length, w.room = larger, room, room // Free finds a length
	if was.IsNil() {
		return nil
	}
	return memory.Free(ctx, was)
}

// move copies what is written, a megabyte at a time.
func (w *refWriter) move(ctx context.Context, memory *dsmclient.Client, to dsm.Pointer) error {
	b := make([]byte, min(w.written, 1<<20))
	for at := int64(0); at < w.written; at += int64(len(b)) {
		b = b[:min(int64(len(b)), w.written-at)]
		if _, err := memory.Read(ctx, w.storage.pointer.Add(at), b); err != nil {
			return err
		}
		if _, err := memory.Write(ctx, to.Add(at), b); err != nil {
			return err
		}
	}
	return nil
}
