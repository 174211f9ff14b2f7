package crash

import (
	"fmt"
	"maps"
	"slices"
	"sync"
)

// ledger is what is known outside of the rack, where nothing crashes: side
// effects, and what executions have seen. Methods may be called concurrently.
type ledger struct {
	mu       sync.Mutex
	effects  map[int]int      // by operation
	observed map[int]Outcome  // of calls, by operation
	finished map[int]*Outcome // of clients
	wrong    []string
}

func newLedger() *ledger {
	return &ledger{effects: map[int]int{}, observed: map[int]Outcome{}, finished: map[int]*Outcome{}}
}

// complain notes that something is wrong with the run.
func (l *ledger) complain(format string, args ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.wrong = append(l.wrong, fmt.Sprintf(format, args...))
}

func (l *ledger) complaints() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.wrong)
}

// effect counts a side effect, and returns how many this operation has had.
func (l *ledger) effect(op int) uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.effects[op]++
	return uint64(l.effects[op])
}

// observe notes what a call has brought. However often its caller runs, it must
// see the same.
func (l *ledger) observe(op int, o Outcome) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if was, ok := l.observed[op]; ok && !was.same(o) {
		l.wrong = append(l.wrong, fmt.Sprintf("operation %d has brought %+v, and when it was repeated %+v", op, was, o))
	}
	l.observed[op] = o
	return nil
}

// finish notes what came out of a client's script. A durable main that crashes
// before its end is logged comes to it again; what it has seen of time and dice since
// its last message may be another then.
func (l *ledger) finish(client int, o Outcome) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if was := l.finished[client]; was != nil && (was.Value != o.Value || !slices.Equal(was.Marks, o.Marks)) {
		l.wrong = append(l.wrong, fmt.Sprintf("client %d has come to %+v, and when it was repeated to %+v", client, *was, o))
	}
	l.finished[client] = &o
}

// outcome is what finish was told, if it was.
func (l *ledger) outcome(client int) (Outcome, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	o := l.finished[client]
	if o == nil {
		return Outcome{}, false
	}
	return *o, true
}

func (l *ledger) sideEffects() map[int]int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return maps.Clone(l.effects)
}
