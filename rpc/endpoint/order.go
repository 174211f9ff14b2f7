package endpoint

// Order puts the calls of a stateful service into the order that the Gatekeeper
// has numbered them in, whatever order they arrive in. Calls without a number
// come as they arrive.
type Order[T any] struct {
	next  uint64
	early map[uint64]T
	limit int
}

// NewOrder returns an Order whose first number is next and which keeps at most
// limit calls that have come too early.
func NewOrder[T any](next uint64, limit int) *Order[T] {
	return &Order[T]{next: next, early: make(map[uint64]T), limit: limit}
}

// Add takes a call and appends to run those whose turn it is now. It reports
// false if it cannot take the call: its number has had its turn, or is taken, or
// too many are early.
func (o *Order[T]) Add(number uint64, call T, run []T) ([]T, bool) {
	switch {
	case number == 0:
		return append(run, call), true
	case number < o.next:
		return run, false
	case number > o.next:
		if _, taken := o.early[number]; taken || len(o.early) >= o.limit {
			return run, false
		}
		o.early[number] = call
		return run, true
	}
	run = append(run, call)
	for o.next++; ; o.next++ {
		call, ok := o.early[o.next]
		if !ok {
			return run, true
		}
		delete(o.early, o.next)
		run = append(run, call)
	}
}
