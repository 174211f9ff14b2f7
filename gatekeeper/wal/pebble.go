package wal

import (
	"encoding/binary"
	"iter"
	"slices"

	"github.com/bifrost-rack/bifrost/internal/disk"
)

// storeVersion is the version of how records lie in the store.
const storeVersion = 2

// Keys of the store: a record's for each sequence number.
var (
	firstRecord = []byte("r/")
	afterRecord = []byte("r0")
)

func recordKey(sequence uint64) []byte {
	return binary.BigEndian.AppendUint64(slices.Clone(firstRecord), sequence)
}

// pebbleStore is a store on disk.
type pebbleStore struct{ *disk.Store }

// openPebble opens a store, or makes one.
func openPebble(directory string, o disk.Options) (pebbleStore, error) {
	o.Name, o.Version, o.Away = "the log", storeVersion, away
	s, err := disk.Open(directory, o)
	return pebbleStore{s}, err
}

// commit implements store.
func (s pebbleStore) commit(c change) error {
	return s.Commit(func(b *disk.Batch) {
		for _, p := range c.puts {
			b.Put(recordKey(p.sequence), p.data)
		}
		for _, sequence := range c.deletes {
			b.DeleteOnce(recordKey(sequence))
		}
	})
}

func (s pebbleStore) get(sequence uint64) ([]byte, error) { return s.Get(recordKey(sequence)) }

func (s pebbleStore) scan() iter.Seq2[put, error] {
	return func(yield func(put, error) bool) {
		for e, err := range s.Scan(firstRecord, afterRecord) {
			if err == nil && len(e.Key) != len(firstRecord)+8 {
				err = corruptf("a record's key is %q", e.Key)
			}
			if err != nil {
				yield(put{}, err)
				return
			}
			if !yield(put{binary.BigEndian.Uint64(e.Key[len(firstRecord):]), e.Value}, nil) {
				return
			}
		}
	}
}

func (s pebbleStore) footprint() uint64 { return s.Footprint() }

func (s pebbleStore) close() error { return s.Close() }

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
