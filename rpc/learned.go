package rpc

import "sync"

// learned is what a node knows of the arguments that it passes by reference: which ones callees pass on. An answer
// says so. A long value of these goes into memory before its first call, instead of at the first
// node that passes it on.
//
// Only calls of policy none which no exactly-once execution makes go by it: a run that is repeated
// must pass every value as the first one did.
type learned struct {
	mu   sync.Mutex
	seen map[learnedKey]int // how often it was passed on, less how often it was not: 0 to mostLearned
}

// learnedKey is an argument of a method of a service.
type learnedKey struct{ service, method, argument string }

// Two answers in a row change what a node believes.
const (
	believed    = 2
	mostLearned = 3
)

// note takes in what an answer says.
func (l *learned) note(k learnedKey, passedOn bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := l.seen[k]
	switch {
	case passedOn && n < mostLearned:
		if l.seen == nil {
			l.seen = map[learnedKey]int{}
		}
		l.seen[k] = n + 1
	case !passedOn && n > 1:
		l.seen[k] = n - 1
	case !passedOn:
		delete(l.seen, k)
	}
}

// passesOn reports whether callees pass an argument on.
func (l *learned) passesOn(k learnedKey) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.seen[k] >= believed
}
