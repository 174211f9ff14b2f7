package wal

import (
	"bytes"
	"fmt"
	"iter"
)

// beginRead keeps Close away from the store until readers.Done is called.
func (l *Log) beginRead() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.closed:
		return ErrClosed
	case l.failure != nil:
		return l.failure
	}
	l.readers.Add(1)
	return nil
}

// Get returns the record of a key as it was last submitted, logged or not; false
// if there is none.
func (l *Log) Get(kind Kind, id ID) (r Record, found bool, err error) {
	if err := l.beginRead(); err != nil {
		return Record{}, false, err
	}
	defer l.readers.Done()
	for {
		at, data := l.lookup(kind, id)
		if at.sequence == 0 {
			return Record{}, false, nil
		}
		if data == nil {
			if data, err = l.store.get(at.sequence); err != nil {
				if now, _ := l.lookup(kind, id); now != at {
					continue // it was replaced between the two looks
				}
				return Record{}, false, fmt.Errorf("record %d: %w", at.sequence, err)
			}
		}
		r, err = parse(data)
		return r, err == nil, err
	}
}

// lookup tells where a record is, and its bytes while they wait to be logged.
func (l *Log) lookup(kind Kind, id ID) (location, []byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	at := l.index[Key{kind, id}]
	return at, l.pending[at.sequence]
}

// Records reads all logged records in their order, as they were when it began.
// It ends after the first error. The records are the caller's to keep.
func (l *Log) Records() iter.Seq2[Record, error] {
	return func(yield func(Record, error) bool) {
		if err := l.beginRead(); err != nil {
			yield(Record{}, err)
			return
		}
		defer l.readers.Done()
		for p, err := range l.store.scan() {
			var r Record
			if err == nil {
				r, err = parse(bytes.Clone(p.data))
			}
			if !yield(r, err) || err != nil {
				return
			}
		}
	}
}
