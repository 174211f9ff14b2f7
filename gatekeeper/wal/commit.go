package wal

import "fmt"

// signal wakes the committer; the caller holds mu.
func (l *Log) signal() {
	select {
	case l.wake <- struct{}{}:
	default: // it is awake
	}
}

// run is the committer: it logs all that waits with one commit, and then all
// that has come in meanwhile.
func (l *Log) run() {
	defer close(l.stopped)
	for range l.wake {
		jobs, closed := l.take()
		if len(jobs) > 0 {
			l.complete(jobs, l.commit(jobs))
		}
		if closed && len(jobs) == 0 {
			return
		}
	}
}

// take empties the queue.
func (l *Log) take() (jobs []job, closed bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	jobs, l.queue, l.queued = l.queue, nil, 0
	if len(jobs) > 0 {
		close(l.room)
		l.room = make(chan struct{})
	}
	if l.closed {
		l.signal() // look again, until nothing is left
	}
	return jobs, l.closed
}

// commit logs jobs together. A record that another one of them deletes is never
// written.
func (l *Log) commit(jobs []job) error {
	l.mu.Lock()
	failure := l.failure
	l.mu.Unlock()
	if failure != nil {
		return failure
	}
	var all change
	gone := map[uint64]bool{}
	for _, j := range jobs {
		for _, s := range j.change.deletes {
			gone[s] = true
		}
	}
	for _, j := range jobs {
		for _, p := range j.change.puts {
			if gone[p.sequence] {
				delete(gone, p.sequence)
				continue
			}
			all.puts = append(all.puts, p)
		}
	}
	for _, j := range jobs {
		for _, s := range j.change.deletes {
			if gone[s] {
				all.deletes = append(all.deletes, s)
			}
		}
	}
	if len(all.puts)+len(all.deletes) == 0 {
		return nil
	}
	if err := l.store.commit(all); err != nil {
		return fmt.Errorf("%w: %w", ErrFailed, err)
	}
	return nil
}

// complete notes the outcome of a commit and tells those who wait for it.
func (l *Log) complete(jobs []job, err error) {
	l.mu.Lock()
	if err != nil && l.failure == nil {
		l.failure = err
	}
	if err == nil {
		l.stats.Batches += uint64(len(jobs))
		l.stats.Commits++
	}
	for _, j := range jobs {
		for _, p := range j.change.puts {
			delete(l.pending, p.sequence)
		}
	}
	l.mu.Unlock()
	for _, j := range jobs {
		if j.done != nil {
			j.done(err)
		}
	}
}
