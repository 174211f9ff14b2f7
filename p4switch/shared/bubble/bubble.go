// Package bubble runs tests in virtual time (testing/synctest), and ends those that would wait for ever.
//
// Time passes in a bubble whenever all of its goroutines wait, and synctest reports a deadlock if none of them waits for a
// time. A rack always has one that does, such as a daemon before its next heartbeat. So a test on a rack that waits for what
// never comes is no deadlock: without a bound it keeps a CPU busy until go test's time is over.
package bubble

import (
	"bytes"
	"fmt"
	"runtime"
	"runtime/debug"
	"testing"
	"testing/synctest"
	"time"
)

// Lifetime is how long a test may take, in virtual time. A rack with nothing to do gets through it within seconds. Many tests
// give their contexts an hour, which ends first.
const Lifetime = 65 * time.Minute

// Test runs f in a bubble, as [synctest.Test] does. A test that has not ended after [Lifetime], its cleanups included, ends
// the program with a panic that shows where the test waits, and all goroutines.
func Test(t *testing.T, f func(t *testing.T)) {
	t.Helper()
	TestFor(t, Lifetime, f)
}

// TestFor is [Test] for a test that may take the given virtual time.
func TestFor(t *testing.T, limit time.Duration, f func(t *testing.T)) {
	t.Helper()
	run(t, limit, f, func(why string) {
		debug.SetTraceback("all")
		panic(why)
	})
}

// run runs f in a bubble, and calls overdue in the bubble, with what to say, if f has not ended in time.
func run(t *testing.T, limit time.Duration, f func(t *testing.T), overdue func(why string)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		timer := time.AfterFunc(limit, func() {
			overdue(fmt.Sprintf("%s has not ended after %v of virtual time. It is here:\n%s", t.Name(), limit, where()))
		})
		t.Cleanup(func() { timer.Stop() }) // the first cleanup runs last
		f(t)
	})
}

// where is the stack of the goroutine that runs the test of the caller's bubble.
func where() []byte {
	for all := make([]byte, 1<<20); ; all = make([]byte, 2*len(all)) {
		n := runtime.Stack(all, true)
		if n == len(all) {
			continue // there is more
		}
		own := inBubble(all[:n]) // the caller's goroutine is the first
		for goroutine := range bytes.SplitSeq(all[:n], []byte("\n\n")) {
			if bytes.Equal(inBubble(goroutine), own) && bytes.Contains(goroutine, []byte("p4switch/shared/bubble.run.func1(")) {
				return goroutine
			}
		}
		return all[:n]
	}
}

// inBubble is the bubble that the first line of a goroutine's stack names.
func inBubble(stack []byte) []byte {
	line, _, _ := bytes.Cut(stack, []byte("\n"))
	if _, name, is := bytes.Cut(line, []byte("synctest bubble ")); is {
		return bytes.TrimRight(name, "]:")
	}
	return nil
}
