package interp

import "slices"

// rangeList is for tables with ranges: entries in order of precedence.
type rangeList struct{ entries []*entry }

func (l *rangeList) find(key []uint64) *entry {
	for _, e := range l.entries {
		if e.matches(key) {
			return e
		}
	}
	return nil
}

func (l *rangeList) same(w *want, rank int64) *entry {
	for _, e := range l.entries {
		if e.rank == rank && slices.Equal(e.want.mask, w.mask) &&
			slices.Equal(e.want.low, w.low) && slices.Equal(e.want.high, w.high) {
			return e
		}
	}
	return nil
}

func (l *rangeList) insert(e *entry) { l.entries = insertSorted(l.entries, e) }

func (l *rangeList) remove(e *entry) {
	l.entries = slices.DeleteFunc(l.entries, func(x *entry) bool { return x == e })
}
