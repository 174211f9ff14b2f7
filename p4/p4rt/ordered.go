package p4rt

// ordered is a map that is walked in the same order whenever the same things
// were done to it, so that a run on virtual time can be replayed.
type ordered[K comparable, V any] struct {
	index map[K]int
	keys  []K
	vals  []V
}

func newOrdered[K comparable, V any]() *ordered[K, V] {
	return &ordered[K, V]{index: map[K]int{}}
}

func (o *ordered[K, V]) get(k K) (v V, ok bool) {
	i, ok := o.index[k]
	if ok {
		v = o.vals[i]
	}
	return v, ok
}

func (o *ordered[K, V]) put(k K, v V) {
	if i, ok := o.index[k]; ok {
		o.vals[i] = v
		return
	}
	o.index[k] = len(o.keys)
	o.keys, o.vals = append(o.keys, k), append(o.vals, v)
}

// remove moves the last element into the gap.
func (o *ordered[K, V]) remove(k K) {
	i, ok := o.index[k]
	if !ok {
		return
	}
	last := len(o.keys) - 1
	o.keys[i], o.vals[i] = o.keys[last], o.vals[last]
	o.index[o.keys[i]] = i
	var zero V
	o.vals[last] = zero
	o.keys, o.vals = o.keys[:last], o.vals[:last]
	delete(o.index, k)
}

func (o *ordered[K, V]) len() int { return len(o.keys) }

// all are the values; the slice must not be kept beyond the next change.
func (o *ordered[K, V]) all() []V { return o.vals }
