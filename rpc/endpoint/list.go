package endpoint

// links make a value a member of at most one list, without an allocation.
type links[T any] struct {
	value      T
	owner      *list[T]
	prev, next *links[T]
}

// list is a queue from whose middle members can be taken. The zero list is
// empty.
type list[T any] struct {
	head links[T]
	len  int
}

// push appends a member that is in no list.
func (l *list[T]) push(n *links[T]) {
	if l.head.next == nil {
		l.head.prev, l.head.next = &l.head, &l.head
	}
	n.owner, n.prev, n.next = l, l.head.prev, &l.head
	n.prev.next, l.head.prev = n, n
	l.len++
}

// remove takes a member out; one that is not in l stays where it is.
func (l *list[T]) remove(n *links[T]) {
	if n.owner != l {
		return
	}
	n.prev.next, n.next.prev = n.next, n.prev
	n.owner, n.prev, n.next = nil, nil, nil
	l.len--
}

// first returns the oldest member's value; the list must not be empty.
func (l *list[T]) first() T { return l.head.next.value }
