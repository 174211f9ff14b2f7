package form

import (
	"context"
	"fmt"
	"hash/crc32"
	"iter"
	"sort"
	"sync"

	"github.com/apache/thrift/lib/go/thrift"
)

// ReadFunc reads bytes of content, from an offset on, all that b holds.
type ReadFunc func(ctx context.Context, offset int64, b []byte) error

const (
	pageSize = 4 << 10 // what a small read brings along
	maxPages = 16      // that are kept; the seventeenth drops all
	runSize  = 1 << 20 // how much of a list is read at once when all of it is wanted
)

// source is content that is read in parts. Small parts come as pages, which are kept: an
// index is read once, and not a place at a time.
type source struct {
	read   ReadFunc
	length int64
	mu     sync.Mutex // guards pages
	pages  map[int64][]byte
}

// bytes returns a part; the caller may keep it, and does not change it.
func (s *source) bytes(ctx context.Context, at, n int64) ([]byte, error) {
	if at < 0 || n < 0 || at+n > s.length {
		return nil, malformed("%d bytes from %d on of %d", n, at, s.length)
	}
	first := at / pageSize
	if n == 0 || n > pageSize || (at+n-1)/pageSize != first {
		b := make([]byte, n)
		if n == 0 {
			return b, nil
		}
		return b, s.read(ctx, at, b)
	}
	s.mu.Lock()
	page := s.pages[first]
	s.mu.Unlock()
	if page == nil {
		page = make([]byte, min(pageSize, s.length-first*pageSize))
		if err := s.read(ctx, first*pageSize, page); err != nil {
			return nil, err
		}
		s.mu.Lock()
		if len(s.pages) >= maxPages || s.pages == nil {
			s.pages = map[int64][]byte{}
		}
		s.pages[first] = page
		s.mu.Unlock()
	}
	at -= first * pageSize
	return page[at : at+n : at+n], nil
}

// Place is where a value stands within content: nothing of it is read before it is asked
// for. A Place and what is made of it may be used concurrently.
type Place struct {
	src    *source
	at     int64
	length int64
	kind   thrift.TType
	depth  int
	raw    bool // bytes or numbers alone, without header and footer
}

// Open returns the place of content's value, whose type must be that of t.
func Open[T any](ctx context.Context, t Type[T], length int64, read ReadFunc) (Place, error) {
	s := &source{read: read, length: length}
	b, err := s.bytes(ctx, 0, min(headerSize, length))
	if err != nil {
		return Place{}, err
	}
	if err := checkHeader(b, t.kind); err != nil {
		return Place{}, err
	}
	return Place{src: s, at: headerSize, length: length - headerSize, kind: t.kind}, nil
}

// Raw is the place of content that is bytes or numbers alone, without header and footer.
func Raw(length int64, read ReadFunc) Place {
	return Place{src: &source{read: read, length: length}, length: length, raw: true}
}

// Read reads bytes of a place, from an offset on, all that b holds.
func (p Place) Read(ctx context.Context, offset int64, b []byte) error {
	if offset < 0 || int64(len(b)) > p.length-offset {
		return fmt.Errorf("%w: %d bytes from %d on of %d", ErrRange, len(b), offset, p.length)
	}
	if len(b) == 0 {
		return nil
	}
	return p.src.read(ctx, p.at+offset, b)
}

// Size is how many bytes the value has.
func (p Place) Size() int64 { return p.length }

// Load reads the value of a place, all of it.
func Load[T any](ctx context.Context, p Place, t Type[T]) (v T, err error) {
	if err := fits(t.kind, p.kind, 1); err != nil {
		return v, err
	}
	b, err := p.src.bytes(ctx, p.at, p.length)
	if err != nil {
		return v, err
	}
	return t.read(b)
}

