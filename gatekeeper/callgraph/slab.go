package callgraph

// slab is an array that grows without moving what it holds. Indices begin at 1;
// 0 is nothing.
type slab[T any] struct {
	chunks [][]cell[T]
	top    int32 // the highest index ever used
	free   int32 // the first of the free cells
	len    int
}

type cell[T any] struct {
	value T
	next  int32 // of the free cells
}

// chunkSize is how many cells are allocated at a time: some ten KiB of calls.
const chunkSize = 1 << 8

// at returns the value at an index, which stays where it is.
func (s *slab[T]) at(i int32) *T { return &s.cell(i).value }

func (s *slab[T]) cell(i int32) *cell[T] { return &s.chunks[i/chunkSize][i%chunkSize] }

// add returns the index of a zero value.
func (s *slab[T]) add() int32 {
	s.len++
	if i := s.free; i != 0 {
		c := s.cell(i)
		s.free = c.next
		*c = cell[T]{}
		return i
	}
	s.top++
	if int(s.top/chunkSize) >= len(s.chunks) {
		s.chunks = append(s.chunks, make([]cell[T], chunkSize))
	}
	return s.top
}

func (s *slab[T]) remove(i int32) {
	s.len--
	c := s.cell(i)
	*c = cell[T]{next: s.free}
	s.free = i
}
