package interp

import (
	"runtime"
	"sync"
	"sync/atomic"
)

// pathLock is a read lock in several shards. A packet takes one shard, so that
// packets on different CPUs do not contend for a cache line; a writer takes
// them all, and so waits until every packet that was on its way is done.
type pathLock struct {
	shards []shard
	next   atomic.Uint32 // shard for the next worker
}

// shard is a read lock and the counts of the packets that took it. It fills its
// own cache lines.
type shard struct {
	sync.RWMutex
	stats  stats
	tables []tableCount // by the table's index
	_      [64]byte
}

func newPathLock(tables int) *pathLock {
	l := &pathLock{shards: make([]shard, 2*runtime.GOMAXPROCS(0))}
	for i := range l.shards {
		l.shards[i].tables = make([]tableCount, tables)
	}
	return l
}

// pick gives a worker its shard.
func (l *pathLock) pick() *shard {
	return &l.shards[int(l.next.Add(1))%len(l.shards)]
}

// lock waits until no packet is on its way and lets none begin.
func (l *pathLock) lock() {
	for i := range l.shards {
		l.shards[i].Lock()
	}
}

func (l *pathLock) unlock() {
	for i := range l.shards {
		l.shards[i].Unlock()
	}
}

// drain waits until the packets that are on their way now are done.
func (l *pathLock) drain() {
	l.lock()
	defer l.unlock()
}