// shape reads a container's footer.
func (p Place) shape(ctx context.Context, kinds ...thrift.TType) (shape, error) {
	for _, k := range kinds {
		if k != p.kind {
			continue
		}
		if p.depth >= MaxDepth {
			return shape{}, fmt.Errorf("%w: more than %d", ErrNested, MaxDepth)
		}
		footer, err := p.src.bytes(ctx, p.at+max(0, p.length-footerSize), min(footerSize, p.length))
		if err != nil {
			return shape{}, err
		}
		return shapeOf(p.kind, footer, p.length)
	}
	return shape{}, malformed("a value of type %d instead of %d", p.kind, kinds[0])
}

// within is the place of a part.
func (p Place) within(begin, end uint32, kind thrift.TType) Place {
	return Place{src: p.src, at: p.at + int64(begin), length: int64(end) - int64(begin), kind: kind, depth: p.depth + 1}
}

// Array is a list or a set of which elements are read one by one.
type Array[E any] struct {
	place    Place
	shape    shape
	elem     Type[E]
	from, to int // of the elements that are in it
}

// ElementsOf opens the value of a type, a list or set. It reads how many elements there are.
func ElementsOf[E any](ctx context.Context, p Place, t Type[[]E]) (Array[E], error) {
	elem, ok := t.parts[0].(Type[E])
	if !ok {
		return Array[E]{}, fmt.Errorf("%T has no elements that are read in place", []E(nil))
	}
	return Elements(ctx, p, elem)
}

// EntriesOf opens the value of a type, a map. It reads how many entries there are.
func EntriesOf[K comparable, V any](ctx context.Context, p Place, t Type[map[K]V]) (Dict[K, V], error) {
	key, ok := t.parts[0].(Type[K])
	value, also := t.parts[1].(Type[V])
	if !ok || !also {
		return Dict[K, V]{}, fmt.Errorf("%T has no entries that are read in place", map[K]V(nil))
	}
	return Entries(ctx, p, key, value)
}

// Elements opens a list or set. It reads how many elements there are.
func Elements[E any](ctx context.Context, p Place, elem Type[E]) (Array[E], error) {
	if p.raw {
		return numbers(p, elem)
	}
	s, err := p.shape(ctx, thrift.LIST, thrift.SET)
	if err == nil {
		err = fits(elem.kind, s.elem, s.n)
	}
	return Array[E]{p, s, elem, 0, s.n}, err
}

// numbers opens a list of numbers alone.
func numbers[E any](p Place, elem Type[E]) (Array[E], error) {
	size, _ := sizeOf(elem.kind)
	if size == 0 || p.length%int64(size) != 0 {
		return Array[E]{}, malformed("%d bytes are not a whole number of elements of %d", p.length, size)
	}
	n := int(p.length / int64(size))
	s := shape{kind: thrift.LIST, n: n, elem: elem.kind, size: size, body: p.length}
	return Array[E]{p, s, elem, 0, n}, nil
}

// Len is how many elements there are.
func (l Array[E]) Len() int { return l.to - l.from }

// Slice is the list of the elements from i on and before j. It reads nothing.
func (l Array[E]) Slice(i, j int) (Array[E], error) {
	if i < 0 || j < i || j > l.Len() {
		return Array[E]{}, fmt.Errorf("%w: elements %d to %d of %d", ErrRange, i, j, l.Len())
	}
	l.from, l.to = l.from+i, l.from+j
	return l, nil
}

// At reads element i, counted from 0.
func (l Array[E]) At(ctx context.Context, i int) (e E, err error) {
	p, err := l.Place(ctx, i)
	if err != nil {
		return e, err
	}
	return Load(ctx, p, l.elem)
}

// Place is where element i stands. It reads at most a page of the index.
func (l Array[E]) Place(ctx context.Context, i int) (Place, error) {
	if i < 0 || i >= l.Len() {
		return Place{}, fmt.Errorf("%w: element %d of %d", ErrRange, i, l.Len())
	}
	return l.span(ctx, l.from+i, l.from+i+1)
}

