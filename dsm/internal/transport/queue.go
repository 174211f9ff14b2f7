package transport

// queue is the transfers of a peer that have something left to request.
type queue struct{ first, last *Transfer }

func (q *queue) push(t *Transfer) {
	t.queued, t.prev, t.next = true, q.last, nil
	if q.last != nil {
		q.last.next = t
	} else {
		q.first = t
	}
	q.last = t
}

// remove takes t out, if it is in.
func (q *queue) remove(t *Transfer) {
	if !t.queued {
		return
	}
	if t.prev != nil {
		t.prev.next = t.next
	} else {
		q.first = t.next
	}
	if t.next != nil {
		t.next.prev = t.prev
	} else {
		q.last = t.prev
	}
	t.queued, t.prev, t.next = false, nil, nil
}
