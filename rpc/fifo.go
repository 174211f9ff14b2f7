package rpc

// fifo is a queue; the zero fifo is empty.
type fifo[T any] struct {
	items []T
	first int
}

func (q *fifo[T]) len() int { return len(q.items) - q.first }

func (q *fifo[T]) push(v T) {
	if len(q.items) == cap(q.items) && q.first > len(q.items)/2 {
		n := copy(q.items, q.items[q.first:])
		clear(q.items[n:])
		q.items, q.first = q.items[:n], 0
	}
	q.items = append(q.items, v)
}

// pop takes the oldest value out; the queue must not be empty.
func (q *fifo[T]) pop() T {
	v := q.items[q.first]
	clear(q.items[q.first : q.first+1])
	q.first++
	if q.first == len(q.items) {
		q.items, q.first = q.items[:0], 0
	}
	return v
}