// span is the place of the elements from i on and before j.
func (l Array[E]) span(ctx context.Context, i, j int) (Place, error) {
	if size := uint32(l.shape.size); size > 0 {
		return l.place.within(uint32(i)*size, uint32(j)*size, l.shape.elem), nil
	}
	var begin, end uint32
	for _, x := range []struct {
		i  int
		to *uint32
	}{{i, &begin}, {j, &end}} {
		if x.i == 0 {
			continue
		}
		b, err := l.place.src.bytes(ctx, l.place.at+l.shape.index(x.i-1), 4)
		if err != nil {
			return Place{}, err
		}
		*x.to = order.Uint32(b)
	}
	return l.place.within(begin, end, l.shape.elem), l.shape.span(begin, end)
}

// Load reads all elements.
func (l Array[E]) Load(ctx context.Context) ([]E, error) {
	list := make([]E, 0, min(l.Len(), 1024))
	for e, err := range l.All(ctx) {
		if err != nil {
			return nil, err
		}
		list = append(list, e)
	}
	return list, nil
}

// All ranges over the elements. It reads about a megabyte of them at once; an error ends
// it.
func (l Array[E]) All(ctx context.Context) iter.Seq2[E, error] {
	return func(yield func(E, error) bool) {
		for i := l.from; i < l.to; {
			j, list, err := l.run(ctx, i)
			for _, e := range list {
				if !yield(e, nil) {
					return
				}
			}
			if err != nil {
				var none E
				yield(none, err)
				return
			}
			i = j
		}
	}
}

// run reads elements from i on, and returns the one behind the last.
func (l Array[E]) run(ctx context.Context, i int) (j int, list []E, err error) {
	j = min(l.to, i+runSize/4)
	var ends []byte
	if size := l.shape.size; size > 0 {
		j = min(j, i+runSize/size)
	} else if ends, err = l.place.src.bytes(ctx, l.place.at+l.shape.index(i), int64(j-i)*4); err != nil {
		return i, nil, err
	}
	whole, err := l.span(ctx, i, i)
	if err != nil {
		return i, nil, err
	}
	start := uint32(whole.at - l.place.at)
	if ends != nil { // as many as are a megabyte, but one at least
		n := sort.Search(j-i, func(k int) bool { return int64(order.Uint32(ends[4*k:]))-int64(start) > runSize })
		j = i + max(1, n)
	}
	if whole, err = l.span(ctx, i, j); err != nil {
		return i, nil, err
	}
	b, err := l.place.src.bytes(ctx, whole.at, whole.length)
	if err != nil {
		return i, nil, err
	}
	begin := start
	for k := i; k < j; k++ {
		end := begin + uint32(l.shape.size)
		if ends != nil {
			end = order.Uint32(ends[4*(k-i):])
		}
		if begin > end || int64(end-start) > int64(len(b)) {
			return k, list, l.shape.span(end, begin)
		}
		e, err := l.elem.read(b[begin-start : end-start])
		if err != nil {
			return k, list, err
		}
		list, begin = append(list, e), end
	}
	return j, list, nil
}

// Dict is a map of which entries are read one by one.
type Dict[K comparable, V any] struct {
	place Place
	shape shape
	key   Type[K]
	value Type[V]
}

// Entries opens a map. It reads how many entries there are.
func Entries[K comparable, V any](ctx context.Context, p Place, key Type[K], value Type[V]) (Dict[K, V], error) {
	s, err := p.shape(ctx, thrift.MAP)
	if err == nil {
		err = fits(key.kind, s.key, s.n)
	}
	if err == nil {
		err = fits(value.kind, s.elem, s.n)
	}
	return Dict[K, V]{p, s, key, value}, err
}

// Len is how many entries there are.
func (m Dict[K, V]) Len() int { return m.shape.n }

// Get reads the value of a key; false if there is none.
func (m Dict[K, V]) Get(ctx context.Context, k K) (v V, ok bool, err error) {
	p, ok, err := m.Place(ctx, k)
	if err != nil || !ok {
		return v, false, err
	}
	v, err = Load(ctx, p, m.value)
	return v, err == nil, err
}

