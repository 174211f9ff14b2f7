package rpc

import (
	"bytes"
	"slices"
	"sync"

	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/internal/wirefmt"
	"github.com/bifrost-rack/bifrost/rpc/trailer"
)

// place names an operation of an execution: the index-th of a branch. A re-run
// that is deterministic has the same operations in the same places.
type place struct{ branch, index uint32 }

// journal is what an exactly-once execution got from outside of itself. An
// operation that a former attempt has journalled is answered from it; a new one
// is added, and travels with each message of the execution until one of them is
// known to be logged: so whatever the log has of the execution, it also has what
// led there.
//
//	redelivered CALL's trailer ──▶ past ──▶ recall         add ◀── new operations
//	                                                        ▼
//	answered: logged ──▶ forgets ◀── fresh ──▶ pending ──▶ trailer of CALL, REPLY
type journal struct {
	mu     sync.Mutex
	past   map[place]trailer.Section // not asked for again so far
	last   map[uint32]uint32         // the highest index in past, by branch
	fresh  []trailer.Section         // not known to be logged
	logged uint64                    // entries that were fresh and are known to be
	inked  uint64                    // entries that were fresh and are in the ledger
	failed *Error                    // the re-run has diverged
	taken  map[uint32]bool           // numbers of branches
}

// newJournal returns the journal of an execution that is run again, from its
// trailer; an empty trailer makes one of a first run. The trailer is copied. An
// entry may be there twice, for it may have travelled with two messages.
func newJournal(b []byte) (*journal, error) {
	j := new(journal)
	if len(b) == 0 {
		return j, nil
	}
	sections, err := trailer.Parse(slices.Clone(b))
	if err != nil {
		return nil, err
	}
	j.past, j.last = make(map[place]trailer.Section), make(map[uint32]uint32)
	for _, s := range sections {
		at := place{s.Branch, s.Index}
		if !s.Type.Journal() {
			return nil, wirefmt.Errorf("journal: %s is no entry", s.Type)
		}
		if old, ok := j.past[at]; ok && (old.Type != s.Type || !bytes.Equal(old.Data, s.Data)) {
			return nil, wirefmt.Errorf("journal: two entries for operation %d of branch %d", at.index, at.branch)
		}
		j.past[at] = s
		j.last[at.branch] = max(j.last[at.branch], at.index)
	}
	return j, nil
}

// recall returns what a former attempt has journalled for an operation, nil if it
// has not come so far. Wanted are the types of entry that such an operation makes;
// none, if it makes no entry. Finding another is Nondeterminism.
func (j *journal) recall(op string, at place, wanted ...trailer.Type) (*trailer.Section, *Error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.failed != nil {
		return nil, j.failed
	}
	s, ok := j.past[at]
	switch {
	case ok && !slices.Contains(wanted, s.Type):
		return nil, j.diverge(op, "operation %d of branch %d was a %s when the execution ran before", at.index, at.branch, s.Type)
	case ok:
		delete(j.past, at)
		return &s, nil
	case len(wanted) > 0 && at.index <= j.last[at.branch]:
		return nil, j.diverge(op, "operation %d of branch %d was another when the execution ran before", at.index, at.branch)
	}
	return nil, nil
}

// add journals an operation.
func (j *journal) add(t trailer.Type, at place, data []byte) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.fresh = append(j.fresh, trailer.Section{Type: t, Branch: at.branch, Index: at.index, Data: data})
}

// claim takes a number for a branch. It reports false if another has it.
func (j *journal) claim(branch uint32) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.taken[branch] {
		return false
	}
	if j.taken == nil {
		j.taken = make(map[uint32]bool)
	}
	j.taken[branch] = true
	return true
}

// pending returns, as a trailer, what the next message of the execution has to
// carry, and a mark for confirm.
func (j *journal) pending() (b []byte, mark uint64) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return trailer.Append(nil, j.fresh), j.logged + uint64(len(j.fresh))
}

// unwritten returns, as a trailer, the entries that the ledger does not have yet, and
// counts them as written.
func (j *journal) unwritten() []byte {
	j.mu.Lock()
	defer j.mu.Unlock()
	rest := j.fresh[min(uint64(len(j.fresh)), max(j.inked, j.logged)-j.logged):]
	j.inked = j.logged + uint64(len(j.fresh))
	return trailer.Append(nil, rest)
}

// confirm says that the message which got this mark has been logged.
func (j *journal) confirm(mark uint64) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if mark > j.logged {
		j.fresh = slices.Delete(j.fresh, 0, int(mark-j.logged))
		j.logged = mark
	}
}

// fail notes that the re-run has diverged; the first reason counts.
func (j *journal) fail(op, format string, args ...any) *Error {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.diverge(op, format, args...)
}

// diverge is fail for whoever holds the lock.
func (j *journal) diverge(op, format string, args ...any) *Error {
	if j.failed == nil {
		j.failed = fault.New(Nondeterminism, op, format, args...)
	}
	return j.failed
}

// failure is why the re-run has diverged, nil if it has not.
func (j *journal) failure() *Error {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.failed
}

// close judges the execution at its end: it must have done all that it did before, unless
// it has failed because memory is away or lost, which it was not before.
func (j *journal) close(err error) *Error {
	j.mu.Lock()
	defer j.mu.Unlock()
	if code := CodeOf(err); code == Unavailable || code == NoSpace {
		return j.failed
	}
	if j.failed == nil && len(j.past) > 0 {
		for at, s := range j.past { // any of them says enough
			return j.diverge("", "the %s of branch %d, operation %d, was not asked for again", s.Type, at.branch, at.index)
		}
	}
	return j.failed
}
