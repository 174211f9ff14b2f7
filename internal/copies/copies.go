// Package copies counts which copies of a memory machine have answered.
//
// Each answer names the set of copies that its copy belongs to, by a number that rises when the set changes: the mirror epoch.
// Something is settled when every copy of the newest set that has been heard of has answered in that set. What copies of an
// older set say does not count, and the first answer of a newer one begins the count anew.
package copies

import (
	"iter"

	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
)

// Set is the copies that a machine has, as far as answers have told. Nothing has been heard of the zero Set.
type Set struct {
	epoch   uint32
	members uint8 // 0: nothing has been heard
}

// Known reports whether anything has been heard of the copies.
func (s *Set) Known() bool { return s.members != 0 }

// Single reports whether there is one copy, and no other.
func (s *Set) Single() bool { return s.members == 1 }

// Old reports whether an answer is of an older set, or of no copy at all.
func (s *Set) Old(m dsmpacket.Mirror) bool { return m.Members == 0 || m.Epoch < s.epoch }

// Meet takes in which set an answer is of, and reports whether that is a newer one than was known.
func (s *Set) Meet(m dsmpacket.Mirror) (newer bool) {
	newer = !s.Old(m) && (m.Epoch > s.epoch || !s.Known())
	if newer {
		*s = Set{m.Epoch, m.Members}
	}
	return newer
}

// Answers are what the copies of the newest set have said of one thing.
type Answers[T any] struct {
	Set
	heard uint8 // bit i: copy i
	said  [dsmpacket.MaxMembers]T
}

// From takes in that a copy has answered, and returns where to put down what it has said: the zero value is there, or what the
// copy has said last. It is nil for an answer that does not count. Newer says that what others have said counts no more.
func (a *Answers[T]) From(m dsmpacket.Mirror) (said *T, newer bool) {
	if a.Old(m) {
		return nil, false
	}
	if newer = a.Meet(m); newer {
		a.Again()
	}
	a.heard |= 1 << m.Copy
	return &a.said[m.Copy], newer
}

// All reports whether every copy has answered.
func (a *Answers[T]) All() bool {
	all := uint8(1)<<a.members - 1
	return a.Known() && a.heard&all == all
}

// Said are the answers, in the order of the copies.
func (a *Answers[T]) Said() iter.Seq[T] {
	return func(yield func(T) bool) {
		for i, s := range a.said {
			if a.heard>>i&1 != 0 && !yield(s) {
				return
			}
		}
	}
}

// Again forgets what the copies have said: they are asked once more.
func (a *Answers[T]) Again() { *a = Answers[T]{Set: a.Set} }
