package form

import (
	"fmt"

	"github.com/apache/thrift/lib/go/thrift"
)

// Writer writes a list, a set or a map as its elements come: it holds one element at a
// time, and 4 bytes of the index for each, or 16 of a map. Its methods are not for
// concurrent use.
type Writer struct {
	e      encoder
	write  func(b []byte, last bool) error
	failed error
}

// flushSize is how many bytes a Writer collects before it passes them on.
const flushSize = 256 << 10

// NewWriter begins content of a type, a list's, set's or map's, and passes it on to write,
// piece by piece, the last one with last set. write must not keep a piece.
func NewWriter[T any](t Type[T], write func(b []byte, last bool) error) (*Writer, error) {
	w := &Writer{e: encoder{b: header(t.kind), flushed: -headerSize}, write: write}
	f := frame{kind: t.kind, announced: -1}
	switch t.kind {
	case thrift.LIST, thrift.SET:
		f.kind, f.elem = thrift.LIST, t.parts[0].(kinded).kindOf()
	case thrift.MAP:
		f.key, f.elem = t.parts[0].(kinded).kindOf(), t.parts[1].(kinded).kindOf()
	default:
		return nil, fmt.Errorf("a %T is not written piece by piece: lists, sets and maps are", t)
	}
	return w, w.e.begin(f)
}

// kinded is a Type.
type kinded interface{ kindOf() thrift.TType }

func (t Type[T]) kindOf() thrift.TType { return t.kind }

// Append writes an element of a list or set.
func Append[E any](w *Writer, elem Type[E], v E) error {
	if err := w.begins(thrift.LIST); err != nil {
		return err
	}
	return w.done(elem.encode(&w.e, v))
}

// Put writes an entry of a map. A key that comes twice is in the map twice: which of them
// is found is not said.
func Put[K comparable, V any](w *Writer, key Type[K], value Type[V], k K, v V) error {
	if err := w.begins(thrift.MAP); err != nil {
		return err
	}
	err := key.encode(&w.e, k)
	if err == nil {
		err = value.encode(&w.e, v)
	}
	return w.done(err)
}

// begins refuses an element that the writer cannot take.
func (w *Writer) begins(kind thrift.TType) error {
	switch {
	case w.failed != nil:
		return w.failed
	case len(w.e.open) == 0:
		return fmt.Errorf("the writer is closed")
	case w.e.open[0].kind != kind:
		return fmt.Errorf("the writer is of another container")
	}
	return nil
}

func (w *Writer) done(err error) error {
	if err == nil && len(w.e.b) >= flushSize {
		err = w.flush(false)
	}
	w.failed = err
	return err
}

func (w *Writer) flush(last bool) error {
	err := w.write(w.e.b, last)
	w.e.flushed += int64(len(w.e.b))
	w.e.b = w.e.b[:0]
	return err
}

// Close writes the index.
func (w *Writer) Close() error {
	if w.failed != nil {
		return w.failed
	}
	if len(w.e.open) == 0 {
		return nil
	}
	if w.failed = w.e.end(); w.failed == nil {
		w.failed = w.flush(true)
	}
	return w.failed
}
