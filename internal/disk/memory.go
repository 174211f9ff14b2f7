package disk

import (
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/cockroachdb/pebble"
)

// Memory is a disk in memory, for tests: it outlives the stores that are opened on it, and what they have committed is on it. The
// zero Memory is empty. Its methods may be called concurrently.
type Memory struct {
	// Pause, if set, makes the disk slow: it tells how long the next commit takes. It may be called concurrently.
	Pause func() time.Duration

	mu     Openings
	values map[string][]byte
}

// Openings is the lock of what a disk in memory has, and knows who has the disk open: one at a time, until it is closed or the process
// that has it crashes.
type Openings struct {
	sync.Mutex
	open       bool
	generation int // of openings: the present one's, if there is one
}

// Opening is one of them.
type Opening struct {
	of         *Openings
	generation int
}

// errCrashed is what an opening gets whose process has crashed.
var errCrashed = errors.New("simulated crash")

// Open opens the disk. It fails with ErrLocked while it is open. The caller holds the lock.
func (o *Openings) Open() (Opening, error) {
	if o.open {
		return Opening{}, ErrLocked
	}
	o.open = true
	return Opening{o, o.generation}, nil
}

// Crash ends the process that has the disk open, or its machine.
func (o *Openings) Crash() {
	o.Lock()
	defer o.Unlock()
	o.end()
}

func (o *Openings) end() {
	o.generation++
	o.open = false
}

// Begin locks the disk if this opening of it is alive.
func (o Opening) Begin() error {
	o.of.Lock()
	if o.generation != o.of.generation {
		o.of.Unlock()
		return errCrashed
	}
	return nil
}

// Close lets another one open the disk.
func (o Opening) Close() error {
	if o.Begin() == nil {
		o.of.end()
		o.of.Unlock()
	}
	return nil
}

// Crash ends the process that has a store open, or its machine: a commit that has not returned is not on the disk.
func (m *Memory) Crash() { m.mu.Crash() }

// OpenMemory opens the store on a disk in memory. It fails with ErrLocked while another one is open, until Close or Crash.
func OpenMemory(m *Memory) (*MemoryStore, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	o, err := m.mu.Open()
	if err != nil {
		return nil, fmt.Errorf("the disk is %w", err)
	}
	if m.values == nil {
		m.values = map[string][]byte{}
	}
	return &MemoryStore{o, m}, nil
}

// MemoryStore is a store on a Memory. It has the methods of Store.
type MemoryStore struct {
	Opening
	disk *Memory
}

// Commit is as Store.Commit.
func (s *MemoryStore) Commit(fill func(*Batch)) error {
	if s.disk.Pause != nil {
		<-time.After(s.disk.Pause())
	}
	if err := s.Begin(); err != nil {
		return err
	}
	defer s.disk.mu.Unlock()
	b := Batch{b: memoryBatch(s.disk.values)}
	fill(&b)
	return b.err
}

// Get is as Store.Get.
func (s *MemoryStore) Get(key []byte) ([]byte, error) {
	if err := s.Begin(); err != nil {
		return nil, err
	}
	defer s.disk.mu.Unlock()
	v, ok := s.disk.values[string(key)]
	if !ok {
		return nil, ErrNotFound
	}
	return slices.Clone(v), nil
}

// Scan is as Store.Scan.
func (s *MemoryStore) Scan(from, to []byte) iter.Seq2[Entry, error] {
	return func(yield func(Entry, error) bool) {
		if err := s.Begin(); err != nil {
			yield(Entry{}, err)
			return
		}
		values := maps.Clone(s.disk.values)
		s.disk.mu.Unlock()
		for _, k := range slices.Sorted(maps.Keys(values)) {
			if k >= string(from) && (to == nil || k < string(to)) && !yield(Entry{[]byte(k), values[k]}, nil) {
				return
			}
		}
	}
}

// memoryBatch changes values at once: nobody sees them before the whole batch is there.
type memoryBatch map[string][]byte

func (b memoryBatch) Set(key, value []byte, _ *pebble.WriteOptions) error {
	b[string(key)] = slices.Clone(value)
	return nil
}

func (b memoryBatch) Delete(key []byte, _ *pebble.WriteOptions) error {
	delete(b, string(key))
	return nil
}

func (b memoryBatch) SingleDelete(key []byte, o *pebble.WriteOptions) error { return b.Delete(key, o) }

func (b memoryBatch) DeleteRange(from, to []byte, _ *pebble.WriteOptions) error {
	maps.DeleteFunc(b, func(k string, _ []byte) bool { return k >= string(from) && k < string(to) })
	return nil
}
