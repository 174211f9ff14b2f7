package wal

import "iter"

// change is what a commit does to a store: sequence numbers put and deleted.
type change struct {
	puts    []put
	deletes []uint64
}

// put is an encoded record.
type put struct {
	sequence uint64
	data     []byte
}

// store keeps encoded records by sequence number. commit, close and scan are
// called by one goroutine at a time; get may be called at any time.
type store interface {
	// commit applies a change as a whole; when it returns, that is logged.
	commit(change) error
	// get returns a record; the caller may keep the bytes.
	get(sequence uint64) ([]byte, error)
	// scan yields the records by sequence number, as they are now; the bytes are
	// good until the next one.
	scan() iter.Seq2[put, error]
	// footprint is how many bytes the store takes, deleted ones included.
	footprint() uint64
	close() error
}
