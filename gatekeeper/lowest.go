package gatekeeper

import (
	"container/heap"
	"slices"
)

// lowest keeps the lowest values of all that are added, limit at most, in a heap
// whose root is the highest of them.
type lowest[T any] struct {
	limit   int
	compare func(a, b T) int
	dropped bool // there were more
	kept    []T
}

func (l *lowest[T]) add(v T) {
	switch {
	case len(l.kept) < l.limit:
		heap.Push(l, v)
	case l.limit > 0 && l.compare(v, l.kept[0]) < 0:
		l.kept[0], l.dropped = v, true
		heap.Fix(l, 0)
	default:
		l.dropped = true
	}
}

// sorted returns the values in order; the heap is used up.
func (l *lowest[T]) sorted() []T {
	slices.SortFunc(l.kept, l.compare)
	return l.kept
}

// Len, Less, Swap, Push and Pop are heap.Interface's.
func (l *lowest[T]) Len() int           { return len(l.kept) }
func (l *lowest[T]) Less(i, j int) bool { return l.compare(l.kept[i], l.kept[j]) > 0 }
func (l *lowest[T]) Swap(i, j int)      { l.kept[i], l.kept[j] = l.kept[j], l.kept[i] }
func (l *lowest[T]) Push(v any)         { l.kept = append(l.kept, v.(T)) }

// Pop takes the last value.
func (l *lowest[T]) Pop() any {
	last := len(l.kept) - 1
	v := l.kept[last]
	l.kept = l.kept[:last]
	return v
}
