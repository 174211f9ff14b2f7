package wal

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/bifrost-rack/bifrost/internal/disk"
)

// Options of a log. The zero value of each field stands for its default.
type Options struct {
	// Sync: a record is logged when it is on disk, not when it is in the page
	// cache. Default: false.
	Sync bool
	// Limit is how many bytes of records the log holds. Default: 4 GiB.
	Limit uint64
	// QueueBatches and QueueBytes bound what waits to be logged. Defaults: 4096
	// batches, 64 MiB. A batch larger than QueueBytes is taken when the queue is
	// empty.
	QueueBatches int
	QueueBytes   int
}

func (o Options) withDefaults() Options {
	if o.Limit == 0 {
		o.Limit = 4 << 30
	}
	if o.QueueBatches == 0 {
		o.QueueBatches = 4096
	}
	if o.QueueBytes == 0 {
		o.QueueBytes = 64 << 20
	}
	return o
}

// Log is an open log. Its methods may be called concurrently.
type Log struct {
	options Options
	store   store
	wake    chan struct{} // has a token when the queue is not empty, or the log closed
	stopped chan struct{} // closed when the committer has ended

	mu       sync.Mutex
	index    map[Key]location // of what was submitted
	sequence uint64           // the last one given
	live     uint64           // bytes of the records in index
	pending  map[uint64][]byte
	queue    []job
	queued   int           // bytes of queue
	room     chan struct{} // closed when the queue gets shorter
	closed   bool
	failure  error
	stats    Stats
	readers  sync.WaitGroup // of the store; none begins once closed is set
}

// location is where the record of a key is.
type location struct {
	sequence uint64
	size     int
}

// job is a batch that waits to be logged.
type job struct {
	change change
	size   int
	done   func(error)
}

// Stats tells what a log holds and has done.
type Stats struct {
	Records int    // that it holds
	Bytes   uint64 // of these records
	Limit   uint64 // of Bytes
	Queued  int    // batches that wait to be logged
	Batches uint64 // logged since it was opened
	Commits uint64 // that logged them
}

// Open opens the log in a directory, which it makes if there is none. It reads
// all records once: it fails with ErrLocked, ErrVersion or ErrCorrupt rather than
// begin with less than was logged. (After a loss of power, a log without Sync may
// lack the last records, and begins without them.)
func Open(directory string, o Options) (*Log, error) {
	s, err := openPebble(directory, disk.Options{Sync: o.Sync})
	if err != nil {
		return nil, fmt.Errorf("log %s: %w", directory, err)
	}
	l, err := open(s, o)
	if err != nil {
		_ = s.close() // the first error tells more
		return nil, fmt.Errorf("log %s: %w", directory, Refuse(err))
	}
	return l, nil
}

// open reads what a store holds and starts the committer.
func open(s store, o Options) (*Log, error) {
	l := &Log{
		options: o.withDefaults(), store: s, wake: make(chan struct{}, 1), stopped: make(chan struct{}),
		index: map[Key]location{}, pending: map[uint64][]byte{}, room: make(chan struct{}),
	}
	for p, err := range s.scan() {
		if err != nil {
			return nil, err
		}
		r, err := parse(p.data)
		if err != nil {
			return nil, fmt.Errorf("record %d: %w", p.sequence, err)
		}
		if _, twice := l.index[r.Key()]; twice || r.Sequence != p.sequence {
			return nil, corruptf("record %d: %s, sequence %d, is out of place", p.sequence, r.Key(), r.Sequence)
		}
		l.index[r.Key()] = location{r.Sequence, len(p.data)}
		l.live += uint64(len(p.data))
		l.sequence = r.Sequence
	}
	go l.run()
	return l, nil
}

// Submit queues a batch and returns at once: with nil, and then calls done
// exactly once, with nil when the batch is logged; or with ErrFull, ErrBusy,
// ErrTooLarge, ErrClosed or ErrFailed, and then the batch leaves no trace. The
// callbacks of all batches are called one after another, in the order of Submit;
// they must not wait, nor call Append or Close. done may be nil.
func (l *Log) Submit(b *Batch, done func(error)) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.admit(b); err != nil {
		return err
	}
	j := job{size: b.size, done: done}
	for _, o := range b.ops {
		l.apply(&j.change, o)
	}
	l.queue = append(l.queue, j)
	l.queued += j.size
	l.signal()
	return nil
}

// admit says why a batch cannot be taken.
func (l *Log) admit(b *Batch) error {
	switch {
	case l.closed:
		return ErrClosed
	case l.failure != nil:
		return l.failure
	case b.size > MaxBatch:
		return fmt.Errorf("%w: %d bytes, at most %d", ErrTooLarge, b.size, MaxBatch)
	case len(l.queue) >= l.options.QueueBatches, l.queued > 0 && l.queued+b.size > l.options.QueueBytes:
		return ErrBusy
	case b.size > 0 && l.after(b) > l.options.Limit:
		return fmt.Errorf("%w: %d bytes of %d are in use, the batch has %d", ErrFull, l.live, l.options.Limit, b.size)
	}
	return nil
}

// after is how many bytes the log would hold after a batch.
func (l *Log) after(b *Batch) uint64 {
	sizes := map[Key]int{}
	for _, o := range b.ops {
		sizes[o.key] = 0
		if o.record != nil {
			sizes[o.key] = o.record.size()
		}
	}
	total := l.live
	for k, size := range sizes {
		total += uint64(size) - uint64(l.index[k].size) // wraps and comes back
	}
	return total
}

// apply makes one change to the index, and notes what it does to the store.
func (l *Log) apply(c *change, o op) {
	if old, ok := l.index[o.key]; ok {
		c.deletes = append(c.deletes, old.sequence)
		l.live -= uint64(old.size)
		delete(l.index, o.key)
	}
	if o.record == nil {
		return
	}
	l.sequence++
	o.record.Sequence = l.sequence
	data := o.record.append(make([]byte, 0, o.record.size()))
	c.puts = append(c.puts, put{l.sequence, data})
	l.pending[l.sequence] = data
	l.index[o.key] = location{l.sequence, len(data)}
	l.live += uint64(len(data))
}

// Append logs a batch: it waits for a place in the queue and until the batch is
// logged. If the context ends while it waits for a place, the batch leaves no
// trace; if it ends later, the batch may be logged all the same.
func (l *Log) Append(ctx context.Context, b *Batch) error {
	result := make(chan error, 1)
	for {
		l.mu.Lock()
		room := l.room
		l.mu.Unlock()
		err := l.Submit(b, func(err error) { result <- err })
		if err == nil {
			break
		}
		if !errors.Is(err, ErrBusy) {
			return err
		}
		select {
		case <-room:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	select {
	case err := <-result:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Stats returns the log's numbers of this moment.
func (l *Log) Stats() Stats {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := l.stats
	s.Records, s.Bytes, s.Limit, s.Queued = len(l.index), l.live, l.options.Limit, len(l.queue)
	return s
}

// Disk is how many bytes the log's files take, deleted records included.
func (l *Log) Disk() (uint64, error) {
	if err := l.beginRead(); err != nil {
		return 0, err
	}
	defer l.readers.Done()
	return l.store.footprint(), nil
}

// Close logs what was submitted and closes the log.
func (l *Log) Close() error {
	l.mu.Lock()
	if l.closed {
		l.mu.Unlock()
		<-l.stopped
		return ErrClosed
	}
	l.closed = true
	l.signal()
	l.mu.Unlock()
	<-l.stopped
	l.readers.Wait()
	return l.store.close()
}