// Place is where the value of a key stands; false if there is none. It looks for the key's
// checksum in the index, which is in the order of them.
func (m Dict[K, V]) Place(ctx context.Context, k K) (Place, bool, error) {
	e := &encoder{}
	if err := m.key.encode(e, k); err != nil {
		return Place{}, false, err
	}
	sum := crc32.ChecksumIEEE(e.b)
	var failed error
	// Checksums are spread evenly: the search begins with the page where this one should be.
	guess := int(uint64(sum) * uint64(m.shape.n) >> 32)
	low, high := max(0, guess-pageSize/entrySize/2), min(m.shape.n, guess+pageSize/entrySize/2)
	before := func(i int) bool { // entry i has a smaller checksum
		x, err := m.entry(ctx, i)
		if err != nil && failed == nil {
			failed = err
		}
		return err == nil && x.sum < sum
	}
	if low > 0 && !before(low-1) {
		low, high = 0, low-1
	} else if high < m.shape.n && before(high) {
		low, high = high+1, m.shape.n
	}
	for i := low + sort.Search(high-low, func(i int) bool { return !before(low + i) }); i < m.shape.n && failed == nil; i++ {
		x, err := m.entry(ctx, i)
		if err != nil || x.sum != sum {
			return Place{}, false, err
		}
		if int(x.mid-x.begin) != len(e.b) {
			continue
		}
		b, err := m.place.src.bytes(ctx, m.place.at+int64(x.begin), int64(len(e.b)))
		if err != nil {
			return Place{}, false, err
		}
		if string(b) == string(e.b) {
			return m.place.within(x.mid, x.end, m.value.kind), true, nil
		}
	}
	return Place{}, false, failed
}

func (m Dict[K, V]) entry(ctx context.Context, i int) (entry, error) {
	b, err := m.place.src.bytes(ctx, m.place.at+m.shape.index(i), entrySize)
	if err != nil {
		return entry{}, err
	}
	return m.shape.entry(b)
}

// Entry is one of a map.
type Entry[K comparable, V any] struct {
	Key   K
	Value V
}

// All ranges over the entries, in no order that means anything. An error ends it.
func (m Dict[K, V]) All(ctx context.Context) iter.Seq2[Entry[K, V], error] {
	return func(yield func(Entry[K, V], error) bool) {
		for i := range m.Len() {
			var out Entry[K, V]
			x, err := m.entry(ctx, i)
			if err == nil {
				out.Key, err = Load(ctx, m.place.within(x.begin, x.mid, m.key.kind), m.key)
			}
			if err == nil {
				out.Value, err = Load(ctx, m.place.within(x.mid, x.end, m.value.kind), m.value)
			}
			if !yield(out, err) || err != nil {
				return
			}
		}
	}
}

// Fields is a struct or union of which fields are read one by one.
type Fields struct {
	place Place
	index map[int16]Place
}

// FieldsOf opens a struct. It reads which fields it has.
func FieldsOf(ctx context.Context, p Place) (Fields, error) {
	s, err := p.shape(ctx, thrift.STRUCT)
	if err != nil {
		return Fields{}, err
	}
	b, err := p.src.bytes(ctx, p.at+s.index(0), int64(s.n)*fieldSize)
	if err != nil {
		return Fields{}, err
	}
	f := Fields{p, map[int16]Place{}}
	var begin uint32
	for ; len(b) > 0; b = b[fieldSize:] {
		end := order.Uint32(b)
		if err := s.span(begin, end); err != nil {
			return Fields{}, err
		}
		f.index[int16(order.Uint16(b[4:]))] = p.within(begin, end, thrift.TType(b[6]))
		begin = end
	}
	return f, nil
}

// Place is where the field of a number stands; false if it is not set.
func (f Fields) Place(id int16) (Place, bool) {
	p, ok := f.index[id]
	return p, ok
}

// Field reads the field of a number; false if it is not set, or of another type, which
// Thrift skips, too.
func Field[T any](ctx context.Context, f Fields, id int16, t Type[T]) (v T, ok bool, err error) {
	p, ok := f.Place(id)
	if !ok || p.kind != t.kind {
		return v, false, nil
	}
	v, err = Load(ctx, p, t)
	return v, err == nil, err
}
